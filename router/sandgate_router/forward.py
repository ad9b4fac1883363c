"""One HTTP exchange: a request goes to its sandbox, the response comes back.

What it keeps true:

* A request is sent once. Only dialling is repeated (`connect`), and a safe request without
  content whose pooled connection died unanswered (`retry.may_replay`).
* Content streams in both directions at once; each leg pauses the other, and nothing is
  collected, decoded or recoded.
* A response that breaks off is never ended cleanly: the client's connection is aborted.
* When either side goes, the other goes with it.

This is the hot path, driven by callbacks: a task exists only while a connection is dialled.
"""

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Protocol

from sandgate_router.authorize import Grant
from sandgate_router.body import LAST_CHUNK, encode_chunk
from sandgate_router.errors import (
    ConnectionTimeout,
    ContentTooLarge,
    Draining,
    GatewayError,
    InternalError,
    RequestTimeout,
    UpstreamTimeout,
)
from sandgate_router.fields import Peer, build_request_head, refuse_loop
from sandgate_router.head import RequestHead
from sandgate_router.registry.base import Endpoint
from sandgate_router.relay import Relay
from sandgate_router.response import ResponseReader
from sandgate_router.retry import may_replay
from sandgate_router.target import TIMEOUT, Routing, parse_timeout
from sandgate_router.tunnel import Tunnel, TunnelClient
from sandgate_router.upgrade import counted_client, wants_websocket
from sandgate_router.upstream import (
    IDLE_SECONDS,
    MAX_IDLE_SECONDS,
    WRITE_HIGH_WATER,
    UpstreamConnection,
)

if TYPE_CHECKING:
    from sandgate_router.limits import Sandbox

log = logging.getLogger("sandgate.relay")

MAX_KEEP_ALIVE_BYTES = 64
"""How much of a Keep-Alive field is read; all values are remembered."""

_UNLIMITED = 2**63
"""More content than any Content-Length that is accepted."""


class Client(TunnelClient, Protocol):
    """The client's side of an exchange."""

    @property
    def peer(self) -> Peer:
        """Whom the sandbox is told of."""

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""

    @property
    def closing(self) -> bool:
        """Whether the connection is to end after this exchange."""

    def join(self, tunnel: Tunnel) -> None:
        """Leave HTTP: whatever comes now is the tunnel's."""

    def refuse(self, error: GatewayError) -> None:
        """Answer in the sandbox's place and end the exchange."""

    def finish(self, *, status: int, keep_alive: bool) -> None:
        """End the exchange after a whole response."""


