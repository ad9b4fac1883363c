"""The real runtime as a process, and what tests need to know of the processes in it."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx

RUNTIME = (sys.executable, "-I", "-m", "sandgate_runtime")
START_SECONDS = 20


class RuntimeServer:
    """A runtime on its own port, with its own base directory."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, base: Path) -> None:
        self.process = process
        self.url = url
        self.base = base
        self.client = httpx.Client(base_url=url, timeout=30)

    def execute(self, command: str, **members: object) -> httpx.Response:
        return self.client.post("/execute", json={"command": command, **members})

    def run(self, command: str, **members: object) -> dict[str, object]:
        answer = self.execute(command, **members)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert isinstance(body, dict)
        return body

    def upload(self, path: str, content: bytes) -> httpx.Response:
        return self.client.post("/upload", files={"file": (path, content)})

    def running(self) -> int:
        return int(self.client.get("/v1/health").json()["running"])

    def resident_bytes(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))


def build_environment(base: Path, **more: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(base),
        "LANG": "C.UTF-8",
        "SANDBOX_BASE_DIR": str(base),
        **more,
    }


@contextlib.contextmanager
def start_runtime(
    base: Path,
    *,
    env: Mapping[str, str] | None = None,
    arguments: Sequence[str] = ("--port", "0"),
    pass_fds: Sequence[int] = (),
    url: str | None = None,
    command: Sequence[str] = RUNTIME,
    user: int | None = None,
) -> Iterator[RuntimeServer]:
    """Start a runtime; with `url` given it serves inherited sockets and says nothing."""
    process = subprocess.Popen(
        [*command, *arguments],
        env=build_environment(base, **(env or {})),
        stdout=subprocess.PIPE,
        pass_fds=tuple(pass_fds),
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        text=True,
    )
    server = None
    try:
        server = RuntimeServer(process, url or _read_url(process), base)
        yield server
    finally:
        if server is not None:
            server.client.close()
        process.terminate()
        try:
            process.wait(15)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def wait_until(condition: Callable[[], object], *, seconds: float = 10) -> None:
    """Poll for something that must come true; fail when it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        threading.Event().wait(0.01)


def is_alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def read_pid(path: Path) -> int:
    """Wait until a command has written a process id to a file."""
    wait_until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def kill_quietly(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def listen_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def _read_url(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(START_SECONDS), "the runtime did not start in time"
    line = process.stdout.readline()
    assert line.startswith("listening on http://"), line
    return line.split()[-1]
