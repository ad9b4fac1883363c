"""One line for a request, or for one of N: who asked what of which sandbox, and what came of it.

    {"event": "request", "time": "…", "method": "POST", "path": "/execute", "status": 200, …}

Queries, credentials and content never enter: the path ends at its `?`, and no field of the
request is written but the ones that name the sandbox. Which requests are written is decided by
counting, so that one in N costs 0.1 µs and the N-th 20.
"""

import json
import queue
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TextIO

from sandgate_router.head import RequestHead
from sandgate_router.target import ID, PORT

MAX_PATH = 512
"""Characters of a path in a line. Longer ones are cut; they are data rather than names."""


MAX_WAITING_LINES = 10_000
"""Lines that wait for a slow reader of the log, 3 MiB; what comes on top is dropped."""

CLOSE_SECONDS = 1.0
"""How long the last lines may take when the gateway ends."""


class LineWriter:
    """Writes lines from a thread of its own, so that a log that nobody reads stalls nothing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, by default standard error, where the other events go."""
        self._stream = stream
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Lines that were not written."""

    def write(self, line: str) -> None:
        """Have a line written soon; drop it when too many wait already."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
            self._thread.start()
        if self._lines.qsize() >= MAX_WAITING_LINES:
            self.dropped += 1
        else:
            self._lines.put(line)

    def close(self) -> None:
        """Write what waits, unless it takes longer than a second."""
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(CLOSE_SECONDS)
            self._thread = None

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            stream = sys.stderr if self._stream is None else self._stream
            try:
                stream.write(line)
                stream.flush()
            except (OSError, ValueError):  # the reader is gone, or the stream is closed
                self.dropped += 1


class AccessLog:
    """Writes every N-th request."""

    __slots__ = ("_every", "_left", "_now", "_writer")

    def __init__(
        self,
        every: int,
        *,
        writer: LineWriter | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Write one of `every` requests; 0 writes none."""
        self._every: Final = every
        self._left = every
        self._writer = writer or LineWriter()
        self._now = now

    def __repr__(self) -> str:
        return f"<AccessLog {f'1/{self._every}' if self._every else 'off'}>"

    def is_due(self) -> bool:
        """Count a request; tell whether it is one to write."""
        self._left -= 1
        if self._left == 0:
            self._left = self._every
            return True
        return False

    def record(
        self, head: RequestHead, *, client: bytes, namespace: str, status: int, seconds: float
    ) -> None:
        """Write one request.

        Args:
            client: the address of the connection's other end.
            namespace: the sandbox's, or `-` where the request is for none.
            seconds: from its head to the end of the answer.
        """
        path = head.target.partition(b"?")[0][:MAX_PATH]
        line = {
            "event": "request",
            "time": self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "client": client.decode("latin-1"),
            "method": head.method.decode("latin-1"),
            "path": path.decode("latin-1"),
            "namespace": namespace,
            "sandbox": _text(head, ID, "-"),
            "port": _text(head, PORT, "8888"),
            "status": status,
            "seconds": round(seconds, 6),
        }
        self._writer.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()


def _text(head: RequestHead, name: bytes, default: str) -> str:
    # Checked where the request was answered by its sandbox; where it was refused it may be
    # anything, and JSON escapes what could break a line.
    return head.values[name][:64].decode("latin-1") if head.values.get(name) else default
