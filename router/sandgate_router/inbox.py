"""Bytes of a client that belong to no request under way: the next head, or later requests.

Pure. A head that arrives whole is not copied; one that trickles is searched once, however
many pieces it comes in.
"""

from sandgate_router.head import RequestHead, parse_request_head, refuse_hopeless

MAX_PIPELINED_BYTES = 64 * 1024
"""Bytes of later requests held while one is answered; then the connection is not read."""


class Inbox:
    """Holds what has come, and gives out one head at a time."""

    __slots__ = ("_searched", "data")

    def __init__(self) -> None:
        self.data: bytes | bytearray = b""
        """All that is here; to be read by its owner alone."""
        self._searched = 0

    def __bool__(self) -> bool:
        return bool(self.data)

    @property
    def full(self) -> bool:
        """Whether no more is to be read until what is here has been answered."""
        return len(self.data) > MAX_PIPELINED_BYTES

    def put(self, data: bytes) -> None:
        """Take bytes behind those that are here."""
        if not self.data:
            self.data = data
        else:
            if isinstance(self.data, bytes):
                self.data = bytearray(self.data)
            self.data += data

    def next_head(self) -> RequestHead | None:
        """Return the head that is here whole; None while it is not.

        Raises:
            GatewayError: it is refused, or can never become a head.
        """
        data = self.data
        # RFC 9112 section 2.2: one empty line before a request is forgiven.
        start = 2 if data.startswith(b"\r\n") else 0
        searched = self._searched
        end = data.find(b"\r\n\r\n", searched - 3 if searched > start + 3 else start)
        if end < 0:
            refuse_hopeless(data, searched, start=start)
            self._searched = len(data)
            return None
        raw = bytes(data[start : end + 2])
        self.data = data[end + 4 :]
        self._searched = 0
        return parse_request_head(raw)

    def take_first(self, size: int) -> bytes | None:
        """Return the first `size` bytes, which are no head; None while there are fewer."""
        data = self.data
        if len(data) < size:
            return None
        self.data = data[size:]
        return bytes(data[:size])

    def take(self) -> bytes:
        """Return all that is here, and hold nothing."""
        data, self.data, self._searched = self.data, b"", 0
        return bytes(data)
