"""The reading ends of a command's standard output and standard error, or of its terminal.

A pipe is read when it has something, and not while its reader is behind: then it fills up and
the kernel makes the command wait. It ends with the last writer, or, once the command itself has
ended, after as many bytes as it may still have held: a child in the background that keeps the
pipe open, and may write for ever, does not hold the answer.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024
"""The size of a pipe; a larger read would find no more."""

TERMINAL_BYTES = 64 * 1024
"""More than a terminal holds that nobody reads."""

MAX_ABANDONED = 64
"""Pipes kept open for children in the background; the oldest is closed first."""

ABANDONED_PAUSE = 0.02
"""Seconds between two reads that are thrown away: 3 MB/s per pipe cost no measurable time."""


class OutputPipe:
    """Calls `on_content` with the bytes of one pipe."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, reader: int, on_content: Callable[[bytes], None]
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._on_content = on_content
        os.set_blocking(reader, False)
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when nothing more will be read."""
        self._closed = False
        """Whether the last writer is gone."""
        self._left: int | None = None
        self._reading = False
        self._released = False

    def pause(self) -> None:
        """Read no more until `resume`."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._reader)

    def resume(self) -> None:
        """Read again."""
        if not (self._reading or self._released or self.ended.done()):
            self._reading = True
            self._loop.add_reader(self._reader, self._read)

    def expect_no_more(self) -> None:
        """The command has ended: read at most what the pipe can hold by now."""
        if self._left is None:
            self._left = _capacity(self._reader)

    def release(self) -> int | None:
        """Stop reading; return the descriptor if someone else still writes, else close it."""
        self.pause()
        self._released = True
        if self._closed:
            os.close(self._reader)
            return None
        return self._reader

    def discard(self) -> None:
        """Close; for a command that did not start."""
        os.close(self._reader)

    def _read(self) -> None:
        try:
            content = os.read(self._reader, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            content = b""  # EIO: the last program has left the terminal
        if not content:
            self._closed = True
            self._end()
            return
        self._on_content(content)
        if self._left is not None:
            self._left -= len(content)
            if self._left <= 0:
                self._end()

    def _end(self) -> None:
        self.pause()
        if not self.ended.done():
            self.ended.set_result(None)


def _capacity(reader: int) -> int:
    try:
        return fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
    except OSError:
        return TERMINAL_BYTES


class AbandonedPipes:
    """Keeps pipes empty whose command is over but whose writers are not.

    Closing them would kill a server in the background at its next line of log (SIGPIPE).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, asyncio.TimerHandle | None] = {}

    def take(self, descriptor: int) -> None:
        """Read and throw away until the last writer is gone."""
        if len(self._waiting) >= MAX_ABANDONED:
            self._drop(next(iter(self._waiting)))
        self._waiting[descriptor] = None
        self._listen(descriptor)

    def close(self) -> None:
        """Close them all."""
        for descriptor in list(self._waiting):
            self._drop(descriptor)

    def _listen(self, descriptor: int) -> None:
        self._waiting[descriptor] = None
        self._loop.add_reader(descriptor, self._discard, descriptor)

    def _discard(self, descriptor: int) -> None:
        try:
            content = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            content = b"nothing yet"
        except OSError:
            content = b""
        if not content:
            self._drop(descriptor)
            return
        self._loop.remove_reader(descriptor)
        self._waiting[descriptor] = self._loop.call_later(ABANDONED_PAUSE, self._listen, descriptor)

    def _drop(self, descriptor: int) -> None:
        timer = self._waiting.pop(descriptor)
        if timer is not None:
            timer.cancel()
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
