"""A client made of raw bytes, for what no client library would send."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

PATIENCE = 15.0
"""Seconds after which a test has hung; ten times what the slowest answer takes."""

HANDSHAKE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
"""The fields of a WebSocket's opening handshake (RFC 6455 section 1.3)."""


@dataclass
class Answer:
    """One response as it came."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes
    raw_head: bytes

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.fields if field.lower() == name.lower()]

    def one(self, name: str) -> str | None:
        values = self.all(name)
        assert len(values) <= 1, values
        return values[0] if values else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str | None:
        return self.one("X-Sandbox-Error")


class RawClient:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def read_answer(self, *, head_only: bool = False) -> Answer:
        """Read one response by its own framing; `head_only` after a HEAD request."""
        async with asyncio.timeout(PATIENCE):
            return await self._read_answer(head_only=head_only)

    async def read_rest(self) -> bytes:
        """Read all until the gateway closes."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read()

    async def read_rest_until(self, end: bytes) -> bytes:
        """Read up to bytes that come only at the end, however much there is before."""
        data = bytearray()
        async with asyncio.timeout(PATIENCE):
            while not data.endswith(end):
                piece = await self.reader.read(65536)
                assert piece, "closed before the end"
                data += piece
        return bytes(data)

    def end(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close with RST."""
        sock = self.writer.get_extra_info("socket")
        with socket.fromfd(sock.fileno(), sock.family, sock.type) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def _read_answer(self, *, head_only: bool) -> Answer:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        status_line, *lines = raw[:-4].decode("latin-1").split("\r\n")
        fields = [(line.partition(":")[0], line.partition(":")[2].strip()) for line in lines]
        answer = Answer(int(status_line.split(" ")[1]), fields, b"", raw)
        if head_only or answer.status in (204, 304) or answer.status < 200:
            return answer
        if answer.one("Transfer-Encoding") == "chunked":
            answer.body = await self._read_chunks()
        elif (length := answer.one("Content-Length")) is not None:
            answer.body = await self.reader.readexactly(int(length))
        else:
            answer.body = await self.reader.read()
        return answer

    async def _read_chunks(self) -> bytes:
        pieces = []
        while True:
            line = await self.reader.readuntil(b"\r\n")
            data = await self.reader.readexactly(int(line, 16) + 2)
            assert data.endswith(b"\r\n")
            pieces.append(data[:-2])
            if line == b"0\r\n":
                return b"".join(pieces)


@contextlib.asynccontextmanager
async def connect(port: int, *, limit: int = 2**20) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
    try:
        yield RawClient(reader, writer)
    finally:
        if writer.transport.get_write_buffer_size():
            writer.transport.abort()  # a close would wait for a gateway that does not read
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def request(
    target: str = "/",
    *,
    method: str = "GET",
    sandbox: str | None = "sb",
    more: str = "",
    body: bytes = b"",
) -> bytes:
    """Return a request; `more` is field lines, each with its CRLF."""
    named = f"X-Sandbox-ID: {sandbox}\r\n" if sandbox is not None else ""
    return (
        f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{named}{more}\r\n".encode("latin-1")
        + body
    )
