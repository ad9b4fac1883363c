"""One client connection: reads heads, decides what each request is, keeps them in order.

Exchanges of both kinds, with a sandbox and with the control app, stand in one line: the next
head is read only when the answer before it is out, so a refusal never swallows the answer to
an earlier request, and pipelined requests are each judged by their own fields.

Refused requests are answered once and the connection ends by a lingering close, since a close
with unread bytes would reset the connection and the client would never see why.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import ip_address
from typing import Protocol, cast

from sandgate_router.access import check_local
from sandgate_router.body import BadFraming, ChunkedDecoder, Decoder, LengthDecoder
from sandgate_router.errors import (
    BadRequest,
    ConnectionLimit,
    GatewayError,
    RequestTimeout,
    TooManyRequests,
)
from sandgate_router.fields import Peer
from sandgate_router.forward import Exchange
from sandgate_router.gateway import Gateway
from sandgate_router.head import RequestHead
from sandgate_router.inbox import Inbox
from sandgate_router.refusal import build_options_answer, build_refusal
from sandgate_router.target import is_for_a_sandbox, parse_routing
from sandgate_router.tunnel import Tunnel
from sandgate_router.upstream import WRITE_HIGH_WATER

HEAD_SECONDS = 10.0
"""Longest wait for a whole request head, from its first byte or from the connection's start."""

KEEP_ALIVE_SECONDS = 620.0
"""How long an idle client connection is kept: Google's load balancer reuses for 600 s."""

CONTENT_SECONDS = 30.0
"""Longest gap in the content of a control request."""

LINGER_SECONDS = 1.0
"""How long bytes of a refused request are read and thrown away before the close."""

MAX_LINGER_BYTES = 1024 * 1024
"""How many of them. Throwing away is cheap, and with 64 KiB a client that had sent a request
line of 200 KiB was reset before it could read why."""

MAX_ANSWERS_AT_ONCE = 16
"""Pipelined requests that are begun in one go, where each is answered at once."""

_NEVER = float("inf")


class AnyExchange(Protocol):
    """An exchange of either kind, as the connection sees it."""

    @property
    def answering(self) -> bool:
        """Whether the head of the response is out."""

    def client_gone(self) -> None:
        """Learn that nobody waits any more."""

    def client_full(self) -> None:
        """Learn that the client reads too slowly."""

    def client_writable(self) -> None:
        """Learn that the client has caught up."""


