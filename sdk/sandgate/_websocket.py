"""WebSockets to a server inside a sandbox, by the websockets package.

A handshake that is refused raises what the same refusal of a request would; what goes wrong
later is the package's own to tell. Redirects are not followed.
"""

from typing import TYPE_CHECKING, Any

from sandgate._wire.message import Reply
from sandgate._wire.refusals import parse_refusal
from sandgate.errors import GatewayUnreachable, NotSupported, SandgateError, Unauthenticated

if TYPE_CHECKING:
    import ssl

    from websockets.asyncio.client import ClientConnection as AsyncClientConnection
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import ClientConnection

    from sandgate._async_transport import AsyncTransport
    from sandgate._transport import Transport
    from sandgate._wire.lease import Lease

OPEN_TIMEOUT = 15.0
"""Seconds until the handshake is done; the gateway gives itself 5 to reach the sandbox."""

_OPTIONS: dict[str, Any] = {"open_timeout": OPEN_TIMEOUT, "max_size": None, "proxy": None}


def connect(
    transport: "Transport", lease: "Lease", path: str, port: int | None
) -> "ClientConnection":
    """Open a WebSocket; after a 401 once more with a new token."""
    route = lease.route(port)
    url = build_url(route.origin or transport.origin.wait_url(), path)
    try:
        return _connect(url, route.fields(), transport.tls)
    except Unauthenticated as error:
        transport.perform(lease.after_401(error, route.token))
    return _connect(url, lease.route(port).fields(), transport.tls)


async def connect_async(
    transport: "AsyncTransport", lease: "Lease", path: str, port: int | None
) -> "AsyncClientConnection":
    """Open a WebSocket; after a 401 once more with a new token."""
    route = lease.route(port)
    url = build_url(route.origin or await transport.url(), path)
    try:
        return await _connect_async(url, route.fields(), transport.tls)
    except Unauthenticated as error:
        await transport.perform(lease.after_401(error, route.token))
    return await _connect_async(url, lease.route(port).fields(), transport.tls)


def build_url(origin: str, path: str) -> str:
    """Return the URL to open; raise ValueError for a path that is none."""
    if (
        not path.startswith("/")
        or not path.isascii()
        or any(ord(letter) <= 0x20 for letter in path)
    ):
        raise ValueError(f"path {path!r} does not start with / or has to be percent-encoded")
    return f"ws{origin.removeprefix('http')}{path}"


def _connect(
    url: str, fields: list[tuple[str, str]], tls: "ssl.SSLContext | None"
) -> "ClientConnection":
    try:
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect as open_
    except ModuleNotFoundError as error:
        raise _missing() from error
    try:
        opened: ClientConnection = open_(
            url, additional_headers=fields, ssl=_context(url, tls), **_OPTIONS
        )
    except InvalidStatus as error:
        raise _refusal(error) from error
    except (OSError, EOFError, InvalidHandshake) as error:
        raise _lost(error) from error
    return opened


async def _connect_async(
    url: str, fields: list[tuple[str, str]], tls: "ssl.SSLContext | None"
) -> "AsyncClientConnection":
    try:
        from websockets.asyncio.client import connect as open_
        from websockets.exceptions import InvalidHandshake, InvalidStatus
    except ModuleNotFoundError as error:
        raise _missing() from error

    class Plain(open_):
        def process_redirect(self, exc: Exception) -> Exception:
            return exc  # a redirect would carry the token to wherever a sandbox likes

    try:
        return await Plain(url, additional_headers=fields, ssl=_context(url, tls), **_OPTIONS)
    except InvalidStatus as error:
        raise _refusal(error) from error
    except (OSError, EOFError, InvalidHandshake) as error:
        raise _lost(error) from error


def _context(url: str, tls: "ssl.SSLContext | None") -> "ssl.SSLContext | None":
    """Return what a connection is made with; None leaves the choice to the package."""
    return tls if url.startswith("wss:") else None


def _refusal(error: "InvalidStatus") -> SandgateError:
    answer = error.response
    fields = [(name.lower(), value) for name, value in answer.headers.raw_items()]
    reply = Reply(answer.status_code, fields, bytes(answer.body or b""))
    return parse_refusal(reply, method="GET")


def _lost(error: Exception) -> GatewayUnreachable:
    detail = str(error) or type(error).__name__
    return GatewayUnreachable(f"the WebSocket was not opened ({detail})", reached="unknown")


def _missing() -> NotSupported:
    return NotSupported(
        "a WebSocket needs the package websockets: pip install 'sandgate[websocket]'"
    )
