"""Sends what `_wire` builds, over httpx; knows bytes and errors of connections, nothing else.

httpx's transport is used without its client: the client keeps a cookie jar, reads proxies from
the environment and may follow redirects, and a sandbox's answer must cause none of these.
Nothing is ever sent twice here, but for what a flow asks for.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from sandgate._origin import Origin, build_tls, open_origin
from sandgate._wire.feed import Feed
from sandgate._wire.flow import Flow, Pause, Step
from sandgate._wire.message import ERROR_BODY_BYTES, Call, Reply, Request
from sandgate.connections import Connection
from sandgate.errors import GatewayUnreachable, SandgateError

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
E = TypeVar("E")

CONNECT_TIMEOUT = 5.0
"""Seconds to reach the gateway. A gateway gives itself 5 to reach a sandbox, too."""

IDLE_CONNECTIONS = 64
"""Connections that are kept for the next calls; their number under way is not limited, since
each running command holds one."""

IDLE_SECONDS = 5.0
"""How long they are kept: a request on one that the other side is closing may be lost, and
that is a command whose outcome nobody knows."""

LIMITS = httpx.Limits(
    max_connections=None,
    max_keepalive_connections=IDLE_CONNECTIONS,
    keepalive_expiry=IDLE_SECONDS,
)

_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Transport:
    """The connections of one handle to its gateway; safe to share between threads."""

    def __init__(self, connection: Connection, *, http: httpx.BaseTransport | None = None) -> None:
        """`http` stands in for the network."""
        tls = build_tls(connection)
        self.tls: ssl.SSLContext | None = None if isinstance(tls, bool) else tls
        self.origin: Origin = open_origin(connection)
        self.http: httpx.BaseTransport = http or httpx.HTTPTransport(
            trust_env=False, limits=LIMITS, verify=tls
        )

    def perform(self, flow: Flow[T]) -> T:
        """Do what a flow asks for, to its end."""
        try:
            step = next(flow)
            while True:
                try:
                    answer = self._take(step)
                except SandgateError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def follow(self, feed: Feed[E]) -> Generator[E, None, None]:
        """Yield what a feed tells, over as many connections as it takes.

        Closing the iterator early ends what the feed belongs to.
        """
        try:
            while not feed.finished:
                try:
                    with self.stream(feed.open()) as chunks:
                        for chunk in chunks:
                            yield from feed.receive(chunk)
                    feed.end()
                except SandgateError as error:
                    self.perform(feed.recover(error))
        except BaseException:
            with suppress(SandgateError):  # what ends the iterator matters more
                self.perform(feed.abandon())
            raise

    def call(self, call: Call[T]) -> T:
        """Send a request and return what its whole answer means."""
        with self._exchange(call.request) as response, self._mapped(call.request):
            body = b"".join(response.iter_raw())
        return call.decode(build_reply(response, body))

    @contextmanager
    def stream(self, call: Call[Any]) -> Iterator[Iterator[bytes]]:
        """Send a request and give its answer piece by piece; a refusal is raised by the call.

        Leaving the block early closes the connection.
        """
        with self.open(call) as response:
            yield self.chunks(response, call.request)

    @contextmanager
    def open(self, call: Call[Any]) -> Iterator[httpx.Response]:
        """Send a request and give its answer unread; a refusal is raised by the call."""
        with self._exchange(call.request) as response:
            if not 200 <= response.status_code < 300:
                with self._mapped(call.request):
                    body = _read_some(response)
                call.decode(build_reply(response, body))
            yield response

    def close(self) -> None:
        """Close the connections; streams that are open end."""
        self.http.close()
        self.origin.close()

    def _take(self, step: Step) -> Any:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        return self.call(step)

    @contextmanager
    def _exchange(self, request: Request) -> Iterator[httpx.Response]:
        outgoing = build_outgoing(request, request.origin or self.origin.wait_url())
        with self._mapped(request):
            response = self.http.handle_request(outgoing)
        try:
            yield response
        finally:
            response.close()

    def chunks(self, response: httpx.Response, request: Request) -> Iterator[bytes]:
        """Yield the content of an answer as it comes."""
        with self._mapped(request):
            yield from response.iter_raw()

    @contextmanager
    def _mapped(self, request: Request) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise map_error(error, request, self.origin.label) from error


def build_outgoing(request: Request, url: str) -> httpx.Request:
    """Return a request for httpx, all as it was built."""
    timeout = httpx.Timeout(request.gap, connect=CONNECT_TIMEOUT)
    return httpx.Request(
        request.method,
        url,
        headers=[*request.fields],
        content=request.body or None,
        # As a target of its own: httpx would resolve dots and re-encode a path.
        extensions={"target": request.target.encode("ascii"), "timeout": timeout.as_dict()},
    )


def build_reply(response: httpx.Response, body: bytes) -> Reply:
    """Return a whole answer."""
    return Reply(response.status_code, response.headers.multi_items(), body)


def map_error(error: httpx.TransportError, request: Request, label: str) -> GatewayUnreachable:
    """Return what a failure of a connection means."""
    unsent = isinstance(error, _NEVER_SENT)
    what = "cannot reach" if unsent else "lost the connection through"
    where = (
        f"the gateway at {label}" if request.origin is None else f"the sandbox at {request.origin}"
    )
    return GatewayUnreachable(
        f"{what} {where} ({str(error) or type(error).__name__})",
        reached="no" if unsent else "unknown",
        retry_safe=unsent or request.idempotent,
    )


def _read_some(response: httpx.Response) -> bytes:
    body = b""
    for chunk in response.iter_raw():
        body += chunk
        if len(body) >= ERROR_BODY_BYTES:
            break
    return body
