"""The floor: bytes between two sockets on uvloop, each client joined to one sandbox.

It reads no request, so it can route only by the order of connections. What it costs, every
proxy on this event loop pays.
"""

import asyncio
import itertools
import sys

import uvloop

from loadtest.stubs import PORT, address

INDEX = itertools.count()


class Side(asyncio.Protocol):
    """One socket, joined to another."""

    def __init__(self, other: "Side | None" = None) -> None:
        self.other = other
        self.transport: asyncio.Transport
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join a client to a sandbox of its own."""
        self.transport = transport  # type: ignore[assignment]
        if self.other is None:
            self.task = asyncio.get_running_loop().create_task(self._join())
        else:
            self.other.other = self
            for data in self.other.waiting:
                self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        if self.other is None:
            self.waiting.append(data)
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End both."""
        del exc
        if self.other is not None:
            self.other.transport.close()

    async def _join(self) -> None:
        index = next(INDEX) % 100
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: Side(self), address(index), PORT)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Side, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
