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
        "done",
        "head",
        "rest",
        "surplus",
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
        self._request = request
        self._date = date
        self._upgrade = upgrade
        self._decoder: Decoder | None = None
        """Of the content that is still to come; None before its head, and where none is."""
        self._rechunk = False
        self._held = b""
        self._interim = 0
        self.head: ResponseHead | None = None
        self.answering = False
        """Whether the head has been given out, so that nothing can be refused any more."""
        self.done = False
        """Whether the response is complete."""
        self.rest = b""
        """Bytes that were not looked at yet, to be fed again at the next turn of the loop."""
        self.surplus = False
        """Whether bytes came that belong to no response."""
        self.switched: bytes | None = None
        """Once a 101 is out: what came behind it, which is no longer HTTP."""

    def __repr__(self) -> str:
        state = "done" if self.done else "answering" if self.answering else "waiting"
        return f"<ResponseReader {state}>"

    @property
    def begun(self) -> bool:
        """Whether any byte of an answer has come."""
        return bool(self._held) or self._interim > 0 or self.head is not None

    def feed(self, data: bytes, *, closing: bool) -> bytes:
        """Return what the client gets for these bytes of the sandbox.

        Args:
            closing: whether the client's connection is to end after this response.

        Raises:
            BadUpstreamResponse: this is no response that may be passed on; while not
                `answering`, nothing of it was.
        """
        if self.answering:
            return self._read_content(data)
        interim, rest = self._read_heads(data)
        head = self.head
        if head is None:
            return interim
        if head.status == 101:
            self.answering, self.switched = True, rest
            return interim + build_interim_head(head, switch=SWITCH)
        length, framing = self._choose_framing(head)
        answer = interim + build_response_head(
            head,
            framing=framing,
            date=self._date,
            connection=b"Connection: close\r\n" if closing else b"",
        )
        if length is not None and len(rest) >= length:  # here whole, as nearly always
            self.answering = self.done = True
            self.surplus = len(rest) > length
            return answer + rest[:length]
        if length is not None:
            self._decoder = LengthDecoder(length)
        answer += self._read_content(rest)
        self.answering = True
        return answer

    def end(self, *, clean: bool) -> bytes:
        """Return what the client gets when the sandbox's connection has ended.

        Raises:
            BadUpstreamResponse, UpstreamClosed: the response is not complete by that.
        """
        if not self.answering:
            raise BadUpstreamResponse if self._held else UpstreamClosed
        if not clean or not isinstance(self._decoder, CloseDecoder):
            raise UpstreamClosed(reached="yes")
        self.done = True
        return LAST_CHUNK if self._rechunk else b""

    def _read_heads(self, data: bytes) -> tuple[bytes, bytes]:
        """Return interim heads for the client, and what follows the final head."""
        seen = len(self._held)
        if seen:
            data, self._held = self._held + data, b""
        interim = b""
        while True:
            end = data.find(b"\r\n\r\n", seen - 3 if seen > 3 else 0)
            if end < 0:
                if data:
                    self._hold(data, seen)
                return interim, b""
            if end > MAX_RESPONSE_HEAD_BYTES:
                raise BadUpstreamResponse
            head = parse_response_head(data[: end + 2])
            data, seen = data[end + 4 :], 0
            if head.status >= 200 or self._switches(head):
                self.head = head
                return interim, data
            self._interim += 1
            # A 101 to anything else answers a question that nobody asked.
            if head.status == 101 or self._interim > MAX_INTERIM_RESPONSES:
                raise BadUpstreamResponse
            if self._request.http_1_1:  # RFC 9110 section 15.2: never to an HTTP/1.0 client
                interim += build_interim_head(head)

    def _switches(self, head: ResponseHead) -> bool:
        return head.status == 101 and self._upgrade and grants_websocket(head)

    def _hold(self, data: bytes, seen: int) -> None:
        if (
            not data.startswith(b"HTTP/1."[: len(data)])
            or len(data) > MAX_RESPONSE_HEAD_BYTES
            or is_hopeless(data, seen)
        ):
            raise BadUpstreamResponse
        self._held = data

    def _choose_framing(self, head: ResponseHead) -> tuple[int | None, bytes]:
        """Choose how the content is read, and return the line that frames it for the client.

        Returns:
            The bytes of content that are to come, None where a decoder finds their end; and
            the line with CRLF, or nothing.
        """
        length = head.length
        line = b"" if length is None else b"Content-Length: %d\r\n" % length
        if self._request.method == b"HEAD" or head.status == 304:
            return 0, line
        if head.status in _WITHOUT_CONTENT:
            if head.chunked or length:
                head.keep_alive = False
            return 0, b"" if head.status == 204 else b"Content-Length: 0\r\n"
        if length is not None:
            return length, line
        self._decoder = ChunkedDecoder(drop_trailers=True) if head.chunked else CloseDecoder()
        self._rechunk = self._request.http_1_1
        return None, b"Transfer-Encoding: chunked\r\n" if self._rechunk else b""

    def _read_content(self, data: bytes) -> bytes:
        decoder = self._decoder
        if self.done or decoder is None:
            self.surplus = self.surplus or bool(data)
            return b""
        try:
            content = decoder.feed(data)
        except BadFraming as error:
            raise BadUpstreamResponse from error
        self.done = decoder.done
        self.rest = decoder.rest
        self.surplus = bool(decoder.surplus)
        if self._rechunk:
            content = encode_chunk(content) if content else b""
            if self.done:
                content += LAST_CHUNK
        return content


_WITHOUT_CONTENT = frozenset({204, 205})
"""RFC 9110 sections 15.3.5 and 15.3.6: no content, whatever the sandbox says."""
