"""One HTTP exchange: a request goes to its sandbox, the response comes back.

What it keeps true:

* A request is sent once. Only dialling is repeated, and a safe request without content whose
  pooled connection died unanswered (`retry.may_replay`).
* Content streams in both directions at once; each leg pauses the other, and nothing is
  collected, decoded or recoded.
* A response that breaks off is never ended cleanly: the client's connection is aborted.
* When either side goes, the other goes with it.

This is the hot path, driven by callbacks: a task exists only while a connection is dialled.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sandgate_router.body import (
    LAST_CHUNK,
    BadFraming,
    ChunkedDecoder,
    CloseDecoder,
    Decoder,
    LengthDecoder,
    encode_chunk,
)
from sandgate_router.errors import (
    BadUpstreamResponse,
    GatewayError,
    InternalError,
    RequestTimeout,
    SandboxNotFound,
    UpstreamClosed,
    UpstreamTimeout,
)
from sandgate_router.fields import (
    Peer,
    build_interim_head,
    build_request_head,
    build_response_head,
    refuse_loop,
)
from sandgate_router.head import (
    MAX_RESPONSE_HEAD_BYTES,
    RequestHead,
    ResponseHead,
    is_hopeless,
    parse_response_head,
)
from sandgate_router.metrics import RequestMetrics
from sandgate_router.registry.base import Endpoint
from sandgate_router.resolve import Resolver
from sandgate_router.retry import may_replay
from sandgate_router.target import TIMEOUT, Routing, Target, parse_timeout
from sandgate_router.upstream import (
    IDLE_SECONDS,
    MAX_IDLE_SECONDS,
    WRITE_HIGH_WATER,
    UpstreamConnection,
    UpstreamPool,
)

log = logging.getLogger("sandgate.relay")

MAX_INTERIM_RESPONSES = 16
"""1xx heads before the final one; more is an attack (httpx was seen to swallow 5,000)."""


class Client(Protocol):
    """The client's side of an exchange."""

    @property
    def peer(self) -> Peer:
        """Whom the sandbox is told of."""

    @property
    def full(self) -> bool:
        """Whether the client reads too slowly for more."""

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""

    @property
    def closing(self) -> bool:
        """Whether the connection is to end after this exchange."""

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""

    def pause_content(self) -> None:
        """Stop taking the request's content."""

    def resume_content(self) -> None:
        """Take the request's content again."""

    def refuse(self, error: GatewayError) -> None:
        """Answer in the sandbox's place and end the exchange."""

    def finish(self, *, status: int, keep_alive: bool) -> None:
        """End the exchange after a whole response."""

    def abort(self, error: GatewayError) -> None:
        """End the connection in a way that no client takes for a whole response."""


@dataclass(slots=True)
class Relay:
    """What all exchanges share."""

    resolver: Resolver
    pool: UpstreamPool
    clock: Callable[[], float]
    date: Callable[[], bytes]
    metrics: RequestMetrics
    cluster_domain: bytes
    timeout: float
    """Longest wait for a response head and for every later gap, in seconds."""
    exchanges: set["Exchange"] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def forget(self, endpoint: Endpoint) -> None:
        """End all traffic with an endpoint that left the registry's table."""
        self.resolver.forget(endpoint)
        self.pool.close_endpoint(endpoint)

    def sweep(self) -> None:
        """End what has waited too long."""
        now = self.clock()
        for exchange in list(self.exchanges):
            if exchange.deadline < now:
                exchange.expire()
        self.pool.sweep()

    async def close(self) -> None:
        """Abort every exchange and connection."""
        for exchange in list(self.exchanges):
            exchange.upstream_ended(clean=False)
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.resolver.close()
        self.pool.close()


