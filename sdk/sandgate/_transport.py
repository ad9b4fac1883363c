"""Sends what `_wire` builds, over httpx; knows bytes and errors of connections, nothing else.

httpx's transport is used without its client: the client keeps a cookie jar, reads proxies from
the environment and may follow redirects, and a sandbox's answer must cause none of these.
Nothing is ever sent twice here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx

from sandgate._wire.message import ERROR_BODY_BYTES, Call, Reply, Request
from sandgate.connections import Gateway
from sandgate.errors import GatewayUnreachable

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
"""Seconds to reach the gateway. A gateway gives itself 5 to reach a sandbox, too."""

IDLE_CONNECTIONS = 64
"""Connections that are kept for the next calls; their number under way is not limited, since
each running command holds one."""

IDLE_SECONDS = 5.0
"""How long they are kept: a request on one that the other side is closing may be lost, and
that is a command whose outcome nobody knows."""

_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Transport:
    """The connections of one handle to its gateway; safe to share between threads."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._http = httpx.HTTPTransport(
            trust_env=False,
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=IDLE_CONNECTIONS,
                keepalive_expiry=IDLE_SECONDS,
            ),
        )

    def call(self, call: Call[T]) -> T:
        """Send a request and return what its whole answer means."""
        with self._exchange(call.request) as response, self._mapped(call.request):
            body = b"".join(response.iter_raw())
        return call.decode(_reply(response, body))

    @contextmanager
    def stream(self, call: Call[T]) -> Iterator[Iterator[bytes]]:
        """Send a request and give its answer piece by piece; a refusal is raised by the call.

        Leaving the block early closes the connection, which ends what the sandbox does for it.
        """
        with self._exchange(call.request) as response:
            if not 200 <= response.status_code < 300:
                with self._mapped(call.request):
                    body = _read_some(response)
                call.decode(_reply(response, body))
            yield self._chunks(response, call.request)

    def close(self) -> None:
        """Close the connections; streams that are open end."""
        self._http.close()

    @contextmanager
    def _exchange(self, request: Request) -> Iterator[httpx.Response]:
        outgoing = self._outgoing(request)
        with self._mapped(request):
            response = self._http.handle_request(outgoing)
        try:
            yield response
        finally:
            response.close()

    def _outgoing(self, request: Request) -> httpx.Request:
        timeout = httpx.Timeout(request.gap, connect=CONNECT_TIMEOUT)
        return httpx.Request(
            request.method,
            self._gateway.url,
            headers=[*request.fields],
            content=request.body or None,
            # As a target of its own: httpx would resolve dots and re-encode a path.
            extensions={"target": request.target.encode("ascii"), "timeout": timeout.as_dict()},
        )

    def _chunks(self, response: httpx.Response, request: Request) -> Iterator[bytes]:
        with self._mapped(request):
            yield from response.iter_raw()

    @contextmanager
    def _mapped(self, request: Request) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            unsent = isinstance(error, _NEVER_SENT)
            what = "cannot reach" if unsent else "lost the connection through"
            raise GatewayUnreachable(
                f"{what} the gateway at {self._gateway.url} ({_describe(error)})",
                reached="no" if unsent else "unknown",
                retry_safe=unsent or request.idempotent,
            ) from error


def _reply(response: httpx.Response, body: bytes) -> Reply:
    return Reply(response.status_code, response.headers.multi_items(), body)


def _read_some(response: httpx.Response) -> bytes:
    body = b""
    for chunk in response.iter_raw():
        body += chunk
        if len(body) >= ERROR_BODY_BYTES:
            break
    return body


def _describe(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
