"""Writes the lines of the log from a thread of its own, so that a log nobody reads stalls nothing.

Events, the audit and the access log go through one writer, so no line breaks into another. A
pipe that is full blocks that thread alone: lines wait for it up to a bound, and what comes on
top is dropped and counted.

The thread writes to the descriptor itself and past `sys.stderr`, whose lock it would hold for as
long as the pipe is full.
"""

import io
import queue
import select
import threading
from typing import Protocol

MAX_WAITING_LINES = 10_000
"""Lines that wait for a slow reader of the log, 3 MiB; what comes on top is dropped."""

CLOSE_SECONDS = 1.0
"""How long the last lines may take when the gateway ends."""

_STDERR = 2

_Lines = queue.SimpleQueue[str | None]


class Sink(Protocol):
    """Where bytes go without a buffer in between."""

    def write(self, data: bytes | memoryview, /) -> int | None:
        """Write some; return how many, None where it would block."""

    def fileno(self) -> int:
        """Return its descriptor."""


class LineWriter:
    """Takes lines at any pace, and writes them at the pace of their reader."""

    def __init__(self, sink: Sink | None = None) -> None:
        """Write to `sink`, by default standard error."""
        self._sink: Sink = sink or io.FileIO(_STDERR, "w", closefd=False)
        self._lines: _Lines = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Lines that were not written."""

    def __repr__(self) -> str:
        return f"<LineWriter {self._lines.qsize()} waiting, {self.dropped} dropped>"

    def write(self, line: str) -> None:
        """Have a line written soon; drop it when too many wait already."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(self._lines,), name="log-lines", daemon=True
            )
            self._thread.start()
        if self._lines.qsize() >= MAX_WAITING_LINES:
            self.dropped += 1
        else:
            self._lines.put(line)

    def close(self) -> None:
        """Write what waits, unless it takes longer than a second; a later line begins anew."""
        if self._thread is None:
            return
        self._lines.put(None)
        self._thread.join(CLOSE_SECONDS)
        # One that is held up stays with its lines, and ends with the process.
        self._thread, self._lines = None, queue.SimpleQueue()

    def _run(self, lines: _Lines) -> None:
        while (line := lines.get()) is not None:
            try:
                self._write(line.encode("utf-8", "backslashreplace"))
            except (OSError, ValueError):  # the reader is gone, or the descriptor is closed
                self.dropped += 1

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            written = self._sink.write(rest)
            if written is None:  # somebody we share it with made it non-blocking
                select.select((), (self._sink,), ())
            else:
                rest = rest[written:]
