"""Connections to sandboxes: dialled, lent to one exchange at a time, kept for a while.

A connection belongs to one endpoint, which is one generation of a sandbox, so a recycled
address never meets an old connection. It goes back to its pool only in reset state: reading,
with no exchange and nothing received. A byte on an idle connection closes it (it can only be
a response that nobody asked for).
"""

import asyncio
import contextlib
import errno
import os
from collections import Counter
from collections.abc import Callable
from typing import Protocol, cast

from sandgate_router.errors import ConnectionRefused, ConnectionTimeout, GatewayError
from sandgate_router.registry.base import Endpoint
from sandgate_router.retry import DIAL_DELAYS, DIAL_SECONDS

IDLE_SECONDS = 4.0
"""How long an idle connection is kept. A stock uvicorn closes after 5."""

MAX_IDLE_SECONDS = 75.0
"""Longest we keep one, whatever the sandbox advertises."""

MAX_IDLE_PER_ENDPOINT = 64
"""Idle connections kept for one port of one sandbox."""

WRITE_HIGH_WATER = 64 * 1024
"""Bytes waiting for a peer above which its source is paused; one read may come on top."""

CLOSE_SECONDS = 5.0
"""How long a sandbox may take for the last bytes of a tunnel that has ended."""

MAX_LAST_BYTES = 256 * 1024
"""Most that is read from a connection which the sandbox has reset already."""

_RELAY_CONNECTED, _RELAY_TIMED_OUT = b"\x00", b"\x02"


class Handler(Protocol):
    """What uses a connection while it is lent out."""

    def response_data(self, data: bytes) -> None:
        """Take bytes from the sandbox."""

    def upstream_half_closed(self) -> bool:
        """Learn that the sandbox has ended its side; return whether to keep ours open."""

    def upstream_ended(self, *, clean: bool) -> None:
        """Learn that the sandbox closed; `clean` says by FIN rather than by a reset."""

    def endpoint_gone(self) -> None:
        """End the use of a connection whose endpoint has left the table."""

    def upstream_full(self) -> None:
        """Stop sending for now."""

    def upstream_writable(self) -> None:
        """Go on sending."""


