"""Stub sandboxes: many addresses, one process, each request answered at once.

Run as a program it prints `ready` and serves until its standard input ends. A small POST gets
a small answer, content of any size is taken and thrown away, `GET /bytes/N` gives N bytes,
`GET /events/N` a stream of N events and `GET /whoami` the stub's address and the head it saw.
An event is sent when the one before it has arrived: a connection that began with
`GET /arrived` says so by one byte for each.
"""

import asyncio
import sys

import uvloop

PORT = 8888
PIECE = bytes(256 * 1024)

_FIELDS = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\n"
    b"content-type: application/json\r\nkeep-alive: timeout=75\r\ncontent-length: %d\r\n\r\n"
)
_CONTENT = b'{"stdout":"","stderr":"","exit_code":0}'
ANSWER = _FIELDS % len(_CONTENT) + _CONTENT

# An X-Accel-Buffering that says no is what servers of event streams send for nginx's sake.
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 12:00:00 GMT\r\n"
    b"content-type: text/event-stream\r\ncache-control: no-store\r\nx-accel-buffering: no\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT_END = b"\n\n"


def address(index: int) -> str:
    """Return the loopback address of a stub: all of 127.0.0.0/8 can be bound on Linux."""
    return f"127.{1 + index // 62_500}.{index // 250 % 250}.{index % 250 + 1}"


def build_event(index: int) -> bytes:
    """Return one event, about as long as a few words of a command's output."""
    return b'id: %d\nevent: stdout\ndata: {"data": "aGVsbG8gd29ybGQK"}%b' % (index, EVENT_END)


def build_events(count: int) -> bytes:
    """Return the content of a whole stream."""
    return b"".join(map(build_event, range(count)))


class Stub(asyncio.Protocol):
    """Answers requests; it trusts the proxy's framing, which tests check elsewhere."""

    stream: "Stub | None" = None
    """The one that sends events; there is one stream at a time."""

    def __init__(self) -> None:
        self._held = b""
        self._missing = 0
        """Content that is still to come."""
        self._writable = asyncio.Event()
        self._transport: asyncio.Transport
        self._sending: asyncio.Task[None] | None = None
        self._next_event, self._events = 0, 0
        self._tells_arrivals = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the event loop."""
        self._transport = transport  # type: ignore[assignment]
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole by now."""
        while data:
            if self._tells_arrivals:
                if Stub.stream is not None:
                    Stub.stream.send_events(len(data))
                return
            if self._missing:
                taken = min(self._missing, len(data))
                self._missing -= taken
                data = data[taken:]
                if not self._missing:
                    self._transport.write(ANSWER)
                continue
            data, self._held = self._held + data, b""
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._held = data
                return
            head, data = data[:end], data[end + 4 :]
            self._begin(head)

    def pause_writing(self) -> None:
        """Wait for a slow reader."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop sending."""
        del exc
        if self._sending is not None:
            self._sending.cancel()

    def send_events(self, count: int) -> None:
        """Send the next events of the stream, each as a chunk, and the end behind the last."""
        for index in range(self._next_event, min(self._next_event + count, self._events)):
            event = build_event(index)
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._next_event += count
        if self._next_event > self._events:
            self._transport.write(b"0\r\n\r\n")
            Stub.stream = None

    def _begin(self, head: bytes) -> None:
        if head.startswith(b"GET /bytes/"):
            size = int(head[len(b"GET /bytes/") :].split(b" ", 1)[0])
            self._sending = asyncio.get_running_loop().create_task(self._send(size))
            return
        if head.startswith(b"GET /events/"):
            self._next_event, self._events = 0, int(head[len(b"GET /events/") :].split(b" ", 1)[0])
            Stub.stream = self
            self._transport.write(_STREAM_HEAD)
            self.send_events(1)
            return
        if head.startswith(b"GET /arrived "):
            self._tells_arrivals = True
            return
        if head.startswith(b"GET /whoami"):
            own: str = self._transport.get_extra_info("sockname")[0]
            content = own.encode() + b"\n" + head
            self._transport.write(_FIELDS % len(content) + content)
            return
        _, found, rest = head.lower().partition(b"content-length: ")
        self._missing = int(rest.split(b"\r\n", 1)[0]) if found else 0
        if not self._missing:
            self._transport.write(ANSWER)

    async def _send(self, size: int) -> None:
        self._transport.write(_FIELDS % size)
        while size:
            await self._writable.wait()
            self._transport.write(PIECE[:size])
            size -= min(size, len(PIECE))


async def _serve(first: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    for index in range(first, first + count):
        await loop.create_server(Stub, address(index), PORT, backlog=1024)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
