"""A port of this machine that leads to a port of a sandbox, by way of the gateway.

Each connection carries one request: its head gets the routing fields, the rest passes as bytes,
so WebSockets work and nothing is held. A page of anywhere else is refused, since whoever reaches
this port reaches the sandbox.
"""

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from sandgate._async_sandbox import AsyncSandbox

MAX_HEAD_BYTES = 32 * 1024
"""What the gateway reads of a head, too."""

HEAD_SECONDS = 10.0

CHUNK_BYTES = 64 * 1024

_DROPPED = frozenset({"host", "origin", "connection", "proxy-connection", "keep-alive"})

_LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


class RefusedHead(Exception):
    """A request that is not passed on; the message says why."""


class Forwarder:
    """Listens on 127.0.0.1, and passes what comes to one port of a sandbox."""

    def __init__(self, sandbox: "AsyncSandbox", port: int) -> None:
        self._lease = sandbox._lease  # noqa: SLF001 - a part of the handle in a file of its own
        self._transport = sandbox._transport  # noqa: SLF001
        self._port = port
        self._server: asyncio.Server | None = None

    async def listen(self, port: int) -> str:
        """Listen on a port, 0 for any; return the URL."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, limit=MAX_HEAD_BYTES
        )
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._pass(head, reader, writer)
        except RefusedHead as error:
            body = f"{error}\n".encode()
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # this connection is over; there is nobody to tell
        finally:
            await _close(writer)

    async def _pass(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        route = self._lease.route(self._port)
        parts = urlsplit(route.origin or await self._transport.url())
        secure = parts.scheme == "https"
        head = rewrite_head(head, parts.netloc, route.fields())
        gateway_reader, gateway_writer = await asyncio.open_connection(
            parts.hostname,
            parts.port or (443 if secure else 80),
            ssl=(self._transport.tls or ssl.create_default_context()) if secure else None,
        )
        gateway_writer.write(head)
        sending = asyncio.create_task(_copy(reader, gateway_writer))
        try:
            await _copy(gateway_reader, writer)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            await _close(gateway_writer)


def rewrite_head(head: bytes, host: str, fields: list[tuple[str, str]]) -> bytes:
    """Return a head as it goes to the gateway; raise RefusedHead for one of a foreign page."""
    request_line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    pairs = [(name.lower().decode("latin-1"), line) for line in lines for name in [_name(line)]]
    values = {name: line.partition(b":")[2].strip().decode("latin-1") for name, line in pairs}
    _check_local(values)
    upgrade = "upgrade" in values and "upgrade" in values.get("connection", "").lower()
    ours = _DROPPED | {name for name, _ in fields}
    kept = [line for name, line in pairs if name not in ours and not name.startswith("x-sandbox-")]
    added = [f"{name}: {value}".encode() for name, value in fields]
    connection = b"Connection: Upgrade" if upgrade else b"Connection: close"
    return b"\r\n".join(
        [request_line, b"Host: " + host.encode(), *kept, *added, connection, b"", b""]
    )


def _check_local(values: dict[str, str]) -> None:
    host = values.get("host", "")
    origin = values.get("origin", f"http://{host}")
    name = urlsplit(f"//{host}").hostname
    if name not in _LOCAL_NAMES or origin != f"http://{host}":
        raise RefusedHead("only pages of this address may use the sandbox behind it")


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
