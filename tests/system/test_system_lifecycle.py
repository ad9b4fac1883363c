"""How a gateway starts, refuses to start, and ends: with nothing left, whatever ends it.

`sandgate_up` proves at its end that no process is left and, after an orderly end, no file.
"""

import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.system_gateway import (
    SystemGateway,
    build_path_without_bubblewrap,
    descendants,
    find_command,
    routing_fields,
    run_sandgate,
    sandgate_up,
    scratch_folder,
    unique_seconds,
    wait_until,
)

from sandgate import CommandResult, OutcomeUnknown, Sandbox, Sandboxes
from sandgate._wire import following

BEGIN_SLEEP = "sh -c 'setsid sleep {seconds} >/dev/null 2>&1 &'"

LOOK_FOR_CANARY = """\
import os, pathlib, sys

canary = "{backwards}"[::-1].encode()  # this file is looked at, too
proc = pathlib.Path("/proc")
places = [*proc.glob("[0-9]*/environ"), *proc.glob("[0-9]*/cmdline")]
for root in ("/home", "/tmp", "/etc", "/opt/sandgate/lib", "/dev/shm", "/run", "/var", "/root"):
    for folder, _, names in os.walk(root):
        if not folder.startswith(sys.base_prefix):  # tens of thousands, read-only
            places += [pathlib.Path(folder, name) for name in names]
looked = 0
for place in places:
    if place.is_symlink():
        continue
    try:
        content = place.read_bytes()
    except OSError:
        continue
    looked += 1
    if canary in content:
        print("found in", place)
if any(canary in os.fsencode(word) for pair in os.environ.items() for word in pair):
    print("found in the environment")
print("looked at", looked)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_its_sandboxes_and_exit_code_0(
    isolation: str, number: signal.Signals
) -> None:
    with (
        sandgate_up(isolation=isolation, environ={"SANDGATE_DRAIN_DELAY": "0"}) as gateway,
        gateway.sandboxes() as sandboxes,
    ):
        _claim_and_begin_sleeps(sandboxes, gateway)
        gateway.signal(number)
        assert gateway.wait() == 0, gateway.errors()
        assert not list(gateway.temporary.iterdir())


def test_ctrl_c_in_a_terminal_reaches_all_and_still_ends_in_order(isolation: str) -> None:
    with sandgate_up(isolation=isolation, start_new_session=True) as gateway:
        with gateway.sandboxes() as sandboxes:
            _claim_and_begin_sleeps(sandboxes, gateway)
            assert os.getsid(gateway.pid) == gateway.pid
            os.killpg(gateway.pid, signal.SIGINT)  # a terminal signals the whole group
            assert gateway.wait() == 0, gateway.errors()
        assert not list(gateway.temporary.iterdir())


def test_a_command_that_runs_on_is_ended_when_the_drain_time_out_is_over(
    isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LINGER_SECONDS", 1.0)  # the gateway does not come back
    environ = {"SANDGATE_DRAIN_DELAY": "0.1", "SANDGATE_DRAIN_TIMEOUT": "1"}
    begun = threading.Event()

    def run(sandbox: Sandbox) -> CommandResult:
        script = f"echo begun; sleep {unique_seconds()}"
        return sandbox.commands.run(script, on_stdout=lambda _: begun.set())

    with (
        sandgate_up(isolation=isolation, environ=environ) as gateway,
        gateway.sandboxes() as sandboxes,
        ThreadPoolExecutor(1) as threads,
    ):
        running = threads.submit(run, sandboxes.claim("python"))
        assert begun.wait(30)
        gateway.signal(signal.SIGTERM)
        assert gateway.wait() == 0, gateway.errors()
        error = running.exception(30)
        assert isinstance(error, OutcomeUnknown) or running.result().reason == "killed"
        assert not list(gateway.temporary.iterdir())


def test_a_command_that_ends_in_time_is_answered_before_the_end(isolation: str) -> None:
    environ = {"SANDGATE_DRAIN_DELAY": "0"}
    begun = threading.Event()

    def run(sandbox: Sandbox) -> CommandResult:
        script = "echo begun; until test -e go; do sleep 0.02; done; echo done"
        return sandbox.commands.run(script, on_stdout=lambda _: begun.set())

    with (
        sandgate_up(isolation=isolation, environ=environ) as gateway,
        gateway.sandboxes() as sandboxes,
        ThreadPoolExecutor(2) as threads,
    ):
        sandbox = sandboxes.claim("python")
        running = threads.submit(run, sandbox)
        upload = _HalfAnUpload(gateway, sandbox)
        uploading = threads.submit(upload.send)
        assert begun.wait(30)
        assert upload.begun.wait(30)
        gateway.signal(signal.SIGTERM)
        wait_until(lambda: not _accepts(gateway))
        upload.go_on.set()
        assert uploading.result(30) == 200
        assert running.result(30).stdout == "begun\ndone\n"
        assert gateway.wait() == 0, gateway.errors()
        assert not list(gateway.temporary.iterdir())


@pytest.mark.parametrize("start_new_session", [False, True])
def test_a_gateway_that_is_killed_leaves_no_sandbox(
    isolation: str, start_new_session: bool
) -> None:
    with (
        sandgate_up(isolation=isolation, start_new_session=start_new_session) as gateway,
        gateway.sandboxes() as sandboxes,
    ):
        seconds = _claim_and_begin_sleeps(sandboxes, gateway)
        below = descendants(gateway.pid)
        assert find_command(below, "sleep", seconds)
        gateway.signal(signal.SIGKILL)
        assert gateway.wait() == -signal.SIGKILL
        wait_until(lambda: not any(map(_runs, below)))


def test_the_next_start_removes_what_a_killed_gateway_left(isolation: str) -> None:
    with scratch_folder() as temporary:
        other = temporary / "somebody-elses"
        other.write_text("stays")
        with (
            sandgate_up(isolation=isolation, temporary=temporary) as live,
            sandgate_up(isolation=isolation, temporary=temporary) as gateway,
        ):
            before = set(temporary.iterdir())
            gateway.signal(signal.SIGKILL)
            gateway.wait()
            assert set(temporary.iterdir()) == before
            with sandgate_up(isolation=isolation, temporary=temporary):
                assert len(set(temporary.iterdir()) & before) == len(before) - 1
            with live.sandboxes() as sandboxes, sandboxes.claim("python") as sandbox:
                assert sandbox.commands.run("echo still here").stdout == "still here\n"
        assert list(temporary.iterdir()) == [other]


def test_a_temporary_folder_that_no_other_user_may_enter_will_do(isolation: str) -> None:
    with scratch_folder() as temporary:
        temporary.chmod(0o700)
        with (
            sandgate_up(isolation=isolation, temporary=temporary) as gateway,
            gateway.sandboxes() as sandboxes,
            sandboxes.claim("python") as sandbox,
        ):
            assert sandbox.commands.run("echo x > file && cat file").stdout == "x\n"
        assert not list(temporary.iterdir())


def test_wrong_settings_are_all_listed_before_anything_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_sandgate(
            *("up", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--isolation", "chroot"),
            environ={
                "SANDGATE_DRAIN_DELAY": "soon",
                "SANDGATE_AUHT": "shared",
                "PROXY_TIMEOUT_SECONDS": "-1",
                "SANDGATE_METRICS_LISTEN": "9090",
            },
        )
    assert done.returncode == 2
    assert done.stdout == ""
    for fault in (
        "SANDGATE_ISOLATION 'chroot' is none of bubblewrap, none",
        "SANDGATE_DRAIN_DELAY 'soon' is not a number of seconds",
        "SANDGATE_AUHT is no setting of the gateway",
        "PROXY_TIMEOUT_SECONDS '-1' is not a number of seconds",
        "SANDGATE_METRICS_LISTEN '9090' is not HOST:PORT",
    ):
        assert fault in done.stderr
    # The port is taken; that nothing says so shows that nobody tried it.
    assert "cannot listen" not in done.stderr
    assert all(line.startswith("sandgate: ") for line in done.stderr.splitlines())


def test_a_wrong_pools_file_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text("pools: [{name: python, warm: 9, max: 4, wram: 1}]")
    done = run_sandgate("up", "--listen", "127.0.0.1:0", "--pools", str(tmp_path / "pools.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "warm 9 is not between 0 and max (4)" in done.stderr
    assert "'wram' is no member of a pool" in done.stderr


def test_without_bubblewrap_it_refuses_and_says_what_to_install(tmp_path: Path) -> None:
    path = build_path_without_bubblewrap(tmp_path)
    done = run_sandgate("up", "--listen", "127.0.0.1:0", environ={"PATH": path})
    assert (done.returncode, done.stdout) == (2, "")
    assert "bubblewrap is missing" in done.stderr
    assert "sudo apt-get install bubblewrap" in done.stderr
    assert "--isolation none" in done.stderr
    assert "Traceback" not in done.stderr
    environ = {"PATH": path}
    with (
        sandgate_up(isolation="none", environ=environ) as gateway,
        gateway.sandboxes() as sandboxes,
        sandboxes.claim("python") as sandbox,
    ):
        assert sandbox.isolation == "none"
        assert sandboxes.pools()[0].isolation == "none"
        assert sandbox.commands.run("echo works").stdout == "works\n"


def test_a_port_in_use_is_told(best_isolation: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_sandgate("up", "--listen", address, "--isolation", best_isolation)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(rf"cannot listen: {re.escape(address)}: Address already in use", done.stderr)
    assert "Traceback" not in done.stderr


def test_no_variable_of_the_gateway_is_seen_in_a_sandbox(isolation: str) -> None:
    canary = secrets.token_hex(16)
    environ = {"SECRET_CANARY": canary}
    with (
        sandgate_up(isolation=isolation, environ=environ) as gateway,
        gateway.sandboxes() as sandboxes,
        sandboxes.claim("python") as sandbox,
    ):
        assert canary.encode() in Path(f"/proc/{gateway.pid}/environ").read_bytes()
        names = sandbox.commands.run("env").stdout
        assert "SECRET_CANARY" not in names
        assert canary not in names
        # The runtime's own, which a command may read where it has the same user.
        for pid in gateway.runtimes():
            assert canary.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        if isolation == "none":  # all other processes are the machine's, and this one shows them
            return
        sandbox.files.write("look.py", LOOK_FOR_CANARY.format(backwards=canary[::-1]))
        result = sandbox.commands.run("python3 look.py", timeout=60)
        assert result.exit_code == 0, result.stderr
        assert re.fullmatch(r"looked at [1-9]\d+\n", result.stdout), result.stdout


def _claim_and_begin_sleeps(sandboxes: Sandboxes, gateway: SystemGateway, count: int = 2) -> str:
    """Claim sandboxes with a process in the background of each; return the argument of sleep."""
    seconds = unique_seconds()
    for _ in range(count):
        sandbox = sandboxes.claim("python")
        answer = httpx.post(
            f"{gateway.url}/execute",
            headers=routing_fields(sandbox),
            json={"command": BEGIN_SLEEP.format(seconds=seconds)},
            timeout=60,
        )
        assert answer.json()["exit_code"] == 0, answer.text
    wait_until(lambda: len(find_command(descendants(gateway.pid), "sleep", seconds)) == count)
    return seconds


class _HalfAnUpload:
    """An upload of the file `go`, whose last bytes wait until they are asked for."""

    def __init__(self, gateway: SystemGateway, sandbox: Sandbox) -> None:
        self._gateway = gateway
        self._fields = routing_fields(sandbox)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def send(self) -> int:
        """Send it and return the status of the answer."""
        fields = {**self._fields, "Content-Type": "multipart/form-data; boundary=b"}
        with self._gateway.client() as client:
            return client.post("/upload", headers=fields, content=self._content()).status_code

    def _content(self) -> Iterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="go"\r\n\r\nx'
        self.begun.set()
        assert self.go_on.wait(60)
        yield b"\r\n--b--\r\n"


def _accepts(gateway: SystemGateway) -> bool:
    host, port = gateway.url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _runs(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