class Exchange:
    """One request on its way to a sandbox, and the response on its way back."""

    __slots__ = (
        "_client",
        "_connection",
        "_content_done",
        "_content_left",
        "_counted",
        "_grant",
        "_head",
        "_reader",
        "_relay",
        "_routing",
        "_sandbox",
        "_task",
        "_timeout",
        "_unsent",
        "_upgrade",
        "_waiting",
        "deadline",
    )

    def __init__(
        self,
        relay: Relay,
        client: Client,
        head: RequestHead,
        routing: Routing,
        grant: Grant,
    ) -> None:
        """Prepare what `grant` allows.

        Raises:
            BadRequest: it asks for a WebSocket by a handshake that is none.
        """
        self._relay = relay
        self._client = client
        self._head = head
        self._routing = routing
        self._grant = grant
        self._timeout = relay.timeout
        self._connection: UpstreamConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[bytes] | None = None
        """Framed content that arrived before the connection stood."""
        self._content_done = False
        self._content_left = _UNLIMITED
        """Bytes of chunked content that may still come."""
        self._sandbox: Sandbox | None = None
        """The name under which the exchange is counted, while it is."""
        self._counted: bytes | None = None
        """The address under which a WebSocket of this client is counted."""
        self._unsent = 0
        self._upgrade = b"upgrade" in head.values and wants_websocket(head)
        self._reader = ResponseReader(head, date=relay.date, upgrade=self._upgrade)
        self.deadline = 0.0

    def __repr__(self) -> str:
        target = self._routing.target
        leg = "connecting" if self._connection is None else repr(self._reader)
        return f"<Exchange {target.namespace}/{target.sandbox} {leg}>"

    @property
    def answering(self) -> bool:
        """Whether the head of the response is out."""
        return self._reader.answering

    def start(self, content: bytes, *, last: bool) -> None:
        """Send the request on its way, with what came of its content; `last` says all of it.

        Raises:
            GatewayError: it is refused; nothing was dialled and the exchange never began.
        """
        relay, head = self._relay, self._head
        if TIMEOUT in head.values:
            self._timeout = parse_timeout(head.values[TIMEOUT], cap=relay.timeout)
        if b"via" in head.values:
            refuse_loop(head)
        if relay.max_content and head.has_content:
            self._content_left = relay.max_content
            if (head.length or 0) > relay.max_content:
                raise ContentTooLarge
        self._reserve()
        try:
            endpoint, connection = relay.connector.pooled(self._routing, self._grant.uid)
        except GatewayError:
            self._end()
            raise
        relay.exchanges.add(self)
        self._content_done = last
        if connection is not None:
            self._attach(connection, content)
            return
        if content:
            self._waiting = [content]
        self._touch()
        self._connect(endpoint)

    # The client's side.

    def content(self, data: bytes, *, last: bool) -> None:
        """Take the next piece of the request's content from the client."""
        self._content_done = last
        if self._head.chunked:
            self._content_left -= len(data)
            if self._content_left < 0:
                self._fail(ContentTooLarge(reached="unknown" if self._connection else "no"))
                return
            data = encode_chunk(data) if data else b""
            if last:
                data += LAST_CHUNK
        if self._connection is not None:
            self._connection.write(data)
            self._touch()
            return
        waiting = self._waiting = self._waiting or []
        waiting.append(data)
        if sum(map(len, waiting)) > WRITE_HIGH_WATER:
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
        self._unsent = 0
        self._touch()
        if self._connection is not None:
            self._connection.resume_reading()

    # The sandbox's side.

    def response_data(self, data: bytes) -> None:
        """Take bytes from the sandbox."""
        reader, client = self._reader, self._client
        try:
            data = reader.feed(data, closing=not self._head.keep_alive or client.closing)
        except GatewayError as error:
            self._fail(error)
            return
        if data:
            client.send(data)
        if reader.done:
            self._finish()
        elif reader.switched is not None:
            self._become_tunnel(reader.switched)
        elif reader.answering:  # a head that trickles does not extend its limit
            self._touch()
            if reader.rest and self._connection is not None:
                self._connection.hold(reader.rest)

    def upstream_half_closed(self) -> bool:
        """Let the connection end: a response ends with its side."""
        return False

    def endpoint_gone(self) -> None:
        """End both sides, since the sandbox is being released."""
        self.upstream_ended(clean=False)

    def upstream_ended(self, *, clean: bool) -> None:
        """Learn that the sandbox's connection is gone."""
        connection = self._connection
        assert connection is not None
        if may_replay(self._head, reused=connection.reused, answered=self._reader.begun) and (
            not self._relay.connector.resolver.is_gone(connection.endpoint)
        ):
            connection.handler = None
            self._connection = None
            self._connect(connection.endpoint)
            return
        try:
            rest = self._reader.end(clean=clean)
        except GatewayError as error:
            self._fail(error)
            return
        self._client.send(rest)
        self._finish()

    def upstream_full(self) -> None:
        """Stop reading the client's content until the sandbox has caught up."""
        self._client.pause_content()

    def upstream_writable(self) -> None:
        """Read the client's content again."""
        self._unsent = 0
        self._touch()
        self._client.resume_content()

    # Time, and the gateway's own end.

    def expire(self) -> None:
        """End the exchange, unless bytes still trickle to a slow reader."""
        unsent = self._client.unsent + (self._connection.unsent if self._connection else 0)
        if 0 < unsent < self._unsent or (unsent and not self._unsent):
            self._unsent = unsent
            self._touch()
        elif self._connection is None:
            self._fail(ConnectionTimeout(self._about(ConnectionTimeout)))
        elif not self._reader.answering and not self._content_done:
            self._fail(RequestTimeout(reached="unknown"))
        else:
            self._fail(UpstreamTimeout(self._about(UpstreamTimeout)))

    def drop(self) -> None:
        """End both sides, since the gateway stops."""
        self._fail(Draining(reached="no" if self._connection is None else "unknown"))

    # Within.

    def _connect(self, endpoint: Endpoint | None) -> None:
        self._task = asyncio.get_running_loop().create_task(self._open(endpoint))
        self._relay.tasks.add(self._task)
        self._task.add_done_callback(self._relay.tasks.discard)

    async def _open(self, endpoint: Endpoint | None) -> None:
        error: GatewayError
        try:
            connection = await self._relay.connector.open(
                self._routing, endpoint, uid=self._grant.uid
            )
        except GatewayError as refusal:
            error = refusal
        except Exception:
            log.exception("relay.failed")
            error = InternalError(reached="no")
        else:
            self._task = None
            self._attach(connection)
            return
        self._task = None
        self._fail(error)

    def _attach(self, connection: UpstreamConnection, content: bytes = b"") -> None:
        """Send the head, and the content that is here, over `connection`."""
        self._connection = connection
        connection.handler = self
        relay, client, upgrade, waited = self._relay, self._client, self._upgrade, self._waiting
        head = build_request_head(
            self._head,
            host=connection.host,
            peer=client.peer,
            expectations=connection.expectations,
            secret=self._grant.secret,
            upgrade=upgrade,
            keep_origin=not upgrade or relay.keep_origin,
        )
        if waited is not None:
            content = b"".join(waited)
        self.deadline = relay.clock() + self._timeout
        connection.write(head + content)
        if client.full:
            connection.pause_reading()
        if waited is not None:
            self._waiting = None
            if connection.unsent <= WRITE_HIGH_WATER:
                client.resume_content()

    def _reserve(self) -> None:
        """Count the exchange; raise TooManyRequests where it is one too many."""
        relay, sandbox = self._relay, self._routing.sandbox
        relay.in_flight.enter(sandbox)
        self._sandbox = sandbox
        if not self._upgrade:
            return
        forwarded = [value for name, value in self._head.fields if name == b"x-forwarded-for"]
        client = counted_client(self._client.peer, forwarded, relay.trusted_proxies)
        try:
            relay.tunnels.reserve(client)
        except GatewayError:
            self._end()
            raise
        self._counted = client

    def _become_tunnel(self, behind: bytes) -> None:
        """Leave HTTP; `behind` came with the sandbox's 101."""
        connection, sandbox, counted = self._connection, self._sandbox, self._counted
        assert connection is not None
        assert sandbox is not None
        assert counted is not None
        self._connection = self._sandbox = self._counted = None
        self._end()
        ended = functools.partial(self._relay.tunnel_ended, sandbox, counted)
        tunnel = Tunnel(self._relay.tunnels, self._client, connection, ended=ended)
        self._client.join(tunnel)
        if behind:
            tunnel.response_data(behind)

    def _finish(self) -> None:
        """End after a whole response; the connection goes back where both legs are clean."""
        reader, connection, whole = self._reader, self._connection, self._content_done
        response = reader.head
        assert response is not None
        if connection is not None and whole and response.keep_alive and not reader.surplus:
            self._connection = None
            keep = IDLE_SECONDS
            if b"keep-alive" in response.values:
                keep = _idle_seconds(response.values[b"keep-alive"][:MAX_KEEP_ALIVE_BYTES])
            self._relay.connector.pool.release(connection, keep=keep)
        self._end()
        self._client.finish(status=response.status, keep_alive=whole and self._head.keep_alive)

    def _fail(self, error: GatewayError) -> None:
        self._end()
        if self._reader.answering:
            self._client.abort(error)
        else:
            self._client.refuse(error)

    def _end(self) -> None:
        self._relay.exchanges.discard(self)
        if self._sandbox is not None:
            self._relay.in_flight.leave(self._sandbox)
            self._sandbox = None
        if self._counted is not None:
            self._relay.tunnels.free(self._counted)
            self._counted = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _about(self, error: type[GatewayError]) -> str:
        return f"{error.detail}: {self._routing.target.sandbox}"

    def _touch(self) -> None:
        self.deadline = self._relay.clock() + self._timeout


@functools.lru_cache(maxsize=256)
def _idle_seconds(advertised: bytes) -> float:
    """Return how long the sandbox keeps its connection, by its own word less a second."""
    _, found, seconds = advertised.replace(b" ", b"").partition(b"timeout=")
    digits = seconds.split(b",", 1)[0]
    if not found or not digits.isdigit() or len(digits) > 6:
        return IDLE_SECONDS
    return min(max(int(digits) - 1.0, 0.0), MAX_IDLE_SECONDS)
