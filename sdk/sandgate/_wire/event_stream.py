"""Server-sent events, bytes in, events out (the event stream format of the WHATWG HTML standard).

The stream may be cut anywhere: inside a line, a character, or between CR and LF. Comments are
dropped; they only keep the connection from looking dead. An event without its closing blank
line never happened.
"""

from dataclasses import dataclass, field

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Largest event that is kept. A runtime sends pieces of some 64 KiB; a sandbox that sends
more, without end, must not fill the memory of whoever uses it."""

_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """An event above MAX_EVENT_BYTES."""


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event."""

    type: str
    data: str
    id: str | None = None
    """The last id seen on the stream; None before the first."""


@dataclass(slots=True)
class EventDecoder:
    """Decodes one stream; feed it every byte once, in order."""

    _buffer: bytearray = field(default_factory=bytearray)
    _scanned: int = 0
    _after_cr: bool = False
    _first: bool = True
    _type: str = ""
    _data: list[str] = field(default_factory=list)
    _size: int = 0
    _id: str | None = None

    @property
    def last_id(self) -> str | None:
        """The last id on the stream, also one that came without an event."""
        return self._id

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete; raise EventTooLarge."""
        self._buffer += data
        events = []
        while (line := self._next_line()) is not None:
            if line:
                self._take(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        if self._size + len(self._buffer) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        return events

    def _next_line(self) -> bytes | None:
        buffer = self._buffer
        if self._after_cr and buffer:
            # CR ended the line already, so that a stream cut after CR is not held back.
            if buffer[0] == 0x0A:
                del buffer[0]
            self._after_cr = False
        end = _line_end(buffer, start=self._scanned)
        if end < 0:
            self._scanned = len(buffer)
            return None
        line = bytes(buffer[:end])
        self._after_cr = buffer[end] == 0x0D
        del buffer[: end + 1]
        self._scanned = 0
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        return line

    def _take(self, line: bytes) -> None:
        name, _, rest = line.partition(b":")
        value = rest.removeprefix(b" ").decode(errors="replace")
        self._size += len(line)
        match name:
            case b"event":
                self._type = value
            case b"data":
                self._data.append(value)
            case b"id" if "\0" not in value:
                self._id = value
            case _:
                pass  # a comment (empty name), `retry`, or a field of the future

    def _dispatch(self) -> Event | None:
        type_, data = self._type, self._data
        self._type, self._data, self._size = "", [], 0
        if not data:
            return None
        return Event(type=type_ or "message", data="\n".join(data), id=self._id)


def _line_end(buffer: bytearray, *, start: int) -> int:
    newline = buffer.find(b"\n", start)
    # Searched only up to the newline: with plain LF streams the whole rest would be scanned.
    carriage = buffer.find(b"\r", start, newline if newline >= 0 else len(buffer))
    return carriage if carriage >= 0 else newline
