"""`sandgate up` as a real child process, and the proof that it leaves nothing behind.

While one runs, this process takes in every process that loses its parent (it is their
"subreaper"), so nothing that a gateway has started can slip away unseen, whatever killed it.
"""

import contextlib
import ctypes
import functools
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import httpx
import pytest

from sandgate import Gateway, Sandbox, Sandboxes

SANDGATE = str(Path(sys.executable).with_name("sandgate"))
"""The command as pip installs it."""

START_SECONDS = 60.0
STOP_SECONDS = 45.0
"""Bounds for a start and an end on a slow machine; each takes less than a second."""

GONE_SECONDS = 10.0
"""How long processes may take to be gone after the gateway is."""

POOL: Mapping[str, object] = {"name": "python", "warm": 1, "max": 8}

_PR_SET_CHILD_SUBREAPER = 36
_ADOPTERS = 0


class SystemGateway:
    """A gateway that listens."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", errors: IO[bytes], temporary: Path
    ) -> None:
        self.process = process
        self.temporary = temporary
        """Its TMPDIR, which belongs to it alone."""
        self._errors = errors
        self._printed = b""
        self.url = self.read_line("listening on ")

    @property
    def pid(self) -> int:
        return self.process.pid

    def read_line(self, start: str) -> str:
        """Return what follows `start` on the next line of standard output."""
        line = self._read_line()
        assert line.startswith(start), (line, self.errors())
        return line.removeprefix(start).strip()

    def read_rest(self) -> str:
        """Return what it has printed after the lines that were read, once it has ended."""
        assert self.process.stdout is not None
        return (self._printed + self.process.stdout.read()).decode()

    def errors(self) -> str:
        """Return all it has written to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def sandboxes(self) -> Sandboxes:
        return Sandboxes(Gateway(self.url))

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; return the exit code, negative after a signal."""
        return self.process.wait(STOP_SECONDS)

    def runtimes(self) -> list[int]:
        """Return the processes that serve inside sandboxes."""
        found = []
        for pid in descendants(self.pid):
            words = command_line(pid)
            program = "python" in words[0] and words[1:4] == ["-I", "-m", "sandgate_runtime"]
            if program or process_name(pid) == "sandbox-runtime":  # the latter is a fork
                found.append(pid)
        return found

    def _read_line(self) -> str:
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._printed:
                assert selector.select(deadline - time.monotonic()), "nothing printed in time"
                chunk = os.read(self.process.stdout.fileno(), 4096)
                assert chunk, f"it ended: {self.errors()}"
                self._printed += chunk
        line, _, self._printed = self._printed.partition(b"\n")
        return line.decode()


def routing_fields(sandbox: Sandbox, **more: str) -> dict[str, str]:
    """Return what a client of anybody's sends to a sandbox, its token included."""
    assert sandbox.record.token is not None
    return {"X-Sandbox-ID": sandbox.id, "X-Sandbox-Token": sandbox.record.token, **more}


