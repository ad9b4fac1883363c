"""Reach the other ports of a sandbox that has a network of its own.

The gateway connects to a unix socket that this relay serves, writes the port as two bytes
(big-endian), and reads one: 0 connected, 1 refused, 2 timed out. After a 0 the connection is
the port's, both ways, until both sides have ended; each waits for the other where it is slower,
and an end of one direction is passed on while the other goes on.
"""

import asyncio
import contextlib
import socket

LOOPBACKS = ("127.0.0.1", "::1")
"""Tried in this order: servers that bind `localhost` may have got either."""

CONNECT_SECONDS = 5.0
"""For the port number to arrive, and for all tries to connect together."""

PIECE_BYTES = 64 * 1024

CONNECTED, REFUSED, TIMED_OUT = b"\0", b"\1", b"\2"


class PortRelay:
    """Serves one listening socket; owns the task of every connection."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept connections from here on."""
        self._server = await asyncio.start_unix_server(self._on_connection, sock=listener)

    async def close(self) -> None:
        """Accept no more, and break off what is open."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(_serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            port = int.from_bytes(await reader.readexactly(2), "big")
        answer, upstream = await _connect(port)
        writer.write(answer)
        if upstream is not None:
            await _splice((reader, writer), upstream)
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        writer.transport.abort()
    finally:
        writer.close()


async def _connect(
    port: int,
) -> tuple[bytes, tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]:
    if port == 0:
        return REFUSED, None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            for host in LOOPBACKS:
                with contextlib.suppress(OSError):
                    return CONNECTED, await asyncio.open_connection(host, port)
    except TimeoutError:
        return TIMED_OUT, None
    return REFUSED, None


async def _splice(
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Pass bytes both ways; a direction that breaks breaks the other."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(near[0], far[1]))
            tasks.create_task(_copy(far[0], near[1]))
    except* OSError:
        near[1].transport.abort()
        far[1].transport.abort()
    finally:
        far[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()
