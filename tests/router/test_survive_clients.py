"""Broken clients: they leave, stall, flood and half-close, and leave nothing behind."""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.raw_client import HANDSHAKE, RawClient, connect, request
from support.relaying import relaying
from support.running_gateway import RunningGateway, running_gateway
from support.scripted_upstream import OK, SWITCHED, ScriptedUpstream, UpstreamSide, answer_ok

from sandgate_router.client import ClientConnection
from sandgate_router.registry.base import Endpoint
from sandgate_router.target import Target

SOAK = os.environ.get("SANDGATE_SOAK") == "1"
"""Whether large counts run in full; else at one hundredth."""

PATIENCE = 10.0
HELD_AT_MOST = 64 * 1024 + 256 * 1024
"""The high-water mark, and one read of uvloop on top."""

Leave = Callable[[RawClient], None]
LEAVE: dict[str, Leave] = {"FIN": RawClient.end, "RST": RawClient.reset}


LEFT = 0
"""How a client that left is counted: 499 is no registered status, so its label is `other`."""


def scaled(count: int) -> int:
    return count if SOAK else count // 100


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def ended(upstream: ScriptedUpstream, index: int = 0) -> UpstreamSide:
    """Wait until the gateway has closed the connection with this index."""
    side = await upstream.side(index)
    await asyncio.wait_for(side.ended.wait(), PATIENCE)
    return side


def statuses(gateway: RunningGateway) -> dict[int, int]:
    """Return how many requests ended with each status."""
    counts: dict[int, int] = {}
    for (_, status, _), series in gateway.gateway.metrics._series.items():
        counts[status] = counts.get(status, 0) + int(sum(series[:-1]))
    return counts


# C01, C02, C03, T37: the client leaves.

UPLOADS = {
    "C01 length": ("Content-Length: 100\r\n", b"abc"),
    "C01 chunked": ("Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n"),
    "C01 in a chunk": ("Transfer-Encoding: chunked\r\n", b"5\r\nabc"),
    "C01 in the last chunk": ("Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n0\r\n"),
}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE.keys())
@pytest.mark.parametrize(("more", "body"), UPLOADS.values(), ids=UPLOADS.keys())
async def test_a_client_that_leaves_in_its_upload_leaves_no_whole_request(
    more: str, body: bytes, leave: Leave
) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(method="POST", more=more, body=body))
        side = await upstream.side()
        await until(lambda: b"abc" in side.received)
        leave(client)
        await ended(upstream)
        assert not side.received.endswith(b"0\r\n\r\n")
        await gateway.settled()
        assert len(upstream.sides) == len(gateway.registry.look_ups) == 1
        assert statuses(gateway) == {LEFT: 1}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=["C02 FIN", "C02 RST"])
async def test_a_client_that_leaves_in_its_download_stops_its_sandbox(leave: Leave) -> None:
    sent = [0]

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                side.send(b"x" * 65536)
                await side.drain()
                sent[0] += 1

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request())
        await client.reader.readexactly(10_000_000)
        leave(client)
        await gateway.settled()
        await ended(upstream)
        assert sent[0] * 65536 < 100_000_000  # of ten gigabytes; the rest was never asked for
        assert statuses(gateway) == {LEFT: 1}


@contextlib.asynccontextmanager
async def waiting_for_the_head() -> AsyncIterator[tuple[RunningGateway, Callable[[], object]]]:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        waiting[0] += 1

    waiting = [0]
    async with ScriptedUpstream(script).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)

        def arrived() -> bool:
            if not waiting[0]:
                return False
            waiting[0] -= 1
            return True

        yield gateway, arrived
        await until(lambda: all(side.ended.is_set() for side in upstream.sides))


@contextlib.asynccontextmanager
async def waiting_to_dial() -> AsyncIterator[tuple[RunningGateway, Callable[[], object]]]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: every dial is refused
        async with running_gateway() as gateway:
            gateway.registry.add("sb", unused.getsockname()[1])
            yield gateway, lambda: gateway.gateway.relay.tasks


