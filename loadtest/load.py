"""The load: connections that each send one small request after another.

Requests carry what the handle sends: a token, and a request id and a trace context that are
new each time, so that no cache of whole heads is flattered. Run as a program it prints one
JSON line with the counts and the latencies.
"""

import argparse
import asyncio
import itertools
import json
import os
import time

import uvloop

from loadtest.configs import TOKEN

CONTENT = b'{"command":"true"}'
HEAD = (
    b"POST /execute HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: sandgate/0.1\r\n"
    b"Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"X-Sandbox-ID: sb-%%d\r\nX-Sandbox-Namespace: default\r\nX-Sandbox-Port: 8888\r\n"
    b"Authorization: Bearer %b\r\n"
    b"X-Request-ID: %%b-%%x\r\ntraceparent: 00-%%032x-%%016x-01\r\n\r\n"
    % (len(CONTENT), TOKEN.encode())
)
RUN = os.urandom(6).hex().encode()


class Connection(asyncio.Protocol):
    """One connection that keeps one request under way."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._held = b""
        self._sent = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]
        self._send()

    def data_received(self, data: bytes) -> None:
        """Count an answer that is whole, and send the next request."""
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._held[:end].lower()
        _, _, rest = head.partition(b"content-length: ")
        if len(self._held) < end + 4 + int(rest.split(b"\r\n", 1)[0] or 0):
            return
        good = head.startswith(b"http/1.1 200 ")
        self._held = b""
        if self._load.took(time.perf_counter() - self._sent, good=good):
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a connection that ended before its time."""
        self._load.closed(early=exc is not None)

    def _send(self) -> None:
        number = next(self._load.numbers)
        sandbox = number % self._load.sandboxes
        self._sent = time.perf_counter()
        self._transport.write(HEAD % (sandbox, RUN, number, number, number) + CONTENT)


class Load:
    """What all connections count together."""

    def __init__(self, *, sandboxes: int, seconds: float) -> None:
        self.sandboxes = sandboxes
        self.numbers = itertools.count()
        self.latencies: list[float] = []
        self.failed = 0
        self._until = time.perf_counter() + seconds
        self._open = 0
        self._done = asyncio.Event()

    async def run(self, port: int, connections: int) -> None:
        """Keep `connections` busy until the time is over; all connect at once."""
        loop = asyncio.get_running_loop()
        self._open = connections
        await asyncio.gather(
            *(
                loop.create_connection(lambda: Connection(self), "127.0.0.1", port)
                for _ in range(connections)
            )
        )
        await self._done.wait()

    def took(self, seconds: float, *, good: bool) -> bool:
        """Count one answer; return whether to go on."""
        self.latencies.append(seconds)
        self.failed += not good
        return time.perf_counter() < self._until

    def closed(self, *, early: bool) -> None:
        """Count one closed connection."""
        self.failed += early
        self._open -= 1
        if not self._open:
            self._done.set()


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--sandboxes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    began = time.perf_counter()
    load = Load(sandboxes=options.sandboxes, seconds=options.seconds)
    uvloop.run(load.run(options.port, options.connections))
    elapsed = time.perf_counter() - began
    latencies = sorted(load.latencies)
    print(
        json.dumps(
            {
                "requests": len(latencies),
                "failed": load.failed,
                "seconds": elapsed,
                "p50_ms": 1000 * latencies[len(latencies) // 2],
                "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
            }
        )
    )


if __name__ == "__main__":
    _main()
