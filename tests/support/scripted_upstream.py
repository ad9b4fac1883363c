"""A sandbox made of raw bytes: it records all that arrives, and answers as a test scripts it."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

LASTING_OK = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=75\r\nContent-Length: 2\r\n\r\nok"
"""Its connection is kept for longer than any test waits, so that nothing ends by its age."""
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)
"""The answer to `raw_client.HANDSHAKE` that opens the WebSocket."""


class UpstreamSide:
    """One connection that the gateway opened."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._received = bytearray()
        self.heads: list[bytes] = []
        self.ended = asyncio.Event()
        """Set when the gateway has closed its side."""

    @property
    def local_address(self) -> str:
        """The address that was dialled."""
        address: str = self._writer.get_extra_info("sockname")[0]
        return address

    @property
    def received(self) -> bytes:
        """All that has come."""
        return bytes(self._received)

    async def read(self, size: int = 65536) -> bytes:
        data = await self._reader.read(size)
        self._received += data
        if not data:
            self.ended.set()
        return data

    async def read_exactly(self, size: int) -> bytes:
        data = await self._reader.readexactly(size)
        self._received += data
        return data

    async def read_head(self) -> bytes:
        """Read up to the empty line; b"" when the connection ends before a first byte."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            self._received += error.partial
            self.ended.set()
            return b""
        self._received += head
        self.heads.append(head)
        return head

    async def read_request(self) -> tuple[bytes, bytes]:
        """Read one request by its own framing; the head is b"" at the end."""
        head = await self.read_head()
        lowered = head.lower()
        if b"transfer-encoding: chunked" in lowered:
            return head, await self._read_chunks()
        _, found, rest = lowered.partition(b"content-length: ")
        length = int(rest.split(b"\r\n", 1)[0]) if found else 0
        return head, await self.read_exactly(length)

    def send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
        except RuntimeError as error:  # as uvloop says that the connection is closed
            raise ConnectionResetError from error

    async def drain(self) -> None:
        await self._writer.drain()

    def end(self) -> None:
        """Close with FIN."""
        self._writer.close()

    def reset(self) -> None:
        """Close with RST."""
        sock = self._writer.get_extra_info("socket")
        with socket.fromfd(sock.fileno(), sock.family, sock.type) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def wait_ended(self) -> None:
        """Read until the gateway closes its side, whatever comes."""
        with contextlib.suppress(ConnectionError):
            while await self.read():
                pass
        self.ended.set()

    async def _read_chunks(self) -> bytes:
        content = bytearray()
        while True:
            line = await self._reader.readuntil(b"\r\n")
            data = await self._reader.readexactly(int(line, 16) + 2)
            self._received += line + data
            content += data[:-2]
            if line == b"0\r\n":
                return bytes(content)


Script = Callable[[UpstreamSide], Awaitable[None]]


async def answer_ok(side: UpstreamSide) -> None:
    """Answer every request on the connection with 200."""
    while (await side.read_request())[0]:
        side.send(OK)


def answering(response: bytes, *, end: bool = False) -> Script:
    """Return a script that gives every request the same bytes."""

    async def script(side: UpstreamSide) -> None:
        while (await side.read_request())[0]:
            side.send(response)
            if end:
                side.end()
                return

    return script


class ScriptedUpstream:
    """A listener whose connections each run the script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.sides: list[UpstreamSide] = []
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted = asyncio.Condition()

    @property
    def received(self) -> bytes:
        """All bytes of all connections."""
        return b"".join(side.received for side in self.sides)

    @property
    def heads(self) -> list[bytes]:
        """All request heads, in the order of their connections."""
        return [head for side in self.sides for head in side.heads]

    async def side(self, index: int = 0) -> UpstreamSide:
        """Wait for the connection with this index."""
        async with self._accepted:
            await self._accepted.wait_for(lambda: len(self.sides) > index)
        return self.sides[index]

    @contextlib.asynccontextmanager
    async def running(
        self, listener: socket.socket | None = None
    ) -> AsyncIterator["ScriptedUpstream"]:
        """Listen on 127.0.0.1, or on a socket that listens already."""
        listener = listener or socket.create_server(("127.0.0.1", 0))
        server = await asyncio.start_server(self._accept, sock=listener)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        side = UpstreamSide(reader, writer)
        async with self._accepted:
            self.sides.append(side)
            self._accepted.notify_all()
        try:
            await self.script(side)
            await side.wait_ended()
        except (ConnectionError, asyncio.IncompleteReadError):
            side.ended.set()
        finally:
            self._tasks.discard(task)
            writer.close()