@contextlib.asynccontextmanager
async def waiting_for_the_look_up() -> AsyncIterator[tuple[RunningGateway, Callable[[], object]]]:
    async def find(target: Target) -> Endpoint | None:
        del target
        await asyncio.Event().wait()
        return None

    async with running_gateway() as gateway:
        gateway.registry.find = find  # type: ignore[method-assign]
        yield gateway, lambda: gateway.gateway.relay.tasks
        resolver = gateway.gateway.relay.connector.resolver
        await until(lambda: not resolver._under_way)  # asked once for all, and given up


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "waiting",
    [waiting_for_the_head, waiting_to_dial, waiting_for_the_look_up],
    ids=["C03 T37 head", "C03 dial", "C03 look-up"],
)
async def test_a_client_that_leaves_while_it_waits_gives_back_all_that_it_held(
    waiting: Callable[
        [], contextlib.AbstractAsyncContextManager[tuple[RunningGateway, Callable[[], object]]]
    ],
) -> None:
    async with waiting() as (gateway, arrived):
        for count in range(scaled(33_400)):
            async with connect(gateway.port) as client:
                await client.send(request())
                await until(arrived)
                LEAVE["RST" if count % 2 else "FIN"](client)
                await until(lambda: not gateway.gateway.relay.exchanges)
        await gateway.settled()
        counts = statuses(gateway)
        assert sum(counts.values()) == scaled(33_400)
        if waiting is not waiting_for_the_look_up:  # which may be given up just before
            assert set(counts) == {LEFT}


async def test_t37_a_thousand_clients_that_leave_after_the_head_leave_nothing() -> None:
    leaving = [True]

    async def script(side: UpstreamSide) -> None:
        while (await side.read_request())[0]:
            side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" if leaving[0] else OK)

    async with ScriptedUpstream(script).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        for _ in range(1000):
            async with connect(gateway.port) as client:
                await client.send(request())
                await client.reader.readuntil(b"\r\n\r\n")
        await gateway.settled()
        await until(lambda: all(side.ended.is_set() for side in upstream.sides))
        leaving[0] = False
        async with connect(gateway.port) as client:
            await client.send(request())
            assert (await client.read_answer()).body == b"ok"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.timeout(900)
async def test_a_client_that_leaves_ends_its_sandbox_connection_at_once_every_time() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        if side.received.startswith(b"GET /content"):
            side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")

    async def leave_once(number: int) -> float:
        async with connect(gateway.port) as client:
            await client.send(request("/content" if number % 4 < 2 else "/head"))
            side = await upstream.side()
            if number % 4 < 2:
                await client.reader.readuntil(b"abc")
            else:
                await until(lambda: side.heads)
            before = time.perf_counter()
            LEAVE["RST" if number % 2 else "FIN"](client)
            await asyncio.wait_for(side.ended.wait(), PATIENCE)
            took = time.perf_counter() - before
        await gateway.settled()
        upstream.sides.clear()
        return took

    async with ScriptedUpstream(script).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        for number in range(40):  # caches fill
            await leave_once(number)
        gc.collect()
        base = descriptors(), len(asyncio.all_tasks()), len(gc.get_objects()), resident_bytes()
        times = sorted([await leave_once(number) for number in range(scaled(10_000))])
        gc.collect()
        await until(lambda: descriptors() <= base[0] and len(asyncio.all_tasks()) <= base[1])
        assert len(gc.get_objects()) - base[2] < 1000
        grown = resident_bytes() - base[3]
        sys.stdout.write(
            f"{len(times)} clients left: sandbox connection ended after"
            f" {times[len(times) // 2] * 1e3:.2f} ms (median), {times[-1] * 1e3:.2f} ms (longest);"
            f" {grown / 2**20:.1f} MiB more resident\n"
        )
        assert times[-1] < 10 * 0.1
        assert grown < 16 * 2**20


# C04: the client reads slowly, or never.