class UpstreamConnection(asyncio.Protocol):
    """A live connection to one endpoint."""

    __slots__ = (
        "_gone",
        "_held",
        "_paused",
        "_transport",
        "closed",
        "endpoint",
        "expectations",
        "handler",
        "host",
        "idle_until",
        "lent",
        "reused",
    )

    def __init__(self, endpoint: Endpoint, gone: Callable[["UpstreamConnection"], None]) -> None:
        self.endpoint = endpoint
        self.handler: Handler | None = None
        self.host = b""
        """What every request on it says in Host."""
        self.expectations = b""
        """And in the fields that tell the runtime whom we believe it to be."""
        self.idle_until = 0.0
        self.lent = True
        """Whether an exchange or a tunnel has it; one that was just dialled is for someone."""
        self.reused = False
        self.closed = False
        self._paused = False
        self._held = b""
        """Bytes that the handler takes at its next turn; none are read before."""
        self._gone = gone
        self._transport: asyncio.Transport

    def __repr__(self) -> str:
        state = "closed" if self.closed else "active" if self.handler else "idle"
        where = self.endpoint.path or f"{self.endpoint.host}:{self.endpoint.port}"
        return f"<UpstreamConnection {where} {state}>"

    @property
    def unsent(self) -> int:
        """Bytes that the sandbox has not taken yet."""
        return 0 if self.closed else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Send bytes to the sandbox."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Stop taking bytes from the sandbox."""
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes from the sandbox again."""
        if self._paused and not self._transport.is_closing():
            self._paused = False
            if self._held:
                asyncio.get_running_loop().call_soon(self._take_turn)
            else:
                self._transport.resume_reading()

    def hold(self, data: bytes) -> None:
        """Hand `data` to the handler once more at the next turn of the loop, and read none before.

        One sandbox that sends a million tiny pieces must not keep all others waiting.
        """
        if not self._held and not self._paused and not self._transport.is_closing():
            self._transport.pause_reading()
        self._held = data
        asyncio.get_running_loop().call_soon(self._take_turn)

    def abort(self) -> None:
        """Close at once; the handler learns nothing more."""
        self.handler = None
        if not self.closed:
            self.closed = True
            self._transport.abort()

    def end(self) -> None:
        """Send the end of our side, and read on."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close after what has been sent; the handler learns nothing more."""
        unsent = self.unsent
        self.handler = None
        self.closed = True
        self._transport.close()
        if unsent:
            # A sandbox that reads nothing any more would keep the connection for ever.
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._transport.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the event loop."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the exchange; on an idle connection they are an error."""
        if self.handler is None:
            self.abort()
        elif self._held:  # read before the pause took effect
            self._held += data
        else:
            self.handler.response_data(data)

    def eof_received(self) -> bool:
        """Tell the handler that the sandbox has ended its side; mostly ours ends with it."""
        if self.handler is not None and self.handler.upstream_half_closed():
            return True
        self.closed = True
        if self.handler is not None:
            self.handler.upstream_ended(clean=True)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the pool; an exchange that still runs learns that its sandbox is gone."""
        self.closed = True
        while self._held and self.handler is not None:
            data, self._held = self._held, b""
            self.handler.response_data(data)
        if self.handler is not None and isinstance(exc, OSError):
            self._read_last_bytes(self.handler)
        if self.handler is not None:
            self.handler.upstream_ended(clean=False)
        self._gone(self)

    def pause_writing(self) -> None:
        """Pass on that the sandbox reads too slowly."""
        if self.handler is not None:
            self.handler.upstream_full()

    def resume_writing(self) -> None:
        """Pass on that the sandbox has caught up."""
        if self.handler is not None:
            self.handler.upstream_writable()

    def _take_turn(self) -> None:
        """Hand over what was held, and read on when nothing is held again."""
        if not self._held or self._paused or self.closed:
            return
        data, self._held = self._held, b""
        if self.handler is None:
            self.abort()  # nobody asked for them
            return
        self.handler.response_data(data)
        if not self._held and not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def _read_last_bytes(self, handler: Handler) -> None:
        """Read what came before a reset that a write has met first.

        A sandbox that refuses an upload answers, and then resets because it leaves content
        unread (RFC 9112 section 9.6). The event loop gives up at the failed write, while the
        answer lies in the socket.
        """
        descriptor, room = self._transport.get_extra_info("socket").fileno(), MAX_LAST_BYTES
        with contextlib.suppress(OSError):
            while room > 0 and self.handler is handler and (data := os.read(descriptor, room)):
                room -= len(data)
                handler.response_data(data)


class UpstreamPool:
    """All connections to sandboxes."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._idle: dict[Endpoint, list[UpstreamConnection]] = {}
        self._all: dict[Endpoint, set[UpstreamConnection]] = {}
        self._dialling: Counter[Endpoint] = Counter()

    def __repr__(self) -> str:
        idle = sum(len(connections) for connections in self._idle.values())
        return f"<UpstreamPool {len(self)} connections, {idle} idle>"

    def __len__(self) -> int:
        return sum(len(connections) for connections in self._all.values())

    def is_busy(self, endpoint: Endpoint) -> bool:
        """Tell whether an exchange or a tunnel with this endpoint is under way, or a dial."""
        return endpoint in self._dialling or any(
            connection.lent for connection in self._all.get(endpoint, ())
        )

    def last_end(self, endpoint: Endpoint) -> float | None:
        """Return when the last one ended, on the pool's clock; None before the first."""
        return endpoint.last_end

    def acquire(self, endpoint: Endpoint) -> UpstreamConnection | None:
        """Return an idle connection of this endpoint, the one used last, or None."""
        idle = self._idle.get(endpoint)
        while idle:
            connection = idle.pop()
            if connection.closed:
                continue
            if connection.idle_until < self._clock():
                connection.abort()
                continue
            connection.reused = connection.lent = True
            return connection
        return None

    def release(self, connection: UpstreamConnection, *, keep: float) -> None:
        """Take a connection back and keep it for `keep` seconds.

        The caller has read its response to the end and nothing beyond.
        """
        now = self._clock()
        endpoint = connection.endpoint
        connection.handler = None
        connection.lent = False
        connection.resume_reading()
        endpoint.last_end = now
        idle = self._idle.setdefault(endpoint, [])
        if connection.closed or connection.unsent or len(idle) >= MAX_IDLE_PER_ENDPOINT:
            connection.abort()
            return
        connection.idle_until = now + keep
        idle.append(connection)

    async def dial(self, endpoint: Endpoint, *, again: Callable[[], bool]) -> UpstreamConnection:
        """Open a connection, trying again while nothing has left yet.

        Args:
            again: asked before each further try, so that nobody waits for a released sandbox.

        Raises:
            ConnectionRefused, ConnectionTimeout: after the last try, or five seconds.
        """
        error: GatewayError = ConnectionTimeout(_about(ConnectionTimeout, endpoint))
        self._dialling[endpoint] += 1
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                for pause in (*DIAL_DELAYS, None):
                    try:
                        return await self._open(endpoint)
                    except OSError as cause:
                        error = _dial_error(endpoint, cause)
                        error.__cause__ = cause
                    if pause is None or not again():
                        break
                    await asyncio.sleep(pause)
        except TimeoutError:
            pass
        finally:
            self._dialling[endpoint] -= 1
            if not self._dialling[endpoint]:
                del self._dialling[endpoint]
            endpoint.last_end = self._clock()
        raise error

    def close_endpoint(self, endpoint: Endpoint) -> None:
        """Abort every connection of an endpoint that left the table, lent ones included."""
        self._idle.pop(endpoint, None)
        for connection in list(self._all.get(endpoint, ())):
            if connection.handler is not None:
                connection.handler.endpoint_gone()
            else:
                connection.abort()

    def sweep(self) -> None:
        """Close what has been idle for too long."""
        now = self._clock()
        for endpoint in list(self._idle):
            kept = []
            for connection in self._idle[endpoint]:
                if connection.idle_until < now:
                    connection.abort()
                elif not connection.closed:
                    kept.append(connection)
            if kept:
                self._idle[endpoint] = kept
            else:
                del self._idle[endpoint]

    def close(self) -> None:
        """Abort everything."""
        for endpoint in list(self._all):
            self.close_endpoint(endpoint)

    async def _open(self, endpoint: Endpoint) -> UpstreamConnection:
        loop = asyncio.get_running_loop()

        def connection() -> UpstreamConnection:
            return UpstreamConnection(endpoint, self._forget)

        if endpoint.path:
            _, opened = await loop.create_unix_connection(connection, endpoint.path)
        else:
            _, opened = await loop.create_connection(connection, endpoint.host, endpoint.port)
        self._all.setdefault(endpoint, set()).add(opened)
        if endpoint.relay_port is not None:
            try:
                await _ask_relay(opened, endpoint.relay_port)
            except BaseException:
                opened.abort()
                raise
        return opened

    def _forget(self, connection: UpstreamConnection) -> None:
        endpoint = connection.endpoint
        if connection.lent:
            endpoint.last_end = self._clock()
        connections = self._all.get(endpoint)
        if connections is not None:
            connections.discard(connection)
            if not connections:
                del self._all[endpoint]


