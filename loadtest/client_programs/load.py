"""The load: connections that each send one small request after another."""

import argparse
import asyncio
import itertools
import json
import sys
import time

import uvloop

from loadtest.messages import RUN, build_template, is_whole


class Connection(asyncio.Protocol):
    """One connection that keeps one request under way."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._held = b""
        self._sent = time.perf_counter()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; connecting counts only where each request has to connect."""
        self._transport = transport  # type: ignore[assignment]
        if not self._load.reconnect:
            self._sent = time.perf_counter()
        self._transport.write(self._load.next_request())

    def data_received(self, data: bytes) -> None:
        """Count an answer that is whole, and send the next request."""
        self._held += data
        if not is_whole(self._held):
            return
        good = self._held.startswith(b"HTTP/1.1 200 ")
        self._held = b""
        again = self._load.took(time.perf_counter() - self._sent, good=good)
        if again and not self._load.reconnect:
            self._sent = time.perf_counter()
            self._transport.write(self._load.next_request())
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the load, which opens another one where that is its way."""
        self._load.closed(early=exc is not None or bool(self._held))


class Load:
    """What all connections count together."""

    def __init__(
        self,
        *,
        port: int,
        sandboxes: int,
        seconds: float,
        at_least: int,
        identical: bool,
        reconnect: bool,
    ) -> None:
        self.reconnect = reconnect
        """Whether each request has a connection of its own."""
        self.latencies: list[float] = []
        self.failed = 0
        self._port = port
        self._numbers = itertools.count()
        self._templates = [build_template(sandbox) for sandbox in range(sandboxes)]
        self._identical = [one % (RUN, 1, 1, 1) for one in self._templates] if identical else []
        self._until = time.perf_counter() + seconds
        self._at_least = at_least
        self._open = 0
        self._done = asyncio.Event()
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self, connections: int) -> None:
        """Keep `connections` busy until the time is over; all connect at once."""
        self._open = connections
        await asyncio.gather(*(self._connect() for _ in range(connections)))
        await self._done.wait()

    def stop(self) -> None:
        """Let every connection end after the answer that it waits for."""
        self._until, self._at_least = 0.0, 0

    def next_request(self) -> bytes:
        """Return the next request; they go round all sandboxes."""
        number = next(self._numbers)
        sandbox = number % len(self._templates)
        if self._identical:
            return self._identical[sandbox]
        return self._templates[sandbox] % (RUN, number, number, number)

    def took(self, seconds: float, *, good: bool) -> bool:
        """Count one answer; return whether to go on."""
        self.latencies.append(seconds)
        self.failed += not good
        return self._goes_on()

    def closed(self, *, early: bool) -> None:
        """Count a connection that ended before its time, and open the next one."""
        self.failed += early
        if self.reconnect and self._goes_on():
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            return
        self._open -= 1
        if not self._open:
            self._done.set()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Connection(self), "127.0.0.1", self._port)
        except OSError:
            self.closed(early=True)

    def _goes_on(self) -> bool:
        return time.perf_counter() < self._until or len(self.latencies) < self._at_least


async def _run(load: Load, connections: int, *, stop_with_input: bool) -> None:
    loop = asyncio.get_running_loop()
    if stop_with_input:
        loop.add_reader(sys.stdin.fileno(), load.stop)  # it is never written to: it ends
    await load.run(connections)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--sandboxes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0, help="0: until stdin ends")
    parser.add_argument("--at-least", type=int, default=0, help="requests, however long it takes")
    parser.add_argument("--identical", action="store_true", help="the same head for a sandbox")
    parser.add_argument("--reconnect", action="store_true", help="a connection for each request")
    options = parser.parse_args()
    load = Load(
        port=options.port,
        sandboxes=options.sandboxes,
        seconds=options.seconds or float("inf"),
        at_least=options.at_least,
        identical=options.identical,
        reconnect=options.reconnect,
    )
    began = time.perf_counter()
    uvloop.run(_run(load, options.connections, stop_with_input=not options.seconds))
    latencies = sorted(load.latencies)
    result = {
        "requests": len(latencies),
        "failed": load.failed,
        "seconds": time.perf_counter() - began,
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    _main()