@contextlib.asynccontextmanager
async def slow_client(port: int) -> AsyncIterator[RawClient]:
    """Connect a client whose kernel and library take little ahead of it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


class Flood:
    """A sandbox that sends chunks until it is told to end the response."""

    def __init__(self) -> None:
        self.enough = asyncio.Event()
        self.pieces = 0

    async def script(self, side: UpstreamSide) -> None:
        await side.read_request()
        side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not self.enough.is_set():
            side.send(b"8000\r\n" + b"x" * 32768 + b"\r\n")
            await side.drain()
            self.pieces += 1
            await asyncio.sleep(0.001)  # the gateway takes each piece by itself
        side.send(b"0\r\n\r\n")


async def test_c04_a_client_that_never_reads_is_held_little_for_and_ended() -> None:
    flood = Flood()
    async with ScriptedUpstream(flood.script).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        async with slow_client(gateway.port) as client:
            await client.send(request())
            [connection] = await connections(gateway)
            await until(lambda: connection.full)
            assert gateway.held <= HELD_AT_MOST
            gateway.skip(181.0)  # the first time, bytes were on their way
            assert len(gateway.gateway.relay.exchanges) == 1
            gateway.skip(181.0)
            await gateway.settled()
            flood.enough.set()
            await ended(upstream)


async def connections(gateway: RunningGateway) -> list[ClientConnection]:
    await until(lambda: gateway.gateway.connections)
    return list(gateway.gateway.connections)


async def test_c04_a_client_that_reads_slowly_is_no_client_that_has_stopped() -> None:
    flood = Flood()
    async with ScriptedUpstream(flood.script).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        async with slow_client(gateway.port) as client:
            await client.send(request(more="X-Sandbox-Timeout: 5\r\n"))
            [connection] = await connections(gateway)
            await until(lambda: connection.full)
            for _ in range(3):
                gateway.skip(6.0)
                assert connection.full
                # It takes more than the gateway and the kernel held, so as much is fetched again.
                await client.reader.readexactly(5_000_000)
                await until(lambda: connection.full)
            assert len(gateway.gateway.relay.exchanges) == 1
            flood.enough.set()
            rest = await client.read_rest_until(b"0\r\n\r\n")
            assert rest.endswith(b"0\r\n\r\n")
            await gateway.settled(clients=1, dials=1)


async def leave_a_tail(
    gateway: RunningGateway, flood: Flood, client: RawClient, more: str
) -> ClientConnection:
    """Have a response end for the sandbox while the client has not taken its last bytes."""
    await client.send(request(more=more))
    [connection] = await connections(gateway)
    async with asyncio.timeout(PATIENCE):
        while not connection.unsent:
            await asyncio.sleep(0)
    flood.enough.set()
    await until(lambda: not gateway.gateway.relay.exchanges)
    assert connection.unsent
    return connection


@pytest.mark.parametrize("more", ["", "Connection: close\r\n"], ids=["C04 kept", "C04 to close"])
async def test_the_last_bytes_are_not_kept_for_ever_for_a_client_that_never_reads(
    more: str,
) -> None:
    flood = Flood()
    async with ScriptedUpstream(flood.script).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        async with slow_client(gateway.port) as client:
            await leave_a_tail(gateway, flood, client, more)
            gateway.skip(621.0)
            assert len(gateway.gateway.connections) == 1
            gateway.skip(181.0)
            await until(lambda: not gateway.gateway.connections)


@pytest.mark.parametrize("more", ["", "Connection: close\r\n"], ids=["C04 kept", "C04 to close"])
async def test_the_last_bytes_wait_for_a_client_that_reads_slowly(more: str) -> None:
    flood = Flood()
    async with ScriptedUpstream(flood.script).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        async with slow_client(gateway.port) as client:
            connection = await leave_a_tail(gateway, flood, client, more)
            gateway.skip(621.0)
            before = connection.unsent
            while connection.unsent == before:
                await client.reader.readexactly(1000)
            gateway.skip(181.0)
            assert (await client.read_rest_until(b"0\r\n\r\n")).endswith(b"0\r\n\r\n")


# C05: half-closes.


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stage", ["C05 before the head", "C05 in the content", "C05 unread"])
async def test_the_end_of_a_clients_side_before_the_end_of_the_response_is_the_end_of_both(
    stage: str, version: str
) -> None:
    flood = Flood()

    async def script(side: UpstreamSide) -> None:
        if "unread" in stage:
            await flood.script(side)
            return
        await side.read_request()
        if "content" in stage:
            side.send(b"HTTP/1.1 200 OK\r\n\r\nabc")

    async with ScriptedUpstream(script).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        async with slow_client(gateway.port) as client:
            await client.send(request().replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
            [connection] = await connections(gateway)
            side = await upstream.side()
            if "content" in stage:
                await client.reader.readuntil(b"abc")
            elif "unread" in stage:
                await until(lambda: connection.full)
            else:
                await until(lambda: gateway.gateway.relay.exchanges and side.heads)
            client.writer.write_eof()
            await gateway.settled()
            await ended(upstream)
            assert statuses(gateway) == {LEFT: 1}
            with pytest.raises(ConnectionResetError):  # content cut off is never ended cleanly
                await client.read_rest()


async def test_c05_the_end_of_a_clients_side_after_the_response_is_an_ordinary_close() -> None:
    async with relaying(answer_ok) as (_upstream, gateway, client):
        await client.send(request())
        assert (await client.read_answer()).body == b"ok"
        client.writer.write_eof()
        assert await client.read_rest() == b""
        await gateway.settled(dials=1)
        assert statuses(gateway) == {200: 1}


# C06, T39: the client is slow, or silent.


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b""], None),
        ([b"GET"], 408),
        ([b"GET / HTTP/1.1\r\nHost: localhost\r\n"], 408),
        ([b"G", b"E", b"T", b" "], 408),
        ([b"\x16\x03\x01\x02\x00"], 400),
    ],
    ids=["C06 silence", "C06 method", "C06 no end", "C06 one byte each 2 s", "C06 TLS"],
)
async def test_a_head_that_does_not_come_in_ten_seconds_ends_its_connection(
    pieces: list[bytes], status: int | None
) -> None:
    async with relaying(answer_ok) as (upstream, gateway, client), connect(gateway.port) as other:
        await until(lambda: len(gateway.gateway.connections) == 2)
        for piece in pieces:
            gateway.skip(2.0)
            await client.send(piece)
            await other.send(request())  # meanwhile others are served
            assert (await other.read_answer()).body == b"ok"
        if status != 400:
            assert len(gateway.gateway.connections) == 2
        gateway.skip(9.0)
        if status is None:
            assert await client.read_rest() == b""
        else:
            answer = await client.read_answer()
            assert answer.status == status
            assert await client.read_rest() == b""
        assert len(upstream.heads) == len(pieces)


async def test_c06_a_second_head_has_ten_seconds_from_its_first_byte() -> None:
    async with relaying(answer_ok) as (upstream, gateway, client):
        await client.send(request())
        await client.read_answer()
        gateway.skip(600.0)
        await client.send(b"GET ")
        [connection] = gateway.gateway.connections
        await until(lambda: connection._inbox)
        gateway.skip(9.0)
        await client.send(b"/ ")
        await asyncio.sleep(0.01)  # whether it arrives before the limit does not matter
        gateway.skip(2.0)
        assert (await client.read_answer()).status == 408
        assert await client.read_rest() == b""
        assert len(upstream.heads) == 1


@pytest.mark.parametrize(
    ("more", "body"), list(UPLOADS.values())[:2], ids=["C06 length", "C06 chunked"]
)
async def test_content_that_stalls_ends_its_exchange(more: str, body: bytes) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()

    async with relaying(script) as (upstream, gateway, client):
        more += "X-Sandbox-Timeout: 30\r\n"
        await client.send(request(method="PUT", more=more, body=body))
        side = await upstream.side()
        await until(lambda: body in side.received)
        gateway.skip(29.0)
        assert len(gateway.gateway.relay.exchanges) == 1
        gateway.skip(2.0)
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert answer.json["reached"] == "unknown"
        assert await client.read_rest() == b""
        assert not (await ended(upstream)).received.endswith(b"0\r\n\r\n")
        await gateway.settled()


@pytest.mark.parametrize(
    ("seconds", "kept"), [(30.0, True), (619.0, True), (621.0, False)], ids=lambda v: f"T39 {v}"
)
async def test_an_idle_connection_outlives_the_balancers_in_front(
    seconds: float, *, kept: bool
) -> None:
    async with relaying(answer_ok) as (_upstream, gateway, client):
        await client.send(request())
        await client.read_answer()
        gateway.skip(seconds)
        if kept:
            await client.send(request())
            assert (await client.read_answer()).body == b"ok"
        else:
            assert await client.read_rest() == b""


# C07, C08, C11: many at once.


async def test_c07_of_many_idle_connections_the_longest_idle_ones_make_room() -> None:
    limit, newcomers = 100, 10
    async with (
        ScriptedUpstream(answer_ok).running() as upstream,
        running_gateway(SANDGATE_MAX_CONNECTIONS=str(limit)) as gateway,
        contextlib.AsyncExitStack() as stack,
    ):
        gateway.registry.add("sb", upstream.port)

        async def served() -> RawClient:
            client = await stack.enter_async_context(connect(gateway.port))
            await client.send(request())
            assert (await client.read_answer()).body == b"ok"
            return client

        idle = [await served() for _ in range(limit)]
        await idle[0].send(request())  # so that it is the second that has been idle longest
        assert (await idle[0].read_answer()).body == b"ok"
        more = [await served() for _ in range(newcomers)]
        for client in idle[1 : 1 + newcomers]:
            assert await client.read_rest() == b""
        await until(lambda: len(gateway.gateway.connections) == limit)
        for client in [idle[0], *idle[1 + newcomers :], *more]:
            await client.send(request())
            assert (await client.read_answer()).body == b"ok"
        assert len(upstream.sides) == 1


@pytest.mark.timeout(1800)
async def test_c08_connections_that_come_and_go_leave_no_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_gateway() as gateway:
        for number in range(scaled(100_000)):
            async with connect(gateway.port) as client:
                if number % 3 == 1:
                    await client.send(b"\x00")
                LEAVE["RST" if number % 2 else "FIN"](client)
        await gateway.settled()
        assert gateway.registry.look_ups == []
    assert [record for record in caplog.records if record.name.startswith("sandgate")] == []


async def test_c11_health_is_told_while_every_exchange_waits() -> None:
    waiting = 200

    async def script(side: UpstreamSide) -> None:
        await side.read_request()

    async with (
        ScriptedUpstream(script).running() as upstream,
        running_gateway() as gateway,
        contextlib.AsyncExitStack() as stack,
        connect(gateway.port) as probe,
    ):
        gateway.registry.add("sb", upstream.port)
        for _ in range(waiting):
            client = await stack.enter_async_context(connect(gateway.port))
            await client.send(request())
        await until(lambda: len(upstream.heads) == waiting)
        before = time.perf_counter()
        await probe.send(request("/healthz", sandbox=None))
        assert (await probe.read_answer()).status == 200
        assert time.perf_counter() - before < 10 * 0.1
        assert len(gateway.gateway.relay.exchanges) == waiting


# C09, C10: WebSockets.

FRAMES = {
    "C09 huge frame": b"\x82\xff" + (2**62).to_bytes(8, "big") + b"abcd" + b"x" * 1000,
    "C09 fragments for ever": b"\x01\x80abcd" + b"\x00\x80abcd" * 1000,
    "C09 deflate bit": b"\xc1\x83abcdxyz",
    "C09 no mask": b"\x81\x02hi",
    "C09 bad UTF-8": b"\x81\x82\x00\x00\x00\x00\xff\xfe",
    "C09 ping flood": b"\x89\x80abcd" * 10_000,
    "C09 long ping": b"\x89\xfe\x01\x00abcd" + b"x" * 256,
    "C09 no frame at all": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("raw", FRAMES.values(), ids=FRAMES.keys())
async def test_what_a_client_sends_in_a_tunnel_passes_byte_for_byte(raw: bytes) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(SWITCHED)

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        await client.send(raw)
        side = await upstream.side()
        await until(lambda: len(side.received) >= len(side.heads[0]) + len(raw))
        assert side.received == side.heads[0] + raw
        assert gateway.held == 0
        client.writer.write_eof()
        await ended(upstream)
        assert side.received == side.heads[0] + raw  # no frame of our own
        await gateway.settled()
        assert len(upstream.sides) == 1


async def test_c09_a_client_that_closes_and_waits_for_no_reply_ends_both() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(SWITCHED)

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        await client.send(b"\x88\x82\x00\x00\x00\x00\x03\xe8")
        client.end()
        assert (await ended(upstream)).received.endswith(b"\x03\xe8")
        await gateway.settled()


async def test_c09_a_client_that_closes_and_stays_has_thirty_seconds() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(SWITCHED)
        await asyncio.Event().wait()

    async with relaying(script) as (_upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        client.writer.write_eof()
        [tunnel] = gateway.gateway.relay.tunnels.live
        await until(lambda: tunnel._client_ended)
        gateway.skip(29.0)
        assert gateway.gateway.relay.tunnels.live
        gateway.skip(2.0)
        assert (await client.read_rest())[:1] == b"\x88"
        await gateway.settled()


@pytest.mark.parametrize("moment", ["C10 before the 101", "C10 behind the 101"])
async def test_a_client_that_resets_while_the_101_is_on_its_way_ends_both(moment: str) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        if "behind" in moment:
            side.send(SWITCHED)
        client.reset()
        if "before" in moment:
            side.send(SWITCHED)

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        await ended(upstream)
        await gateway.settled()
        assert len(upstream.sides) == 1
