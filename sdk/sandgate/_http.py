"""httpx clients that are bound to one port of one sandbox.

They hand their requests to the handle's own connections, with the routing fields and the token
of the moment put in; a request that is 401 for an old token is sent again with a new one, where
its content is still at hand.
"""

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from sandgate.errors import SandgateError, Unauthenticated

if TYPE_CHECKING:
    from sandgate._async_transport import AsyncTransport
    from sandgate._transport import Transport
    from sandgate._wire.lease import Lease
    from sandgate._wire.route import Route

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
"""Seconds without a byte, and to connect; a call may set its own."""


def build_client(transport: "Transport", lease: "Lease", port: int | None) -> httpx.Client:
    """Return a client for a port of a sandbox; None is the runtime's."""
    return httpx.Client(
        transport=_Bound(transport, lease, port),
        base_url=_base_url(lease, port),
        cookies=_no_cookies(),
        timeout=TIMEOUT,
        trust_env=False,
    )


def build_async_client(
    transport: "AsyncTransport", lease: "Lease", port: int | None
) -> httpx.AsyncClient:
    """Return a client for a port of a sandbox; None is the runtime's."""
    return httpx.AsyncClient(
        transport=_AsyncBound(transport, lease, port),
        base_url=_base_url(lease, port),
        cookies=_no_cookies(),
        timeout=TIMEOUT,
        trust_env=False,
    )


class _Bound(httpx.BaseTransport):
    def __init__(self, transport: "Transport", lease: "Lease", port: int | None) -> None:
        self._transport = transport
        self._lease = lease
        self._port = port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        _check(request, self._lease, self._port)
        route = self._lease.route(self._port)
        sent = _address(request, route, route.origin or self._transport.origin.wait_url())
        response = self._transport.http.handle_request(sent)
        if not _is_refused(response, request):
            return response
        try:
            self._transport.perform(self._lease.after_401(Unauthenticated(), route.token))
        except SandgateError:
            return response
        response.close()
        route = self._lease.route(self._port)
        again = _address(request, route, route.origin or self._transport.origin.wait_url())
        return self._transport.http.handle_request(again)


class _AsyncBound(httpx.AsyncBaseTransport):
    def __init__(self, transport: "AsyncTransport", lease: "Lease", port: int | None) -> None:
        self._transport = transport
        self._lease = lease
        self._port = port

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        _check(request, self._lease, self._port)
        route = self._lease.route(self._port)
        sent = _address(request, route, route.origin or await self._transport.url())
        response = await self._transport.http.handle_async_request(sent)
        if not _is_refused(response, request):
            return response
        try:
            await self._transport.perform(self._lease.after_401(Unauthenticated(), route.token))
        except SandgateError:
            return response
        await response.aclose()
        route = self._lease.route(self._port)
        again = _address(request, route, route.origin or await self._transport.url())
        return await self._transport.http.handle_async_request(again)


def _base_url(lease: "Lease", port: int | None) -> str:
    # No host that resolves: the name is for the reader, the connection is the handle's.
    route = lease.route(port)
    return f"http://{route.sandbox}.{route.namespace}.sandbox:{route.port}"


def _check(request: httpx.Request, lease: "Lease", port: int | None) -> None:
    """Raise for a URL of anywhere else: it would be sent into the sandbox all the same."""
    wanted = httpx.URL(_base_url(lease, port))
    if (request.url.host, request.url.port) != (wanted.host, wanted.port):
        raise httpx.UnsupportedProtocol(
            f"{request.url} is not in the sandbox; give a path, such as client.get('/')",
            request=request,
        )


def _address(request: httpx.Request, route: "Route", url: str) -> httpx.Request:
    """Return the request as it goes to `url`, with what names and opens the sandbox."""
    fields = route.fields()
    ours = {name for name, _ in fields} | {"host"}
    kept = [
        (name, value) for name, value in request.headers.raw if name.lower().decode() not in ours
    ]
    host = urlsplit(url).netloc
    return httpx.Request(
        request.method,
        url,
        headers=[(b"host", host.encode()), *kept, *((n.encode(), v.encode()) for n, v in fields)],
        stream=request.stream,
        extensions={**request.extensions, "target": request.url.raw_path},
    )


def _is_refused(response: httpx.Response, request: httpx.Request) -> bool:
    refused = response.status_code == 401
    ours = response.headers.get("x-sandbox-error") == "unauthenticated"
    return refused and ours and isinstance(request.stream, httpx.ByteStream)


def _no_cookies() -> CookieJar:
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))
