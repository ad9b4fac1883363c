"""Output on its way to one reader, bounded: above the high mark the command has to wait.

Between a pipe, which calls when it has something, and an event stream, which takes the next
piece when the reader has taken the last.
"""

import asyncio
from collections import deque

from sandgate_runtime.processes.ending import Stream
from sandgate_runtime.processes.event_log import HIGH_BYTES, LOW_BYTES
from sandgate_runtime.processes.process import Process


class Outbox:
    """A queue of output pieces that pauses and resumes its process."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._pieces: deque[tuple[Stream, bytes]] = deque()
        self._size = 0
        self._paused = False
        self._finished = False
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = "paused" if self._paused else "flowing"
        return f"<Outbox {len(self._pieces)} pieces, {self._size} bytes, {state}>"

    def attach(self, process: Process) -> None:
        """Say whose output this is."""
        self._process = process

    def put(self, stream: Stream, content: bytes) -> None:
        """Add a piece."""
        self._pieces.append((stream, content))
        self._size += len(content)
        self._changed.set()
        if self._size > HIGH_BYTES and not self._paused and self._process is not None:
            self._paused = True
            self._process.pause_output()

    def finish(self) -> None:
        """Say that no piece follows."""
        self._finished = True
        self._changed.set()

    async def get(self) -> tuple[Stream, bytes] | None:
        """Return the next piece, or None after the last."""
        while not self._pieces:
            if self._finished:
                return None
            self._changed.clear()
            await self._changed.wait()
        stream, content = self._pieces.popleft()
        self._size -= len(content)
        if self._paused and self._size < LOW_BYTES and self._process is not None:
            self._paused = False
            self._process.resume_output()
        return stream, content
