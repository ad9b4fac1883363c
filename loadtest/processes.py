"""Programs of a measurement: started on their core, their CPU time read, always ended."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from loadtest.stubs import address

PROXY_CORE, LOAD_CORE = 0, 1


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def stub_sandboxes(count: int) -> Iterator[None]:
    """Run the stub sandboxes."""
    with _running([sys.executable, "-m", "loadtest.stubs", str(count)], core=LOAD_CORE) as process:
        _read_line(process, "ready")
        yield


@contextlib.contextmanager
def gateway(sandboxes: int) -> Iterator[tuple[int, int]]:
    """Run our gateway over static addresses; yield its process id and port."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write("sandboxes:\n")
        for index in range(sandboxes):
            file.write(f"  - {{id: sb-{index}, uid: u-{index}, host: {address(index)}}}\n")
        file.flush()
        settings = {
            "SANDGATE_LISTEN": "127.0.0.1:0",
            "SANDGATE_METRICS_LISTEN": "127.0.0.1:0",
            "SANDGATE_REGISTRY": f"static:{file.name}",
        }
        command = [sys.executable, "-m", "sandgate_router", "up"]
        with _running(command, core=PROXY_CORE, settings=settings) as process:
            line = _read_line(process, "listening on ")
            yield process.pid, int(line.rsplit(":", 1)[1])


def run_load(*, port: int, connections: int, sandboxes: int, seconds: float) -> str:
    """Run the load to its end and return the line that it printed."""
    command = [sys.executable, "-m", "loadtest.load", "--port", str(port)]
    command += ["--connections", str(connections), "--sandboxes", str(sandboxes)]
    command += ["--seconds", str(seconds)]
    with _running(command, core=LOAD_CORE) as process:
        output, _ = process.communicate(timeout=seconds * 10 + 60)
    return output


@contextlib.contextmanager
def _running(
    command: Sequence[str], *, core: int, settings: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    cores = os.sched_getaffinity(0)
    wanted = {core} if core in cores and len(cores) > 1 else cores
    process = subprocess.Popen(
        ["taskset", "--cpu-list", ",".join(map(str, wanted)), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(settings or {})},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _read_line(process: subprocess.Popen[str], start: str) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith(start):
        raise RuntimeError(f"{process.args!r} did not start: {line!r}")
    return line.strip()
