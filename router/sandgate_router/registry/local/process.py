"""One child process: started without any descriptor of ours, heard to its end, reaped.

`subprocess.Popen` and not the event loop's own start: uvloop was seen to pass descriptors to
the child that nobody named (its signal pipe, inheritable ones of the caller). And the parent
death signal is bound to the thread that started the child: here it is the loop's thread.

Each child has a session of its own. Ctrl-C in a terminal signals the whole group of the
gateway, which is to end its sandboxes in order; and no child can type into that terminal.
"""

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Self

MAX_TAIL_BYTES = 4096
"""How much of the last output is kept, to say why a process ended."""

_READ_BYTES = 65536


class Process:
    """A running child; `exited` is done with its return code once it is reaped."""

    def __init__(
        self,
        pid: int,
        output: IO[bytes],
        *,
        reap: Callable[[], int],
        on_exit: Callable[[], None] | None = None,
    ) -> None:
        """Take a child that nobody else waits for, and the pipe that it writes to.

        `reap` waits for it and returns its exit code, negative after a signal.
        """
        self._loop = asyncio.get_running_loop()
        self._on_exit = on_exit
        self._tail = b""
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self.pid = pid
        self._reap_child = reap
        self._output = output
        os.set_blocking(output.fileno(), False)
        self._pidfd = os.pidfd_open(pid)
        self._loop.add_reader(output.fileno(), self._read)
        self._loop.add_reader(self._pidfd, self._reap)

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        on_exit: Callable[[], None] | None = None,
    ) -> Self:
        """Start a program."""
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            close_fds=True,
            pass_fds=pass_fds,
            env=environ,
            cwd="/",
            start_new_session=True,
        )
        assert child.stdout is not None
        return cls(child.pid, child.stdout, reap=child.wait, on_exit=on_exit)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the child has ended."""
        if not self.exited.done():
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End it at once and wait until it is gone: for a program that holds nothing."""
        if not self.exited.done():
            self.send_signal(signal.SIGKILL)
            self._reap()

    async def wait(self, timeout: float) -> bool:
        """Wait for the end; tell whether it came in time."""
        await asyncio.wait([self.exited], timeout=timeout)
        return self.exited.done()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended by now, heard of or not."""
        if self.exited.done():
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def succeeded(self) -> bool:
        """Whether it has ended with exit code 0."""
        return self.exited.done() and self.exited.result() == 0

    def describe_end(self) -> str:
        """Return in words how the child ended, with the last it said."""
        code = self.exited.result() if self.exited.done() else None
        if code is None:
            how = "still runs"
        elif code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        lines = self._tail.decode(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip()}" if lines else how

    @property
    def tail(self) -> str:
        """The last that the child wrote to standard output and error."""
        return self._tail.decode(errors="replace").strip()

    def _read(self) -> None:
        try:
            chunk = os.read(self._output.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self._tail = (self._tail + chunk)[-MAX_TAIL_BYTES:]
        else:
            self._close_output()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._reap_child()  # does not block: the descriptor says that it has ended
        if not self._output.closed:
            self._read()
        self._close_output()  # a grandchild may hold the other end for ever
        self.exited.set_result(code)
        if self._on_exit is not None:
            self._on_exit()

    def _close_output(self) -> None:
        if not self._output.closed:
            self._loop.remove_reader(self._output.fileno())
            self._output.close()
