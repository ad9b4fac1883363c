"""The command line against a real gateway: exit codes, terminals, Ctrl-C, folders, completion."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.runtime_server import wait_until
from support.system_gateway import SystemGateway, build_environment, sandgate_up

from sandgate import Sandbox

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND = [sys.executable, "-m", "sandgate.cli"]
SECONDS = 60


@pytest.fixture(scope="module")
def gateway() -> Iterator[SystemGateway]:
    with sandgate_up(isolation="none") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def sandbox(gateway: SystemGateway) -> Iterator[Sandbox]:
    with (
        gateway.sandboxes() as sandboxes,
        sandboxes.claim("python", name="box", labels={"app": "t"}) as sandbox,
    ):
        yield sandbox


@pytest.fixture
def environment(gateway: SystemGateway, sandbox: Sandbox) -> dict[str, str]:
    del sandbox  # it is there
    return build_environment(SANDGATE_URL=gateway.url, PYTHONUNBUFFERED="1")


@pytest.fixture
def cli(environment: dict[str, str]) -> Cli:
    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*COMMAND, *arguments],
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )

    return run


def test_the_exit_code_is_the_commands_or_tells_a_timeout_or_an_own_failure(cli: Cli) -> None:
    assert cli("run", "box", "--", "sh", "-c", "exit 42").returncode == 42
    assert cli("run", "box", "--shell", "kill -9 $$").returncode == 137
    slow = cli("run", "box", "--timeout", "0.3", "--shell", "echo begun; sleep 60")
    assert (slow.returncode, slow.stdout) == (124, "begun\n")
    assert cli("run", "nowhere", "--", "true").returncode == 125


def test_input_is_passed_where_it_is_asked_for(cli: Cli) -> None:
    assert cli("run", "box", "--", "cat", stdin="lost").stdout == ""
    assert cli("run", "box", "--stdin", "--", "cat", stdin="kept\n").stdout == "kept\n"


def test_events_come_as_lines_of_json(cli: Cli) -> None:
    done = cli("run", "box", "--json", "--stream", "--shell", "echo x; exit 3")
    started, output, end = (json.loads(line) for line in done.stdout.splitlines())
    assert started["event"] == "started"
    assert output == {"event": "stdout", "text": "x\n"}
    assert (end["event"], end["exit_code"], done.returncode) == ("exit", 3, 3)


def test_ctrl_c_reaches_the_command_which_decides(
    environment: dict[str, str], sandbox: Sandbox
) -> None:
    script = "trap 'echo caught; exit 5' INT; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*COMMAND, "run", "box", "--shell", script], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"caught\n"
    assert process.returncode == 5
    assert not [known for known in sandbox.commands.list() if known.running]


def test_a_run_that_is_ended_takes_its_command_along(
    environment: dict[str, str], sandbox: Sandbox
) -> None:
    with subprocess.Popen(
        [*COMMAND, "run", "box", "--shell", "echo up; exec sleep 1000"],
        env=environment,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
    assert process.returncode == 143
    assert not [known for known in sandbox.commands.list() if known.running]


@pytest.mark.parametrize("arguments", [["shell", "box"], ["run", "--tty", "box", "--", "sh"]])
def test_a_shell_in_a_terminal_works_and_gives_the_terminal_back(
    environment: dict[str, str], arguments: list[str]
) -> None:
    primary, secondary = pty.openpty()
    os.set_blocking(primary, False)
    before = _mode(secondary)
    seen = bytearray()

    def read() -> bytes:
        try:
            seen.extend(os.read(primary, 65536))
        except (BlockingIOError, OSError):
            time.sleep(0.01)
        return bytes(seen)

    process = subprocess.Popen(
        [*COMMAND, *arguments], env=environment, stdin=secondary, stdout=secondary, stderr=secondary
    )
    try:
        # It stands once it answers; keys that come before are the local terminal's to echo.
        wait_until(lambda: _mode(secondary) != before, seconds=SECONDS)
        os.write(primary, b"echo $((6*7)); tty\r")
        wait_until(lambda: b"42\r\n" in read() and b"/dev/pts/" in read(), seconds=SECONDS)
        os.write(primary, b"sleep 1000\r")
        wait_until(lambda: b"sleep 1000" in read(), seconds=SECONDS)
        os.write(primary, b"\x03")  # Ctrl-C, which is the remote program's
        os.write(primary, b"exit 7\r")
        wait_until(lambda: (read(), process.poll())[1] is not None, seconds=SECONDS)
        assert process.returncode == 7, bytes(seen)
        assert _mode(secondary) == before
    finally:
        process.kill()
        process.wait()
        os.close(primary)
        os.close(secondary)


def test_folders_are_copied_both_ways(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "f.txt").write_text("deep")
    assert cli("cp", str(source), "box:tree").returncode == 0
    assert cli("cat", "box:tree/sub/f.txt").stdout == "deep"
    assert cli("cp", "box:tree", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back" / "sub" / "f.txt").read_text() == "deep"
    missing = cli("cat", "box:missing")
    assert missing.returncode == 1
    assert "`sandgate ls` shows what is there" in missing.stderr


def test_claims_are_listed_and_renewed(cli: Cli) -> None:
    (claim,) = json.loads(cli("list", "--selector", "app=t", "--json").stdout)["claims"]
    assert (claim["name"], claim["labels"], claim["token"]) == ("box", {"app": "t"}, None)
    assert "default/box" in cli("list").stdout
    before = claim["expires_at"]
    assert cli("renew", "box", "--lease", "7200").returncode == 0
    (claim,) = json.loads(cli("list", "--json").stdout)["claims"]
    assert claim["expires_at"] > before


def test_top_is_printed_once_into_a_pipe(cli: Cli) -> None:
    lines = cli("top").stdout.splitlines()
    assert lines[0].split()[-1] == "STATES"
    assert "1 ready" in lines[1]
    shown = json.loads(cli("top", "--json").stdout)
    assert [claim["name"] for claim in shown["claims"]] == ["box"]


def test_events_are_told_until_ctrl_c(environment: dict[str, str], cli: Cli) -> None:
    with subprocess.Popen(
        [*COMMAND, "events", "--json"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for number in range(20):
            # It follows from the moment that it stands on, which nothing tells.
            cli("claim", "python", "--name", f"e-{number}")
            cli("release", f"e-{number}")
            if number >= 1:
                break
        event = json.loads(process.stdout.readline())
        assert event["kind"].startswith(("claim.", "pool."))
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_calls_back(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).stdout
    assert "_SANDGATE_COMPLETE" in script
    if shell == "bash":
        done = subprocess.run(
            ["bash", "-n"], input=script, text=True, check=False, capture_output=True
        )
        assert done.returncode == 0, done.stderr


def test_completion_names_commands_and_options(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("sandgate")],
        env={
            **environment,
            "_SANDGATE_COMPLETE": "bash_complete",
            "COMP_WORDS": "sandgate po",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert [line.partition(",")[2] for line in done.stdout.split()] == ["pools", "port-forward"]


def test_no_color_is_kept_to(environment: dict[str, str]) -> None:
    code = "import pty, sys; pty.spawn([sys.executable, '-m', 'sandgate.cli', 'pools'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "NO_COLOR": "1", "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=SECONDS,
    )
    assert b"default/python" in done.stdout
    assert b"\x1b[3" not in done.stdout


def _mode(descriptor: int) -> list[object]:
    import termios

    return termios.tcgetattr(descriptor)
