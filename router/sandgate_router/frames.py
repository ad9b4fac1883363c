"""Just enough of WebSocket to end a tunnel politely (RFC 6455 section 5).

Pure. A tunnel passes bytes and looks at none of them, but a close frame of our own may only
stand between two frames, so the headers are followed. Payloads, masks, opcodes and codes of
others are end to end and nobody's business here.
"""

import os

GOING_AWAY = 1001
"""The endpoint goes away: what we say at a drain, a limit, or the end of a claim."""

MAX_FRAMES_AT_ONCE = 512
"""Frames that are followed in one go, 0.5 ms of work: see `body.MAX_LINES_AT_ONCE`."""

_CLOSE_OPCODE = 0x8
_FIN_AND_CLOSE = 0x80 | _CLOSE_OPCODE


class FrameFollower:
    """Follows the frames of one direction, however its bytes are cut."""

    __slots__ = ("_header", "_payload", "closed")

    def __init__(self) -> None:
        self._header = b""
        """A header that has not come whole."""
        self._payload = 0
        """Bytes of the current frame that are still to come."""
        self.closed = False
        """Whether a close frame has begun, so that none may follow."""

    def __repr__(self) -> str:
        where = "closed" if self.closed else "between frames" if self.between else "in a frame"
        return f"<FrameFollower {where}>"

    @property
    def between(self) -> bool:
        """Whether no frame has begun that is not complete."""
        return not self._payload and not self._header

    @property
    def may_close(self) -> bool:
        """Whether a close frame of our own may be sent now."""
        return self.between and not self.closed

    def feed(self, data: bytes) -> int:
        """Follow the bytes that pass; return how many may pass now, the rest is to come again."""
        position, frames, kept = 0, 0, len(self._header)
        if kept:
            data, self._header = self._header + data, b""
        size = len(data)
        while position < size:
            if frames == MAX_FRAMES_AT_ONCE:
                return position - kept
            if self._payload:
                taken = min(self._payload, size - position)
                self._payload -= taken
                position += taken
                continue
            length = _header_length(data, position)
            if length is None or size - position < length:
                self._header = data[position:]
                return size - kept
            if data[position] & 0x0F == _CLOSE_OPCODE:
                self.closed = True
            self._payload = _payload_length(data, position)
            position += length
            frames += 1
        return size - kept


def build_close(code: int, reason: str, *, masked: bool) -> bytes:
    """Return a close frame; a client's is masked (RFC 6455 sections 5.3 and 5.5.1)."""
    payload = code.to_bytes(2, "big") + reason.encode()[:123]
    if not masked:
        return bytes([_FIN_AND_CLOSE, len(payload)]) + payload
    mask = os.urandom(4)
    covered = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return bytes([_FIN_AND_CLOSE, 0x80 | len(payload)]) + mask + covered


def _header_length(data: bytes, position: int) -> int | None:
    """Return the length of the header at `position`; None when its second byte is missing."""
    if len(data) - position < 2:
        return None
    second = data[position + 1]
    extended = {126: 2, 127: 8}.get(second & 0x7F, 0)
    return 2 + extended + (4 if second & 0x80 else 0)


def _payload_length(data: bytes, position: int) -> int:
    length = data[position + 1] & 0x7F
    if length == 126:
        return int.from_bytes(data[position + 2 : position + 4], "big")
    if length == 127:
        return int.from_bytes(data[position + 2 : position + 10], "big")
    return length
