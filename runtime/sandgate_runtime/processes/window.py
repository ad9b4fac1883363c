"""The first and the last bytes of an output that may be without end.

Pure. Memory is bounded by the window, whatever the number and size of the writes: two byte
arrays, never a list of pieces, because a command that writes single bytes would make 40 bytes
of overhead out of each.
"""

import codecs
from collections.abc import Iterator

HALF_BYTES = 8 * 1024 * 1024
"""Kept of the start and of the end: 16 MiB, far above what a model or a person reads."""

_PIECE_BYTES = 64 * 1024


class OutputWindow:
    """Takes bytes; keeps the first half and the last half."""

    def __init__(self, *, half: int = HALF_BYTES) -> None:
        self._half = half
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    @property
    def truncated(self) -> bool:
        """Whether anything was dropped between the two halves."""
        return self._dropped + max(0, len(self._tail) - self._half) > 0

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return len(self._head) + min(len(self._tail), self._half)

    @property
    def at_line_start(self) -> bool:
        """Whether the output is empty or ends with a newline."""
        return (self._tail or self._head or b"\n").endswith(b"\n")

    def add(self, content: bytes) -> None:
        """Take the next bytes of the output."""
        room = self._half - len(self._head)
        self._head += content[:room]
        self._tail += content[room:]
        # Cut only once the tail is a quarter too long: each cut moves the rest.
        if len(self._tail) > self._half + self._half // 4:
            self._cut()

    def text(self) -> Iterator[str]:
        """Return what was kept, in pieces; what is no UTF-8 becomes U+FFFD."""
        self._cut()
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for piece in _pieces(self._head):
            yield decoder.decode(piece)
        if self._dropped:
            # The gap may cut through a character on either side.
            yield decoder.decode(b"", final=True)
            decoder.reset()
        for piece in _pieces(self._tail):
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)

    def _cut(self) -> None:
        surplus = len(self._tail) - self._half
        if surplus > 0:
            del self._tail[:surplus]
            self._dropped += surplus


def _pieces(content: bytearray) -> Iterator[bytes]:
    for start in range(0, len(content), _PIECE_BYTES):
        yield bytes(content[start : start + _PIECE_BYTES])
