"""Where the content of a message ends (RFC 9112 sections 6 and 7.1).

Pure: bytes in, content out. Framing bytes never cross the gateway: what goes on is framed
anew from what was decoded here. A decoder tells when the content is complete, and keeps what
came after it as `surplus`.
"""

import re
from typing import Protocol

MAX_CHUNK_LINE_BYTES = 256
"""Longest line with a chunk's size. Extensions carry nothing that anyone reads."""

MAX_CHUNK_EXTENSION_BYTES = 4 * 1024
"""Extensions of one message together: more is an attack on our time, not a message."""

MAX_TRAILER_BYTES = 16 * 1024
"""Trailers of a response, which are dropped on HTTP/1.1."""

MAX_LINES_AT_ONCE = 512
"""Chunk lines that are read in one go, 0.4 ms of work. A peer that sends content in pieces of
one byte would else keep everybody waiting: libuv hands over 8 MiB of them in one turn."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
# RFC 9112 section 7.1, without the optional white space that it calls bad.
_CHUNK_LINE = re.compile(
    rb"([0-9A-Fa-f]{1,16})((?:;" + _TOKEN + rb"(?:=(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?)*)"
)
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")


class BadFraming(Exception):
    """The content is framed so that two readers could disagree about its end."""


class Decoder(Protocol):
    """Finds the end of a message's content."""

    done: bool
    surplus: bytes
    """What followed the content; empty until `done`."""

    @property
    def rest(self) -> bytes:
        """What was not looked at yet, to be fed again at the next turn of the loop."""

    def feed(self, data: bytes) -> bytes:
        """Return the content in `data`; raise BadFraming."""


class LengthDecoder:
    """Content of a known length (RFC 9112 section 6.2)."""

    __slots__ = ("done", "remaining", "surplus")

    rest = b""

    def __init__(self, length: int) -> None:
        self.remaining = length
        self.done = length == 0
        self.surplus = b""

    def feed(self, data: bytes) -> bytes:
        """Return the part of `data` that belongs to the content."""
        if len(data) < self.remaining:
            self.remaining -= len(data)
            return data
        self.done = True
        if len(data) > self.remaining:
            self.surplus = data[self.remaining :]
            data = data[: self.remaining]
        self.remaining = 0
        return data


class CloseDecoder:
    """Content that ends with its connection (RFC 9112 section 6.3, rule 8)."""

    __slots__ = ("done", "surplus")

    rest = b""

    def __init__(self) -> None:
        self.done = False
        self.surplus = b""

    def feed(self, data: bytes) -> bytes:
        """Return `data`."""
        return data


class ChunkedDecoder:
    """Chunked content (RFC 9112 section 7.1)."""

    __slots__ = (
        "_extensions",
        "_held",
        "_remaining",
        "_state",
        "_trailers",
        "done",
        "rest",
        "surplus",
    )

    def __init__(self, *, drop_trailers: bool = False) -> None:
        """Decode one message; a request's trailers are refused, a response's may be dropped."""
        self.done = False
        self.surplus = b""
        self.rest = b""
        self._held = b""
        self._remaining = 0
        self._state = _SIZE
        self._extensions = 0
        self._trailers = 0 if drop_trailers else None

    def feed(self, data: bytes) -> bytes:
        """Return the content in `data`; raise BadFraming."""
        self.rest = b""
        if self._held:
            data, self._held = self._held + data, b""
        content: list[bytes] = []
        position, size, lines = 0, len(data), 0
        while not self.done:
            if lines == MAX_LINES_AT_ONCE:
                self.rest = data[position:]
                return b"".join(content)
            if self._state is _DATA:
                if size - position <= self._remaining - 1:
                    content.append(data[position:])
                    self._remaining -= size - position
                    return content[0] if len(content) == 1 else b"".join(content)
                content.append(data[position : position + self._remaining])
                position += self._remaining
                self._state = _DATA_END
            end = self._find_line_end(data, position)
            if end < 0:
                self._held = data[position:]
                return content[0] if len(content) == 1 else b"".join(content)
            self._take_line(data[position:end])
            position = end + 2
            lines += 1
        self.surplus = data[position:]
        return content[0] if len(content) == 1 else b"".join(content)

    def _find_line_end(self, data: bytes, position: int) -> int:
        if self._state is _DATA_END:
            if data.startswith(b"\r\n", position):
                return position
            if data[position:] not in (b"", b"\r"):
                raise BadFraming("chunk data does not end where its size says")
            return -1
        end = data.find(b"\r\n", position, position + MAX_CHUNK_LINE_BYTES + 2)
        if end < 0:
            rest = data[position : position + MAX_CHUNK_LINE_BYTES + 2]
            if len(rest) > MAX_CHUNK_LINE_BYTES + 1 or b"\n" in rest or b"\r" in rest[:-1]:
                raise BadFraming("a chunk line is too long or not ended by CRLF")
            if self._state is _SIZE and rest and rest[0] not in b"0123456789abcdefABCDEF":
                raise BadFraming("a chunk has no size")
        return end

    def _take_line(self, line: bytes) -> None:
        if self._state is _DATA_END:
            self._state = _SIZE
        elif self._state is _SIZE:
            match = _CHUNK_LINE.fullmatch(line)
            if match is None:
                raise BadFraming("a chunk line is malformed")
            self._extensions += len(match[2])
            if self._extensions > MAX_CHUNK_EXTENSION_BYTES:
                raise BadFraming("chunk extensions are too large")
            self._remaining = int(match[1], 16)
            self._state = _DATA if self._remaining else _TRAILERS
        elif not line:
            self.done = True
        elif self._trailers is None:
            raise BadFraming("trailers are not accepted")
        else:
            self._trailers += len(line)
            if self._trailers > MAX_TRAILER_BYTES or _TRAILER_LINE.fullmatch(line) is None:
                raise BadFraming("a trailer is malformed or too large")


_SIZE, _DATA, _DATA_END, _TRAILERS = "size", "data", "data end", "trailers"

LAST_CHUNK = b"0\r\n\r\n"


def encode_chunk(content: bytes) -> bytes:
    """Return `content`, which is not empty, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(content), content)
