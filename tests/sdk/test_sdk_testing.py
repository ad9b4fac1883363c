"""What users' own tests get: a real gateway, a scripted one, and fixtures for pytest."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from support.system_gateway import nothing_left_running

from sandgate import CommandResult, CommandTimeout, SandboxNotFound
from sandgate.errors import ClaimExists, ClaimNotFound, NotSupported
from sandgate.testing import FakeGateway, GatewayRefused, running_gateway

DOCUMENTED = [
    "sandgate.connections",
    "sandgate.testing.fake",
    "sandgate._sandbox.commands",
    "sandgate._sandbox.sandboxes",
    "sandgate._async_sandbox.commands",
    "sandgate._async_sandbox.sandboxes",
]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_examples_of_the_documentation_run(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"CommandResult": CommandResult})
    assert result.attempted > 0
    assert result.failed == 0


def test_a_real_gateway_is_there_for_a_block_and_leaves_nothing() -> None:
    with nothing_left_running():
        with (
            running_gateway(isolation="none") as gateway,
            gateway.sandboxes() as sandboxes,
            sandboxes.claim("python") as sandbox,
        ):
            assert sandbox.commands.run("echo real").stdout == "real\n"
        with (
            pytest.raises(GatewayRefused, match="SANDGATE_ISOLATION"),
            running_gateway(isolation="wrong"),  # type: ignore[arg-type]
        ):
            raise AssertionError("it started")


def test_a_scripted_command_answers_what_its_script_says() -> None:
    fake = FakeGateway(
        {
            "text": "out\n",
            "bytes": b"\xff",
            "result": CommandResult("o", "e", 3, "exited", 0.5),
            "slow": CommandResult("half", "", 143, "timeout", 1.0, signal=15),
            "echo 'two words'": lambda line: f"ran {line}",
        }
    )
    with fake.sandboxes() as sandboxes, sandboxes.claim("python", env={"A": "1"}) as sandbox:
        run = sandbox.commands.run
        assert run("text").stdout == "out\n"
        assert run("bytes").stdout_bytes == b"\xff"
        assert (run("result").stderr, run("result").exit_code) == ("e", 3)
        assert run(["echo", "two words"]).stdout == "ran echo 'two words'"
        assert run("unheard of").exit_code == 127
        with pytest.raises(CommandTimeout) as caught:
            run("slow", timeout=1)
        assert caught.value.stdout == "half"
        process = sandbox.commands.start("text")
        assert process.wait().stdout == "out\n"
    assert fake.commands[:2] == ["text", "bytes"]
    assert fake.live == {}


def test_files_are_kept_for_each_sandbox_in_memory() -> None:
    fake = FakeGateway()
    with fake.sandboxes() as sandboxes, sandboxes.claim("python", name="a") as sandbox:
        sandbox.files.write("d/x.txt", "é")
        assert sandbox.files.read_text("/home/user/d/x.txt") == "é"
        assert [entry.name for entry in sandbox.files.list()] == ["d"]
        assert sandbox.files.exists("d/x.txt")
        with pytest.raises(FileNotFoundError):
            sandbox.files.read("missing")
        with sandboxes.claim("python", name="b") as other:
            assert not other.files.exists("d/x.txt")
        with pytest.raises(ClaimExists):
            sandboxes.claim("python", name="a")
        assert fake.live["a"].files == {"/home/user/d/x.txt": "é".encode()}
        sandbox.files.remove("d", recursive=True)
        assert sandbox.files.list() == []


def test_it_refuses_what_it_cannot_do_and_what_is_gone() -> None:
    with FakeGateway().sandboxes() as sandboxes:
        sandbox = sandboxes.claim("python")
        with pytest.raises(NotSupported):
            sandbox.files.glob("*")
        sandbox.release()
        with pytest.raises(SandboxNotFound):
            sandbox.commands.run("x")


def test_a_handle_of_a_claim_that_ended_leaves_the_next_one_of_its_name_alone() -> None:
    fake = FakeGateway()
    with fake.sandboxes() as sandboxes:
        first = sandboxes.claim("python", name="a")
        sandboxes.release("a")
        second = sandboxes.claim("python", name="a")
        with pytest.raises(ClaimNotFound):
            first.renew()
        first.release()
        assert [one.id for one in fake.live.values()] == [second.id]


def test_the_fixtures_of_the_plugin_work_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["sandgate.testing.plugin"]\n')
    (tmp_path / "test_mine.py").write_text(
        "def test_real(sandgate_sandbox):\n"
        "    assert sandgate_sandbox.commands.run('echo x').stdout == 'x\\n'\n"
        "def test_fake(fake_gateway):\n"
        "    fake_gateway.script['x'] = 'y'\n"
        "    with fake_gateway.sandboxes() as s:\n"
        "        assert s.claim('p').commands.run('x').stdout == 'y'\n"
    )
    with nothing_left_running():
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    assert "2 passed" in done.stdout, done.stdout
