"""Programs of a measurement: started on their core, their CPU time read, always ended."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PROXY_CORE, LOAD_CORE = 0, 1

START_SECONDS = 30.0

CLIENT_SECONDS = 120.0
"""Longest life of a client: a proxy that hangs must not hold the run."""

ENOUGH_DESCRIPTORS = 65536
"""More is not asked for: some programs keep a table as long as their limit."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process and of its children, to the nanosecond."""
    return (
        sum(
            int((task / "schedstat").read_text().split()[0])
            for one in _family(pid)
            for task in Path(f"/proc/{one}/task").iterdir()
        )
        / 1e9
    )


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in _family(pid))
    return pages * os.sysconf("SC_PAGE_SIZE")


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process and its children; what is shared counts in part."""
    kilobytes = 0
    for one in _family(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                kilobytes += int(line.split()[1])
    return kilobytes * 1024


def raise_descriptor_limit() -> int:
    """Let the programs that are started open as many files as they need; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    wanted = max(soft, min(allowed, ENOUGH_DESCRIPTORS))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    core: int,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run a program on one core; it is ended with the context."""
    cores = os.sched_getaffinity(0)
    wanted = {core} if core in cores and len(cores) > 1 else cores
    with contextlib.ExitStack() as stack:
        errors = None if log is None else stack.enter_context(log.open("ab"))
        process = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, wanted)), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **(settings or {})},
        )
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
            process.kill()
            process.wait()


def read_line(process: "subprocess.Popen[str]", start: str) -> str:
    """Return the next line that a program prints; raise RuntimeError when it is another."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith(start):
        raise RuntimeError(f"{process.args!r} did not start: {line!r}")
    return line.strip()


def wait_for_port(process: "subprocess.Popen[str]", port: int) -> None:
    """Wait until a program listens; raise RuntimeError when it ends instead."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} does not listen on {port}")
        time.sleep(0.02)


def unused_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_program(*arguments: str, core: int = LOAD_CORE) -> str:
    """Run one of our own modules to its end and return what it printed; raise RuntimeError."""
    with running([sys.executable, "-m", *arguments], core=core) as process:
        try:
            output, _ = process.communicate(timeout=CLIENT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{arguments!r} came to no end") from error
    if process.returncode:
        raise RuntimeError(f"{arguments!r} ended with {process.returncode}")
    return output


def _family(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _family(int(child))
    return found
