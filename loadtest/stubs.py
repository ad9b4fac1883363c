"""Stub sandboxes: many addresses, one process, each request answered at once.

Run as a program it prints `ready` and serves until its standard input ends.
"""

import asyncio
import sys

import uvloop

PORT = 8888
BODY = b'{"stdout":"","stderr":"","exit_code":0}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n"
    b"keep-alive: timeout=75\r\n\r\n%b" % (len(BODY), BODY)
)


def address(index: int) -> str:
    """Return the loopback address of a stub: all of 127.0.0.0/8 can be bound on Linux."""
    return f"127.1.{index // 250}.{index % 250 + 1}"


class Stub(asyncio.Protocol):
    """Answers each small POST; it trusts the proxy's framing, which tests check elsewhere."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the event loop."""
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._held = b""
        self._missing = 0

    def data_received(self, data: bytes) -> None:
        """Answer every whole request in what has come."""
        data = self._held + data
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                break
            head = data[:end].lower()
            _, found, rest = head.partition(b"content-length: ")
            length = int(rest.split(b"\r\n", 1)[0]) if found else 0
            if len(data) < end + 4 + length:
                break
            data = data[end + 4 + length :]
            self._transport.write(ANSWER)
        self._held = data


async def _serve(count: int) -> None:
    loop = asyncio.get_running_loop()
    for index in range(count):
        await loop.create_server(Stub, address(index), PORT, backlog=1024)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
