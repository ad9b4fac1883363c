"""One line for a request, or for one of N: who asked what of which sandbox, and what came of it.

    {"event": "request", "time": "…", "method": "POST", "path": "/execute", "status": 200, …}

Queries, credentials and content never enter: the path ends at its `?`, and no field of the
request is written but the ones that name the sandbox. Which requests are written is decided by
counting, so that one in N costs 0.1 µs and the N-th 20.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from sandgate_router.head import RequestHead
from sandgate_router.line_writer import LineWriter
from sandgate_router.target import ID, PORT

MAX_PATH = 512
"""Characters of a path in a line. Longer ones are cut; they are data rather than names."""


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


def _text(head: RequestHead, name: bytes, default: str) -> str:
    # Checked where the request was answered by its sandbox; where it was refused it may be
    # anything, and JSON escapes what could break a line.
    return head.values[name][:64].decode("latin-1") if head.values.get(name) else default
