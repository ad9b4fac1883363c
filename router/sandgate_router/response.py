"""A sandbox's response on its way to the client: read, checked, framed anew.

Pure: bytes from the sandbox in, bytes for the client out. Content passes as it comes; only
its framing is this hop's own. A sandbox is as little trusted as a client: what could end a
response early, late, or twice for some reader is refused while nothing of it is out, and
breaks it off afterwards.
"""

from collections.abc import Callable

from sandgate_router.body import (
    LAST_CHUNK,
    BadFraming,
    ChunkedDecoder,
    CloseDecoder,
    Decoder,
    LengthDecoder,
    encode_chunk,
)
from sandgate_router.errors import BadUpstreamResponse, UpstreamClosed
from sandgate_router.fields import SWITCH, build_interim_head, build_response_head
from sandgate_router.head import (
    MAX_RESPONSE_HEAD_BYTES,
    RequestHead,
    ResponseHead,
    is_hopeless,
    parse_response_head,
)
from sandgate_router.upgrade import grants_websocket

MAX_INTERIM_RESPONSES = 16
"""1xx heads before the final one; more is an attack (httpx was seen to swallow 5,000)."""


class ResponseReader:
    """Reads the response to one request."""

    __slots__ = (
        "_date",
        "_decoder",
        "_held",
        "_interim",
        "_rechunk",
        "_request",
        "_upgrade",
        "answering",
        "head",
        "switched",
    )

    def __init__(
        self, request: RequestHead, *, date: Callable[[], bytes], upgrade: bool = False
    ) -> None:
        """Expect the response to `request`.

        Args:
            date: gives a Date field where there is none.
            upgrade: whether a WebSocket was asked for, so that 101 grants it.
        """
        self._upgrade = upgrade
        self.switched: bytes | None = None
        """Once a 101 is out: what came behind it, which is no longer HTTP."""
        self._request = request
        self._date = date
        self._decoder: Decoder | None = None
        self._rechunk = False
        self._held = b""
        self._interim = 0
        self.head: ResponseHead | None = None
        self.answering = False
        """Whether the head has been given out, so that nothing can be refused any more."""

    def __repr__(self) -> str:
        state = "done" if self.done else "answering" if self.answering else "waiting"
        return f"<ResponseReader {state}>"

    @property
    def begun(self) -> bool:
        """Whether any byte of an answer has come."""
        return bool(self._held) or self._interim > 0 or self.head is not None

    @property
    def done(self) -> bool:
        """Whether the response is complete."""
        return self.answering and self._decoder is not None and self._decoder.done

    @property
    def reusable(self) -> bool:
        """Whether the sandbox's connection is at a clean end and is to be kept."""
        return (
            self.head is not None
            and self.head.keep_alive
            and self._decoder is not None
            and not self._decoder.surplus
        )

    def feed(self, data: bytes, *, closing: bool) -> bytes:
        """Return what the client gets for these bytes of the sandbox.

        Args:
            closing: whether the client's connection is to end after this response.

        Raises:
            BadUpstreamResponse: this is no response that may be passed on; while not
                `answering`, nothing of it was.
        """
        try:
            if self.answering:
                return self._read_content(data)
            interim, rest = self._read_heads(data)
            if self.head is None:
                return interim
            if self.head.status == 101:
                self.answering, self.switched = True, rest
                return interim + build_interim_head(self.head, switch=SWITCH)
            head = build_response_head(
                self.head,
                framing=self._choose_framing(self.head),
                date=self._date,
                connection=b"Connection: close\r\n" if closing else b"",
            )
            content = self._read_content(rest)
        except BadFraming as error:
            raise BadUpstreamResponse from error
        self.answering = True
        return interim + head + content

    def end(self, *, clean: bool) -> bytes:
        """Return what the client gets when the sandbox's connection has ended.

        Raises:
            BadUpstreamResponse, UpstreamClosed: the response is not complete by that.
        """
        if not self.answering:
            raise BadUpstreamResponse if self._held else UpstreamClosed
        if not clean or not isinstance(self._decoder, CloseDecoder):
            raise UpstreamClosed(reached="yes")
        self._decoder.done = True
        return LAST_CHUNK if self._rechunk else b""

    def _read_heads(self, data: bytes) -> tuple[bytes, bytes]:
        """Return interim heads for the client, and what follows the final head."""
        seen = len(self._held)
        if seen:
            data, self._held = self._held + data, b""
        interim = b""
        while True:
            end = data.find(b"\r\n\r\n", max(seen - 3, 0))
            if end < 0:
                if data:
                    self._hold(data, seen)
                return interim, b""
            if end > MAX_RESPONSE_HEAD_BYTES:
                raise BadUpstreamResponse
            head = parse_response_head(data[: end + 2])
            data, seen = data[end + 4 :], 0
            switches = head.status == 101 and self._upgrade and grants_websocket(head)
            if head.status >= 200 or switches:
                self.head = head
                return interim, data
            self._interim += 1
            # A 101 to anything else answers a question that nobody asked.
            if head.status == 101 or self._interim > MAX_INTERIM_RESPONSES:
                raise BadUpstreamResponse
            if self._request.http_1_1:  # RFC 9110 section 15.2: never to an HTTP/1.0 client
                interim += build_interim_head(head)

    def _hold(self, data: bytes, seen: int) -> None:
        if (
            not data.startswith(b"HTTP/1."[: len(data)])
            or len(data) > MAX_RESPONSE_HEAD_BYTES
            or is_hopeless(data, seen)
        ):
            raise BadUpstreamResponse
        self._held = data

    def _choose_framing(self, head: ResponseHead) -> bytes:
        """Choose how the content is read, and return the line that frames it for the client."""
        length_line = b"" if head.length is None else b"Content-Length: %d\r\n" % head.length
        if self._request.method == b"HEAD" or head.status == 304:
            self._decoder = LengthDecoder(0)
            return length_line
        if head.status in (204, 205):
            # RFC 9110 sections 15.3.5 and 15.3.6: no content, whatever the sandbox says.
            self._decoder = LengthDecoder(0)
            if head.chunked or head.length:
                head.keep_alive = False
            return b"" if head.status == 204 else b"Content-Length: 0\r\n"
        if head.length is not None:
            self._decoder = LengthDecoder(head.length)
            return length_line
        self._decoder = ChunkedDecoder(drop_trailers=True) if head.chunked else CloseDecoder()
        self._rechunk = self._request.http_1_1
        return b"Transfer-Encoding: chunked\r\n" if self._rechunk else b""

    def _read_content(self, data: bytes) -> bytes:
        decoder = self._decoder
        assert decoder is not None
        was_done = decoder.done
        if was_done:
            decoder.surplus += data
            return b""
        content = decoder.feed(data)
        if self._rechunk:
            content = encode_chunk(content) if content else b""
            if decoder.done:
                content += LAST_CHUNK
        return content
