"""The writing end of a command's standard input.

Writers stand in line, and each waits while the command does not read. A command that ends or
closes its input early is no error: whoever writes is told how much was taken (EPIPE says so).
"""

import asyncio
import contextlib
import os

END_OF_FILE = b"\x04"
"""What a terminal takes for the end of its input at the start of a line (VEOF, termios(3))."""

_PIECE_BYTES = 64 * 1024


class CommandInput:
    """Writes to one descriptor without ever blocking the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, *, terminal: bool = False
    ) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._terminal = terminal
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Future[None] | None = None
        self.open = True
        """Whether the command may still get input."""
        os.set_blocking(descriptor, False)

    def __repr__(self) -> str:
        return f"<CommandInput {'open' if self.open else 'closed'}>"

    async def write(self, content: bytes) -> int:
        """Write all of it, as fast as the command reads; return how much was taken."""
        async with self._turn:
            view, taken = memoryview(content), 0
            while taken < len(view) and self.open:
                try:
                    taken += os.write(self._descriptor, view[taken : taken + _PIECE_BYTES])
                except BlockingIOError:
                    await self._until_writable()
                except OSError:
                    # EPIPE of a pipe, EIO of a terminal: nobody reads any more.
                    self.close()
            return taken

    async def end(self) -> None:
        """Let the command read the end of its input, after all that was written before."""
        if self._terminal:
            await self.write(END_OF_FILE)
            return
        async with self._turn:
            self.close()

    def close(self) -> None:
        """Close at once; writers that wait are told what was taken."""
        if not self.open:
            return
        self.open = False
        if self._waiting is not None:
            self._loop.remove_writer(self._descriptor)
            if not self._waiting.done():
                self._waiting.set_result(None)
        os.close(self._descriptor)

    async def _until_writable(self) -> None:
        waiting = self._waiting = self._loop.create_future()
        self._loop.add_writer(self._descriptor, _wake, waiting)
        try:
            await waiting
        finally:
            self._waiting = None
            if self.open:
                self._loop.remove_writer(self._descriptor)


def _wake(waiting: "asyncio.Future[None]") -> None:
    with contextlib.suppress(asyncio.InvalidStateError):
        waiting.set_result(None)