class Exchange:
    """One request on its way to a sandbox, and the response on its way back."""

    __slots__ = (
        "_client",
        "_connection",
        "_content_done",
        "_decoder",
        "_endpoint",
        "_head",
        "_held",
        "_interim",
        "_rechunk",
        "_relay",
        "_response",
        "_routing",
        "_secret",
        "_task",
        "_timeout",
        "_unsent",
        "_waiting",
        "deadline",
    )

    def __init__(
        self,
        relay: Relay,
        client: Client,
        head: RequestHead,
        routing: Routing,
        *,
        secret: bytes | None,
    ) -> None:
        self._relay = relay
        self._client = client
        self._head = head
        self._routing = routing
        self._secret = secret
        self._timeout = relay.timeout
        self._endpoint: Endpoint | None = None
        self._connection: UpstreamConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        """Framed content that arrived before the connection stood."""
        self._content_done = not head.has_content
        self._response: ResponseHead | None = None
        self._decoder: Decoder | None = None
        self._rechunk = False
        self._held = b""
        self._interim = 0
        self._unsent = 0
        self.deadline = 0.0

    def start(self) -> None:
        """Send the request on its way.

        Raises:
            GatewayError: it is refused; nothing was dialled and the exchange never began.
        """
        relay, routing = self._relay, self._routing
        if TIMEOUT in self._head.values:
            self._timeout = parse_timeout(self._head.values[TIMEOUT], cap=relay.timeout)
        refuse_loop(self._head)
        endpoint = relay.resolver.endpoint(routing)
        relay.exchanges.add(self)
        self.deadline = relay.clock() + self._timeout
        if endpoint is not None and (connection := relay.pool.acquire(endpoint)) is not None:
            self._attach(connection)
        else:
            self._begin_connecting(endpoint)

    @property
    def answering(self) -> bool:
        """Whether the head of the response is out."""
        return self._response is not None

    def content(self, data: bytes, *, last: bool) -> None:
        """Take the next piece of the request's content from the client."""
        self._content_done = last
        if self._head.chunked:
            data = encode_chunk(data) if data else b""
            if last:
                data += LAST_CHUNK
        if self._connection is not None:
            self._connection.write(data)
            if self._response is None:
                self._touch()
            return
        self._waiting.append(data)
        if sum(map(len, self._waiting)) > WRITE_HIGH_WATER:
            self._client.pause_content()

    def client_gone(self) -> None:
        """Drop the sandbox's side, since nobody waits for it any more."""
        self._end()

    def client_full(self) -> None:
        """Stop reading from the sandbox until the client has caught up."""
        if self._connection is not None:
            self._connection.pause_reading()

    def client_writable(self) -> None:
        """Read from the sandbox again."""
        self._touch()
        if self._connection is not None:
            self._connection.resume_reading()

    def upstream_full(self) -> None:
        """Stop reading the client's content until the sandbox has caught up."""
        self._client.pause_content()

    def upstream_writable(self) -> None:
        """Read the client's content again."""
        self._touch()
        self._client.resume_content()

    def response_data(self, data: bytes) -> None:
        """Take bytes from the sandbox."""
        try:
            if self._response is None:
                final = self._take_head(data)
                if final is not None:
                    self._begin_response(*final)
            else:
                self._touch()
                self._relay_content(b"", data)
        except GatewayError as error:
            self._fail(error)
        except BadFraming:
            self._fail(BadUpstreamResponse())

    def upstream_ended(self, *, clean: bool) -> None:
        """Learn that the sandbox's connection is gone."""
        connection = self._connection
        if connection is not None and may_replay(
            self._head,
            reused=connection.reused,
            answered=bool(self._held) or self._interim > 0 or self._response is not None,
        ):
            connection.handler = None
            self._connection = None
            self._begin_connecting(self._endpoint)
        elif self._response is None:
            self._fail(BadUpstreamResponse() if self._held else UpstreamClosed())
        elif clean and isinstance(self._decoder, CloseDecoder):
            if self._rechunk:
                self._client.send(LAST_CHUNK)
            self._finish(reusable=False)
        else:
            self._fail(UpstreamClosed(reached="yes"))

    def expire(self) -> None:
        """End the exchange, unless bytes still trickle to a slow reader."""
        unsent = self._client.unsent + (self._connection.unsent if self._connection else 0)
        if 0 < unsent < self._unsent or (unsent and not self._unsent):
            self._unsent = unsent
            self._touch()
        elif self._response is None and not self._content_done:
            self._fail(RequestTimeout(reached="unknown"))
        else:
            detail = f"{UpstreamTimeout.detail}: {self._routing.target.sandbox}"
            self._fail(UpstreamTimeout(detail))

    # Connecting.

    def _begin_connecting(self, endpoint: Endpoint | None) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(endpoint))
        self._task = task
        self._relay.tasks.add(task)
        task.add_done_callback(self._relay.tasks.discard)

    async def _connect(self, endpoint: Endpoint | None) -> None:
        relay, routing = self._relay, self._routing
        try:
            if endpoint is None:
                endpoint = await relay.resolver.find(routing)
            live = endpoint

            def again() -> bool:
                relay.metrics.count_upstream_retry(routing.target.namespace)
                return not relay.resolver.is_gone(live)

            try:
                connection = await relay.pool.dial(endpoint, again=again)
            except GatewayError as error:
                if relay.resolver.is_gone(live):
                    raise SandboxNotFound from error
                raise
            connection.host = _host(routing.target, relay.cluster_domain)
            connection.expectations = _expectations(endpoint)
            self._task = None
            self._attach(connection)
        except GatewayError as error:
            self._task = None
            self._fail(error)
        except Exception:
            log.exception("relay.failed")
            self._task = None
            self._fail(InternalError(reached="no"))

    def _attach(self, connection: UpstreamConnection) -> None:
        """Send the head, and the content that has waited, over `connection`."""
        endpoint = connection.endpoint
        head = build_request_head(
            self._head,
            host=connection.host,
            peer=self._client.peer,
            expectations=connection.expectations,
            secret=self._secret,
        )
        self._endpoint = endpoint
        self._connection = connection
        connection.handler = self
        self._touch()
        if self._waiting:
            head = b"".join([head, *self._waiting])
            self._waiting.clear()
        connection.write(head)
        if self._client.full:
            connection.pause_reading()
        if not connection.unsent > WRITE_HIGH_WATER:
            self._client.resume_content()

    # The response.

    def _take_head(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """Pass on interim heads; return the final one and what follows, or None before its end."""
        seen = len(self._held)
        if seen:
            data, self._held = self._held + data, b""
        while True:
            end = data.find(b"\r\n\r\n", max(seen - 3, 0))
            if end < 0:
                if (
                    not data.startswith(b"HTTP/1."[: len(data)])
                    or len(data) > MAX_RESPONSE_HEAD_BYTES
                    or is_hopeless(data, seen)
                ):
                    raise BadUpstreamResponse
                self._held = data
                return None
            if end > MAX_RESPONSE_HEAD_BYTES:
                raise BadUpstreamResponse
            head = parse_response_head(data[: end + 2])
            data, seen = data[end + 4 :], 0
            if head.status >= 200:
                return head, data
            self._pass_interim(head)

    def _pass_interim(self, head: ResponseHead) -> None:
        self._interim += 1
        # No upgrade was passed on, so 101 answers a question that nobody asked.
        if head.status == 101 or self._interim > MAX_INTERIM_RESPONSES:
            raise BadUpstreamResponse
        if self._head.http_1_1:
            self._client.send(build_interim_head(head))

    def _begin_response(self, response: ResponseHead, rest: bytes) -> None:
        self._response = response
        framing = self._frame(response)
        keep_alive = self._head.keep_alive and not self._client.closing
        head = build_response_head(
            response,
            framing=framing,
            date=self._relay.date(),
            connection=b"" if keep_alive else b"Connection: close\r\n",
        )
        self._touch()
        self._relay_content(head, rest)

    def _frame(self, response: ResponseHead) -> bytes:
        """Choose how the content is decoded, and return the line that frames it for the client."""
        status, length = response.status, response.length
        length_line = b"" if length is None else b"Content-Length: %d\r\n" % length
        if self._head.method == b"HEAD" or status == 304:
            self._decoder = LengthDecoder(0)
            return length_line
        if status in (204, 205):
            # RFC 9110 sections 15.3.5 and 15.3.6: no content, whatever the sandbox says.
            self._decoder = LengthDecoder(0)
            if response.chunked or length:
                response.keep_alive = False
            return b"" if status == 204 else b"Content-Length: 0\r\n"
        if length is not None:
            self._decoder = LengthDecoder(length)
            return length_line
        self._decoder = ChunkedDecoder(drop_trailers=True) if response.chunked else CloseDecoder()
        self._rechunk = self._head.http_1_1
        return b"Transfer-Encoding: chunked\r\n" if self._rechunk else b""

    def _relay_content(self, head: bytes, data: bytes) -> None:
        decoder = self._decoder
        assert decoder is not None
        if decoder.done:
            content, surplus = b"", data
        else:
            try:
                content = decoder.feed(data)
            except BadFraming:
                if head:  # nothing of this response is out: the client gets a whole refusal
                    self._response = None
                raise
            surplus = decoder.surplus
        if self._rechunk:
            content = encode_chunk(content) if content else b""
            if decoder.done:
                content += LAST_CHUNK
        if head or content:
            self._client.send(head + content if head else content)
        if decoder.done:
            self._finish(reusable=not surplus)

    def _finish(self, *, reusable: bool) -> None:
        response, connection = self._response, self._connection
        assert response is not None
        whole = self._content_done
        if connection is not None and reusable and whole and response.keep_alive:
            self._connection = None
            self._relay.pool.release(connection, keep=_idle_seconds(response))
        self._end()
        self._client.finish(status=response.status, keep_alive=whole and self._head.keep_alive)

    # Ends.

    def _fail(self, error: GatewayError) -> None:
        response = self._response
        self._end()
        if response is None:
            self._client.refuse(error)
        else:
            self._client.abort(error)

    def _end(self) -> None:
        self._relay.exchanges.discard(self)
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _touch(self) -> None:
        self.deadline = self._relay.clock() + self._timeout


def _host(target: Target, cluster_domain: bytes) -> bytes:
    """Return the name under which the sandbox is asked, whatever address is dialled."""
    name = f"{target.sandbox}.{target.namespace}.svc.".encode()
    return b"%b%b:%d" % (name, cluster_domain, target.port)


def _expectations(endpoint: Endpoint) -> bytes:
    """Return the lines that tell the runtime whom we believe it to be; it answers 421 if not."""
    if endpoint.uid is None:
        return b""
    return b"X-Sandbox-Expect-UID: %b\r\nX-Sandbox-Expect-Name: %b\r\n" % (
        endpoint.uid.encode(),
        endpoint.name.encode(),
    )


def _idle_seconds(response: ResponseHead) -> float:
    """Return how long the sandbox keeps its connection, by its own word less a second."""
    advertised = response.values.get(b"keep-alive", b"")
    _, found, seconds = advertised.replace(b" ", b"").partition(b"timeout=")
    if not found:
        return IDLE_SECONDS
    digits = seconds.split(b",", 1)[0]
    if not digits.isdigit() or len(digits) > 6:
        return IDLE_SECONDS
    return min(max(int(digits) - 1.0, 0.0), MAX_IDLE_SECONDS)