class HttpExchange(AnyExchange, Protocol):
    """An exchange of requests and responses, not yet a tunnel."""

    def start(self, content: bytes, *, last: bool) -> None:
        """Begin, with what came of the request's content; `last` says that it is all."""

    def content(self, data: bytes, *, last: bool) -> None:
        """Take the next piece of the request's content."""


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(
        self,
        gateway: Gateway,
        app_exchange: Callable[["ClientConnection", RequestHead], HttpExchange],
    ) -> None:
        self._gateway = gateway
        self._app_exchange = app_exchange
        self._exchange: AnyExchange | None = None
        self._http: HttpExchange | None = None
        """The exchange while it is no tunnel; it takes content."""
        self._tunnel: Tunnel | None = None
        self._head: RequestHead | None = None
        """Of the request under way; a refusal of the next one must not be shaped by the last."""
        self._namespace = "-"
        self._began = 0.0
        self._under_way = False
        self._decoder: Decoder | None = None
        """Of the content that is still to come; None when it is complete."""
        self._inbox = Inbox()
        self._reading_heads = False
        self._content_paused = False
        self._pipeline_paused = False
        self._held = b""
        """Content or bytes of a tunnel that are taken at the next turn; none are read before."""
        self._lingering: int | None = None
        """Bytes thrown away since the refusal; None while the connection serves."""
        self._unsent = 0
        """Bytes that the client had not taken when its time was last up."""
        self.full = False
        self.peer = Peer(b"unknown")
        self.deadline = 0.0
        self.transport: asyncio.Transport

    def __repr__(self) -> str:
        state = (
            "closing"
            if self._lingering is not None
            else "idle"
            if self._exchange is None
            else repr(self._exchange)
        )
        return f"<ClientConnection {self.peer.address.decode()} {state}>"

    @property
    def closing(self) -> bool:
        """Whether the connection is to end after this exchange."""
        return self._gateway.draining

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        return self.transport.get_write_buffer_size()

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the event loop."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        gateway = self._gateway
        gateway.connections.add(self)
        address = (transport.get_extra_info("peername") or ("",))[0]
        if address:
            ip = ip_address(address.partition("%")[0])
            trusted = any(ip in network for network in gateway.relay.trusted_proxies)
            self.peer = Peer(str(ip).encode(), trusted=trusted)
        self.deadline = gateway.clock() + HEAD_SECONDS
        if len(gateway.connections) > gateway.max_connections:
            self._ask_for_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let the exchange go with its client."""
        del exc
        self._gateway.connections.discard(self)
        self._gateway.idle.discard(self)
        self._leave_exchange()

    def eof_received(self) -> bool:
        """Take the end of the client's side for its end, but in a tunnel: nobody waits."""
        if self._tunnel is not None:
            self._tunnel.client_ended()
            return True
        if self._exchange is not None:
            # A close would wait for a client that only stopped sending to read on, and then
            # end content cleanly that is cut off.
            self._leave_exchange()
            _reset_on_close(self.transport)
            self.transport.abort()
        return False

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._lingering is not None:
            self._discard(data)
        elif self._held:  # read before the pause took effect
            self._held += data
        elif self._decoder is not None:
            self._take_content(data)
        elif self._tunnel is not None:
            self._tunnel.client_data(data)
        else:
            self._gateway.idle.discard(self)
            self._inbox.put(data)
            self._take_heads()

    def pause_writing(self) -> None:
        """Pass on that the client reads too slowly."""
        self.full = True
        if self._exchange is not None:
            self._exchange.client_full()

    def resume_writing(self) -> None:
        """Pass on that the client has caught up."""
        self.full = False
        if self._exchange is not None:
            self._exchange.client_writable()
        elif self._lingering is None and (self._inbox.data or self._pipeline_paused):
            self._go_on()

    def shutdown(self) -> None:
        """End the connection, after its exchange if one is under way."""
        if self._exchange is None and self._lingering is None:
            self.transport.close()

    def expire(self) -> None:
        """End a wait that took too long."""
        if self._exchange is not None:
            self._break_off(RequestTimeout(reached="unknown"))
        elif self.full:
            self._await_reader()
        elif self._inbox:
            self.refuse(RequestTimeout())
        elif self.unsent:
            self._await_reader()
        else:
            self.transport.close()

    def evict(self) -> None:
        """Make room for another connection."""
        if self.unsent:
            self._linger()
        else:
            self.transport.close()

    # The exchange's side.

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def pause_content(self) -> None:
        """Stop taking the request's content."""
        if not self._content_paused:
            self._content_paused = True
            self._apply_pauses()

    def resume_content(self) -> None:
        """Take the request's content again."""
        if self._content_paused:
            self._content_paused = False
            self._apply_pauses()
            if self._held:
                asyncio.get_running_loop().call_soon(self._take_turn)

    def hold(self, data: bytes) -> None:
        """Take `data` once more at the next turn of the loop, and read none before.

        One client that sends a million tiny pieces must not keep all others waiting.
        """
        self._held = data
        self._apply_pauses()
        asyncio.get_running_loop().call_soon(self._take_turn)

    def finish(self, *, status: int, keep_alive: bool) -> None:
        """End the exchange after a whole response, and go on with the next request."""
        self._observe(status)
        self._exchange = self._head = None
        whole = self._decoder is None
        self._decoder = None
        if self._content_paused:
            self.resume_content()
        if not whole or not keep_alive or self._gateway.draining:
            # What follows `Connection: close` is read, but not as a request (RFC 9112 9.6).
            self._linger()
        else:
            self.deadline = self._gateway.clock() + KEEP_ALIVE_SECONDS
            if self._inbox.data or self._pipeline_paused:
                self._go_on()
            self._rest()

    def join(self, tunnel: Tunnel) -> None:
        """Leave HTTP: whatever comes now is the tunnel's."""
        self._exchange = self._tunnel = tunnel
        self._http = None
        self._pipeline_paused = False
        self._apply_pauses()
        if self._inbox:
            tunnel.client_data(self._inbox.take())

    def end(self) -> None:
        """Send the end of the sandbox's side of a tunnel, and take bytes on."""
        if not self.transport.is_closing():
            self.transport.write_eof()

    def close(self, *, status: int) -> None:
        """Close after what has been sent."""
        self._observe(status)
        self._exchange = self._tunnel = None
        self._linger()

    def refuse(self, error: GatewayError) -> None:
        """Answer in the sandbox's place, and end the exchange."""
        head, exchange = self._head, self._exchange
        whole = exchange is not None and self._decoder is None
        keep_alive = whole and head is not None and head.keep_alive and not self.closing
        method = head.method if head is not None else b""
        date = self._gateway.relay.date()
        self.send(build_refusal(error, method, keep_alive=keep_alive, date=date))
        self._gateway.count_error(self._namespace, error)
        if keep_alive:
            self.finish(status=error.status, keep_alive=True)
        else:
            self._observe(error.status)
            self._exchange = self._decoder = None
            self._linger()

    def abort(self, error: GatewayError) -> None:
        """End the connection by a reset, which no client takes for a whole response."""
        self._gateway.count_error(self._namespace, error)
        self._observe(error.status)
        self._exchange = self._decoder = self._tunnel = None
        if not self.transport.is_closing():
            _reset_on_close(self.transport)
        self.transport.abort()

    # Reading.

    def _take_heads(self) -> None:
        """Read heads until one is being answered, or none is here whole."""
        inbox = self._inbox
        self._reading_heads = True
        answered = 0
        try:
            while inbox.data and self._exchange is None and self._lingering is None:
                if self.full or answered == MAX_ANSWERS_AT_ONCE:
                    # Nobody reads what we say, or others have waited long enough.
                    self._pipeline_paused = True
                    gateway = self._gateway
                    self.deadline = min(self.deadline, gateway.clock() + gateway.relay.timeout)
                    break
                answered += 1
                head = inbox.next_head()
                if head is None:
                    latest = self._gateway.clock() + HEAD_SECONDS
                    self.deadline = min(self.deadline, latest)
                    break
                self._begin(head)
        except GatewayError as error:
            self.refuse(error)
        finally:
            self._reading_heads = False
        if self._exchange is not None and self._decoder is None and inbox.full:
            self._pipeline_paused = True
        if self._pipeline_paused:
            self._apply_pauses()
            if self._exchange is None and not self.full:
                asyncio.get_running_loop().call_soon(self._take_turn)

    def _begin(self, head: RequestHead) -> None:
        """Start what answers `head`."""
        gateway = self._gateway
        self._head = head
        self._namespace = "-"
        self._began = gateway.clock()
        self._under_way = True
        gateway.metrics.inflight += 1
        if head.target == b"*":
            self._answer_options(head)
            return
        exchange: HttpExchange
        content = b""
        if head.has_content:
            content = self._take_first_content(head)
        whole = self._decoder is None
        self.deadline = _NEVER  # the relay watches over its exchanges, and the app over its own
        if is_for_a_sandbox(head.values, head.aliases):
            if gateway.loopback_only:
                _check_local(head)
            routing = parse_routing(head.values, head.repeated, head.aliases)
            self._namespace = routing.target.namespace
            grant = gateway.authorizer.check(head, routing)
            exchange = Exchange(gateway.relay, self, head, routing, grant)
        else:
            exchange = self._app_exchange(self, head)
            if not whole:
                self.deadline = self._began + CONTENT_SECONDS
        self._exchange = self._http = exchange
        try:
            exchange.start(content, last=whole)
        except TooManyRequests as error:
            # The request is sound and a later one may pass, so the connection is worth keeping.
            self.refuse(error)
            return
        except GatewayError:
            self._exchange = self._decoder = None
            raise
        if self._decoder is not None and self._inbox.data:
            self._take_content(self._inbox.take())

    def _take_first_content(self, head: RequestHead) -> bytes:
        """Return what is here of a request's content, and know how to find the rest."""
        inbox = self._inbox
        if head.length:
            content = inbox.take_first(head.length)
            if content is not None:  # all of it, as nearly always
                return content
            self._decoder = LengthDecoder(head.length)
        else:
            self._decoder = ChunkedDecoder()
        return b""

    def _take_content(self, data: bytes) -> None:
        decoder, exchange = self._decoder, self._http
        assert decoder is not None
        assert exchange is not None
        try:
            content = decoder.feed(data)
        except BadFraming:
            self._break_off(BadRequest(reached="unknown"))
            return
        if decoder.done:
            self._decoder = None
            if decoder.surplus:
                self._inbox.put(decoder.surplus)
            self.deadline = _NEVER
        elif self.deadline != _NEVER:
            self.deadline = self._gateway.clock() + CONTENT_SECONDS
        if content or decoder.done:
            exchange.content(content, last=decoder.done)
        if decoder.rest and self._decoder is decoder:
            self.hold(decoder.rest)

    def _take_turn(self) -> None:
        """Take what was held, and read on when nothing is held again."""
        if self._lingering is not None or self.transport.is_closing():
            return
        if self._exchange is None:
            self._held = b""
            if self._pipeline_paused and not self.full:
                self._go_on()
            return
        if self._content_paused or not self._held:
            return
        data, self._held = self._held, b""
        if self._tunnel is not None:
            self._tunnel.client_data(data)
        elif self._decoder is not None:
            self._take_content(data)
        if not self._held:
            self._apply_pauses()

    def _break_off(self, error: GatewayError) -> None:
        """Drop an exchange whose content cannot be read to its end."""
        exchange = self._exchange
        assert exchange is not None
        answering = exchange.answering
        exchange.client_gone()
        if answering:
            self.abort(error)
        else:
            self.refuse(error)

    def _answer_options(self, head: RequestHead) -> None:
        if head.has_content:
            raise BadRequest
        keep_alive = head.keep_alive and not self.closing
        self.send(build_options_answer(keep_alive=keep_alive, date=self._gateway.relay.date()))
        self.finish(status=204, keep_alive=keep_alive)

    def _go_on(self) -> None:
        """Read the next request, if its bytes are here already."""
        if self._pipeline_paused:
            self._pipeline_paused = False
            self._apply_pauses()
        if not self._reading_heads:
            self._take_heads()

    def _rest(self) -> None:
        """Let the connection wait as an idle one, unless something is under way on it."""
        if self._exchange is None and not self._inbox.data and self._lingering is None:
            self._gateway.idle.add(self)

    def _apply_pauses(self) -> None:
        if self.transport.is_closing():
            return
        if self._content_paused or self._pipeline_paused or self._held:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # Ending.

    def _linger(self) -> None:
        """Shut the write side, and read on for a while so that the answer arrives."""
        self._lingering = self._unsent = 0
        self._inbox.take()
        self._held = b""
        self._content_paused = self._pipeline_paused = False
        self.deadline = self._gateway.clock() + LINGER_SECONDS
        if not self.transport.is_closing():
            self.transport.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def _discard(self, data: bytes) -> None:
        assert self._lingering is not None
        self._lingering += len(data)
        if self._lingering > MAX_LINGER_BYTES:
            self.transport.close()

    def _await_reader(self) -> None:
        """Wait on while the last bytes trickle to a slow reader; end one that has stopped."""
        unsent = self.unsent
        if self._unsent and unsent >= self._unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        self.deadline = self._gateway.clock() + self._gateway.relay.timeout

    def _ask_for_room(self) -> None:
        """Stay only if another connection goes; above one and a half times the limit, be gone."""
        gateway = self._gateway
        try:
            gateway.make_room()
        except ConnectionLimit as error:
            if len(gateway.connections) > gateway.max_connections * 3 // 2:
                # Who is answered stays for a second, and every one of them has a descriptor.
                self.transport.abort()
            else:
                self.refuse(error)

    def _leave_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._decoder = None
            self._observe(499)  # as nginx logs a client that left before its answer
            exchange.client_gone()

    def _observe(self, status: int) -> None:
        """Count the end of a request, or of what never became one, and log it if it is due."""
        gateway, head = self._gateway, self._head
        if not self._under_way:
            gateway.metrics.observe(b"-", status, "-", 0.0)
            return
        assert head is not None
        self._under_way = False
        gateway.metrics.inflight -= 1
        seconds = gateway.clock() - self._began
        gateway.metrics.observe(head.method, status, self._namespace, seconds)
        if gateway.access_log.is_due():
            gateway.access_log.record(
                head,
                client=self.peer.address,
                namespace=self._namespace,
                status=status,
                seconds=seconds,
            )


def _check_local(head: RequestHead) -> None:
    origin = head.values.get(b"origin")
    if b"origin" in head.repeated:  # joined, they match nothing
        origin = b", ".join(value for name, value in head.fields if name == b"origin")
    check_local(head.values.get(b"host"), origin)


def _reset_on_close(transport: asyncio.Transport) -> None:
    """Have the next close send RST: a FIN would end close-delimited content cleanly."""
    # uvloop's socket object cannot set options; the option belongs to the open socket itself.
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
