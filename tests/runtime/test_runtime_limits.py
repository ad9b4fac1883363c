"""Limits of commands hold for commands, and not for the server."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import uvicorn
from support.runtime_server import RuntimeServer, start_runtime, wait_until

import sandgate_runtime as runtime


def test_a_command_that_burns_its_cpu_time_is_ended_and_the_server_goes_on(
    tmp_path: Path,
) -> None:
    with start_runtime(tmp_path, env={"SANDGATE_COMMAND_CPU_SECONDS": "1"}) as server:
        assert server.run("sh -c 'while :; do :; done'")["exit_code"] == -24
        ignoring = 'trap "" XCPU; while :; do :; done'
        assert server.run(f"sh -c '{ignoring}'")["exit_code"] == -9
        assert server.run("echo on")["stdout"] == "on\n"


def test_a_command_that_takes_too_much_memory_fails_and_the_server_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "take.py").write_text("import sys\nx = bytearray(int(sys.argv[1]) << 20)\n")
    (tmp_path / "reserve.py").write_text(
        "import mmap\nmmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS"
        " | 0x4000, prot=0)\n"
    )
    with start_runtime(tmp_path, env={"SANDGATE_COMMAND_MEMORY_BYTES": "100000000"}) as server:
        assert server.run("python3 take.py 50")["exit_code"] == 0
        failed = server.run("python3 take.py 200")
        assert failed["exit_code"] == 1
        assert "MemoryError" in str(failed["stderr"])
        assert server.run("python3 reserve.py")["exit_code"] == 0  # reserved, never touched


def test_limits_cannot_be_raised_again_and_are_inherited(tmp_path: Path) -> None:
    env = {"SANDGATE_COMMAND_CPU_SECONDS": "7", "SANDGATE_COMMAND_MEMORY_BYTES": "104857600"}
    with start_runtime(tmp_path, env=env) as server:
        assert server.run("sh -c 'sh -c \"ulimit -t; ulimit -d\"'")["stdout"] == "7\n102400\n"
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert "Max cpu time              unlimited            unlimited" in limits


def test_exit_codes_and_texts_stay_true_under_limits(tmp_path: Path) -> None:
    env = {"SANDGATE_COMMAND_CPU_SECONDS": "7", "SANDGATE_MAX_PROCESSES": "500"}
    with start_runtime(tmp_path, env=env) as server:
        assert server.run("nosuch")["stderr"] == (
            "Failed to execute command: [Errno 2] No such file or directory: 'nosuch'"
        )
        (tmp_path / "empty").touch()
        (tmp_path / "empty").chmod(0o755)
        assert "Exec format error: './empty'" in str(server.run("./empty")["stderr"])
        assert server.run("sh -c 'ulimit -u'")["stdout"] in {"500\n", ""}


NOBODY = 65534
SYSTEM_PYTHON = Path("/usr/bin/python3")

BOMB = "bash -c 'f() { f | f & }; f; sleep 30'"


@pytest.fixture
def limited_runtime() -> Iterator[RuntimeServer]:
    """A runtime whose user may have 200 processes; never root, whom the kernel exempts."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o777)
        env = {"SANDGATE_MAX_PROCESSES": "200"}
        if os.getuid() != 0:
            with start_runtime(base, env=env) as server:
                yield server
            return
        # Our own interpreter may lie in a home that only root can enter; the system's does not.
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        if os.path.realpath(SYSTEM_PYTHON) != f"/usr/bin/python{version}":
            pytest.skip(f"no /usr/bin/python{version} that another user could run")
        folders = [str(Path(module.__file__ or "").parents[1]) for module in (runtime, uvicorn)]
        start = (
            f"import sys; sys.path[:0] = {folders!r}; "
            "from sandgate_runtime.__main__ import main; sys.exit(main(sys.argv[1:]))"
        )
        command = (str(SYSTEM_PYTHON), "-I", "-B", "-c", start)
        with start_runtime(base, env=env, command=command, user=NOBODY) as server:
            yield server


def test_a_fork_bomb_meets_the_limit_while_health_and_files_still_answer(
    limited_runtime: RuntimeServer,
) -> None:
    server = limited_runtime
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server.url) as other:
        bomb = pool.submit(server.run, BOMB, timeout_seconds=3)
        wait_until(lambda: "[Errno 11]" in str(server.run("true")["stderr"]))
        slowest = 0.0
        while not bomb.done():
            started = time.monotonic()
            assert other.get("/v1/health").status_code == 200
            slowest = max(slowest, time.monotonic() - started)
            assert server.upload("x", b"y").status_code == 200
        assert bomb.result()["timed_out"]
    assert slowest < 0.3
    assert server.run("echo on")["stdout"] == "on\n"
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: not children.read_text().strip())
