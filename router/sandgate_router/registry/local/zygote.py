"""A program of ours that has the runtime imported, and is asked to fork sandboxes off.

Three quarters of a start are the runtime's imports. One process has done them, so a sandbox
without isolation starts in the time of a fork. What it forks are children of the gateway, like
those that are started as programs. Asked while it still imports, it answers once it is done.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from sandgate_router.registry.local.process import Process

ANSWER_SECONDS = 20.0
"""How long a fork may take, with the imports before the first one."""

_PROGRAM = Path(__file__).with_name("zygote_program.py")
_MODULES = ("sandgate_runtime.__main__", "sandgate_runtime.server")
_ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What a fork is to become."""

    argv: Sequence[str]
    """The runtime's arguments; the socket to serve is added."""
    environ: Mapping[str, str]
    file_bytes: int
    """Limit on the size of each file."""
    descriptors: int | None
    """Soft limit on open files; None leaves it."""
    uid: int | None
    """The user, and the group of that number, to become; None stays the one it is."""


class Zygote:
    """The process that forks; must be closed."""

    def __init__(self, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        """Start it; raise OSError where that is not possible."""
        self._answer_seconds = answer_seconds
        self._loop = asyncio.get_running_loop()
        self._answers: deque[asyncio.Future[int]] = deque()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            numbers = (str(theirs.fileno()), str(os.getpid()))
            self._process = Process.start(
                [sys.executable, "-I", str(_PROGRAM), *numbers, *_MODULES],
                environ=_ENVIRON,
                pass_fds=(theirs.fileno(),),
            )
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._read)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._control.fileno() >= 0 and not self._process.has_ended

    async def fork(
        self, wanted: ForkRequest, listener: socket.socket, *, on_exit: Callable[[], None]
    ) -> Process:
        """Fork a sandbox that serves `listener`; raise OSError where that fails.

        It does nothing until we hold it and say so: whoever is cancelled, or loses the zygote
        before it has answered, leaves no sandbox.
        """
        with contextlib.ExitStack() as ends:
            told, go = _open_pipe(ends)
            with contextlib.ExitStack() as lent:
                output, sink = _open_pipe(lent)
                answer = self._ask(wanted, (listener.fileno(), sink.fileno(), told.fileno()))
                pid = await self._hear(answer)
                lent.pop_all()
            sink.close()
            process = Process(pid, output, reap=lambda: _wait_for(pid), on_exit=on_exit)
            with contextlib.suppress(BrokenPipeError):  # dead already, as will be heard
                go.write(b"\n")
            return process

    def close(self) -> None:
        """End it; what it has forked lives on."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
        self._process.kill()
        while self._answers:
            self._answers.popleft().set_exception(_ended())

    def _ask(self, wanted: ForkRequest, fds: Sequence[int]) -> "asyncio.Future[int]":
        if not self.alive:
            raise _ended()
        socket.send_fds(self._control, [json.dumps(asdict(wanted)).encode()], fds)
        answer: asyncio.Future[int] = self._loop.create_future()
        self._answers.append(answer)
        return answer

    async def _hear(self, answer: "asyncio.Future[int]") -> int:
        try:
            done, _ = await asyncio.wait([answer], timeout=self._answer_seconds)
        except asyncio.CancelledError:
            answer.add_done_callback(_reap_unwanted)
            raise
        if not done:
            answer.add_done_callback(_reap_unwanted)
            self.close()
            raise TimeoutError(f"nothing was forked within {self._answer_seconds:g} s")
        return answer.result()

    def _read(self) -> None:
        try:
            content = self._control.recv(_ANSWER_BYTES)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:
            self.close()
            return
        said, answer = json.loads(content), self._answers.popleft()
        if "pid" in said:
            answer.set_result(said["pid"])
        else:
            answer.set_exception(OSError(f"no sandbox can be forked: {said['error']}"))


def _open_pipe(stack: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    read, write = os.pipe2(os.O_CLOEXEC)
    reader = stack.enter_context(os.fdopen(read, "rb", buffering=0))
    return reader, stack.enter_context(os.fdopen(write, "wb", buffering=0))


def _reap_unwanted(answer: "asyncio.Future[int]") -> None:
    """End a fork that nobody waits for any more; it waits for us and has done nothing."""
    if answer.exception() is None:
        os.kill(answer.result(), signal.SIGKILL)
        _wait_for(answer.result())


def _wait_for(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _ended() -> OSError:
    return OSError("the process that forks sandboxes has ended")