class _RelayAnswer:
    """Waits for the one byte with which the relay in a sandbox answers a port."""

    def __init__(self, answer: asyncio.Future[bytes]) -> None:
        self._answer = answer

    def response_data(self, data: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(data)

    def upstream_half_closed(self) -> bool:
        return False

    def upstream_ended(self, *, clean: bool) -> None:
        del clean
        self.endpoint_gone()

    def endpoint_gone(self) -> None:
        if not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the sandbox's port relay closed"))

    def upstream_full(self) -> None:
        """Two bytes never fill a buffer."""

    def upstream_writable(self) -> None:
        """Two bytes never fill a buffer."""


async def _ask_relay(connection: UpstreamConnection, port: int) -> None:
    """Have the relay inside the sandbox connect to `port` there; raise OSError."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    connection.handler = _RelayAnswer(answer)
    connection.write(port.to_bytes(2, "big"))
    verdict = await answer
    if verdict == _RELAY_TIMED_OUT:
        raise OSError(errno.ETIMEDOUT, "timed out inside the sandbox")
    if verdict != _RELAY_CONNECTED:  # more than one byte means that the service spoke first
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused inside the sandbox")
    connection.handler = None


def _dial_error(endpoint: Endpoint, cause: OSError) -> GatewayError:
    if isinstance(cause, TimeoutError) or cause.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH):
        return ConnectionTimeout(_about(ConnectionTimeout, endpoint))
    return ConnectionRefused(_about(ConnectionRefused, endpoint))


def _about(error: type[GatewayError], endpoint: Endpoint) -> str:
    return f"{error.detail}: {endpoint.name.rpartition('/')[2]}"