@contextlib.contextmanager
def sandgate_up(
    *arguments: str,
    isolation: str,
    environ: Mapping[str, str] | None = None,
    pool: Mapping[str, object] | None = None,
    temporary: Path | None = None,
    start_new_session: bool = False,
    command: Sequence[str] = (SANDGATE,),
) -> Iterator[SystemGateway]:
    """Start a gateway; at the end stop it, unless the test has, and prove that nothing is left.

    `pool` changes members of its one pool; `command` runs `sandgate` in a way of the test's. In
    a `temporary` of the caller's, and after a kill, files may be left.
    """
    with scratch_folder() as folder, nothing_left_running(), tempfile.TemporaryFile() as errors:
        own = temporary is None
        if temporary is None:
            temporary = folder / "tmp"
            temporary.mkdir()
        pools = folder / "pools.yaml"
        pools.write_text(json.dumps({"pools": [{**POOL, **(pool or {})}]}))  # JSON is YAML
        process = subprocess.Popen(
            [
                *(*command, "up", "--listen", "127.0.0.1:0", "--pools", str(pools)),
                *("--isolation", isolation, *arguments),
            ],
            env=build_environment(TMPDIR=str(temporary), **(environ or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=start_new_session,
        )
        try:
            gateway = SystemGateway(process, errors, temporary)
            yield gateway
            if process.poll() is None:
                gateway.signal(signal.SIGINT)
                assert gateway.wait() == 0, gateway.errors()
                assert not own or not list(temporary.iterdir())
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def run_sandgate(
    *arguments: str, environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command line that ends by itself, with a private temporary folder."""
    with scratch_folder() as folder, nothing_left_running():
        done = subprocess.run(
            [SANDGATE, *arguments],
            env=build_environment(TMPDIR=str(folder), **(environ or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )
        assert not list(folder.iterdir())
        return done


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder with a short path (unix sockets lie below it) that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="sgs-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def build_environment(**more: str) -> dict[str, str]:
    """Return an environment without settings and proxies, changed by `more`."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", **more}


@functools.cache
def bubblewrap_fault() -> str | None:
    """Return why bubblewrap does not work on this machine, by its own words; None if it does."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    done = subprocess.run(
        [
            *("bwrap", "--unshare-all", "--unshare-user", "--disable-userns"),
            *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"bubblewrap does not work: {done.stderr.strip()}"


def need(isolation: str) -> None:
    """Skip the test where this isolation does not work."""
    if isolation == "bubblewrap" and (fault := bubblewrap_fault()) is not None:
        pytest.skip(fault)


def build_path_without_bubblewrap(folder: Path) -> str:
    """Return a search path with every program of this one but bwrap."""
    for place in os.get_exec_path():
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name != "bwrap" and not os.path.lexists(link):
                link.symlink_to(program)
    return str(folder)


@contextlib.contextmanager
def nothing_left_running() -> Iterator[None]:
    """Fail if a process that was started inside outlives the block; it is then killed."""
    with _adopting():
        before = children(os.getpid())
        try:
            yield
        finally:
            left = _await_gone(before)
        assert not left, left


def wait_until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    """Poll for something that announces itself by no event; fail when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def descendants(pid: int) -> set[int]:
    """Return all processes below one."""
    found: set[int] = set()
    for child in children(pid):
        found |= {child} | descendants(child)
    return found


def command_line(pid: int) -> list[str]:
    """Return a process's words; one empty word when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def process_name(pid: int) -> str:
    """Return a process's short name; none when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def find_command(pids: Sequence[int] | set[int], *words: str) -> list[int]:
    """Return those of the processes that run these words."""
    return [pid for pid in pids if command_line(pid)[: len(words)] == list(words)]


def memory(pid: int, member: str) -> int:
    """Return a member of /proc/PID/status, such as VmRSS, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{member}:"))


def unique_seconds() -> str:
    """Return an argument of `sleep` by which to find that one again: hours, and never the same."""
    return f"{36000 + secrets.randbelow(10**6)}.{secrets.randbelow(10**6)}"


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    global _ADOPTERS  # noqa: PLW0603 - a property of the process, and blocks may nest
    _ADOPTERS += 1
    _set_subreaper(1)
    try:
        yield
    finally:
        _ADOPTERS -= 1
        if _ADOPTERS == 0:
            _set_subreaper(0)


def _set_subreaper(value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, value, 0, 0, 0) == 0, ctypes.get_errno()


def _await_gone(before: set[int]) -> list[str]:
    """Reap all new children; kill those that stay too long, and return them in words."""
    left: list[str] = []
    deadline = time.monotonic() + GONE_SECONDS
    while new := children(os.getpid()) - before:
        for pid in new:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            left.extend(" ".join(command_line(pid)) for pid in new)
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return left


def children(pid: int) -> set[int]:
    """Return a process's children, dead ones that are not reaped included."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.update(map(int, (task / "children").read_text().split()))
    return found
