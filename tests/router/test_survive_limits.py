"""Limits: what is one too many is told so at once, costs nobody else, and is counted right."""

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support.raw_client import HANDSHAKE, Answer, RawClient, connect, request
from support.relaying import relaying
from support.running_gateway import RunningGateway, running_gateway
from support.scripted_upstream import OK, SWITCHED, ScriptedUpstream, UpstreamSide, answer_ok

from sandgate_router.limits import IdleQueue, InFlight, connection_limit
from sandgate_router.registry.base import Endpoint

SOAK = os.environ.get("SANDGATE_SOAK") == "1"
"""Whether large counts run in full."""

PATIENCE = 10.0
HELD_AT_MOST = 64 * 1024 + 256 * 1024
"""For one exchange: the high-water mark, and one read of uvloop on top."""


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def silent(side: UpstreamSide) -> None:
    """Take requests and answer none, but those for /ok."""
    while head := (await side.read_request())[0]:
        if head.startswith((b"GET /ok ", b"POST /ok ")):
            side.send(OK)


def assert_too_many(answer: Answer, limit: int) -> None:
    assert (answer.status, answer.code) == (429, "too_many_requests")
    assert answer.one("Retry-After") == "1"
    assert answer.json == {
        "detail": f"Too many requests to this sandbox are under way (limit: {limit}).",
        "code": "too_many_requests",
        "reached": "no",
        "retry_safe": True,
    }


class Crowd:
    """Clients of one gateway."""

    def __init__(self, port: int, stack: contextlib.AsyncExitStack) -> None:
        self._port = port
        self._stack = stack

    async def client(self) -> RawClient:
        return await self._stack.enter_async_context(connect(self._port))

    async def waiting(self, count: int, *, more: str = "") -> list[RawClient]:
        """Let so many clients wait for an answer of `sb`."""
        clients = [await self.client() for _ in range(count)]
        for client in clients:
            await client.send(request("/wait", more=more))
        return clients


@contextlib.asynccontextmanager
async def crowded(
    **settings: str,
) -> AsyncIterator[tuple[ScriptedUpstream, RunningGateway, Crowd]]:
    """Run a gateway with the silent sandbox `sb` and the answering one `other`."""
    async with (
        ScriptedUpstream(silent).running() as upstream,
        ScriptedUpstream(answer_ok).running() as answering,
        running_gateway(**settings) as gateway,
        contextlib.AsyncExitStack() as stack,
    ):
        gateway.registry.add("sb", upstream.port)
        gateway.registry.add("sb", upstream.port, asked=3000)
        gateway.registry.add("other", answering.port)
        yield upstream, gateway, Crowd(gateway.port, stack)


# L03: requests of one sandbox under way.


@pytest.mark.parametrize("limit", [1, 3, 256], ids=lambda limit: f"L03 {limit}")
async def test_one_request_too_many_to_a_sandbox_is_429_at_once_and_others_are_served(
    limit: int,
) -> None:
    settings = {} if limit == 256 else {"SANDGATE_MAX_INFLIGHT_PER_SANDBOX": str(limit)}
    async with crowded(**settings) as (upstream, gateway, crowd):
        waiting = await crowd.waiting(limit)
        await until(lambda: len(upstream.heads) == limit)
        client = await crowd.client()
        for _ in range(2):
            asked = len(gateway.registry.look_ups)
            await client.send(request("/ok"))
            assert_too_many(await client.read_answer(), limit)
            assert len(gateway.registry.look_ups) == asked
            await client.send(request("/ok", sandbox="other"))
            assert (await client.read_answer()).body == b"ok"
        assert len(upstream.sides) == len(upstream.heads) == limit
        waiting[0].reset()
        await until(lambda: len(gateway.gateway.relay.in_flight) == limit - 1)
        await client.send(request("/ok"))
        assert (await client.read_answer()).body == b"ok"


async def test_l03_all_ports_and_websockets_of_a_sandbox_count_together() -> None:
    async def script(side: UpstreamSide) -> None:
        if b"pgrade" in await side.read_head():
            side.send(SWITCHED)

    async with (
        ScriptedUpstream(script).running() as upstream,
        running_gateway(SANDGATE_MAX_INFLIGHT_PER_SANDBOX="3") as gateway,
        connect(gateway.port) as plain,
        connect(gateway.port) as other_port,
        connect(gateway.port) as tunnel,
        connect(gateway.port) as late,
    ):
        gateway.registry.add("sb", upstream.port)
        gateway.registry.add("sb", upstream.port, asked=3000)
        await plain.send(request())
        await other_port.send(request(more="X-Sandbox-Port: 3000\r\n"))
        await tunnel.send(request(more=HANDSHAKE))
        assert (await tunnel.read_answer()).status == 101
        await until(lambda: len(upstream.heads) == 3)
        for more in ("", "X-Sandbox-Port: 3000\r\n", HANDSHAKE):
            await late.send(request(more=more))
            assert_too_many(await late.read_answer(), 3)
        tunnel.end()
        await until(lambda: len(gateway.gateway.relay.in_flight) == 2)
        await late.send(request(more=HANDSHAKE))
        assert (await late.read_answer()).status == 101
        for client in (plain, other_port, late):
            client.end()
        await gateway.settled()


async def test_l03_a_request_too_many_with_content_is_answered_and_closed() -> None:
    async with crowded(SANDGATE_MAX_INFLIGHT_PER_SANDBOX="1") as (upstream, _gateway, crowd):
        await crowd.waiting(1)
        await until(lambda: upstream.heads)
        client = await crowd.client()
        await client.send(request(method="PUT", more="Content-Length: 50000\r\n"))
        answer = await client.read_answer()
        assert_too_many(answer, 1)
        assert answer.one("Connection") == "close"
        await client.send(b"x" * 50_000)
        assert await client.read_rest() == b""
        assert len(upstream.heads) == 1


async def test_l03_a_request_too_many_whose_content_is_here_keeps_its_connection() -> None:
    async with crowded(SANDGATE_MAX_INFLIGHT_PER_SANDBOX="1") as (upstream, _gateway, crowd):
        await crowd.waiting(1)
        await until(lambda: upstream.heads)
        client = await crowd.client()
        whole = request(method="PUT", more="Content-Length: 5\r\n") + b"x" * 5
        for _ in range(2):
            await client.send(whole)
            answer = await client.read_answer()
            assert_too_many(answer, 1)
            assert answer.one("Connection") is None
        assert len(upstream.heads) == 1


async def test_l03_an_unknown_sandbox_has_the_same_limit() -> None:
    async def find(target: object) -> Endpoint | None:
        del target
        await asyncio.Event().wait()
        return None

    async with crowded(SANDGATE_MAX_INFLIGHT_PER_SANDBOX="1") as (_upstream, gateway, crowd):
        gateway.registry.find = find  # type: ignore[method-assign]
        first, second = await crowd.client(), await crowd.client()
        await first.send(request(sandbox="unknown"))
        await until(lambda: gateway.gateway.relay.tasks)
        await second.send(request(sandbox="unknown"))
        assert_too_many(await second.read_answer(), 1)
        assert (await first.read_answer()).status == 503  # after a second


async def test_l03_no_limit_is_0() -> None:
    async with crowded(SANDGATE_MAX_INFLIGHT_PER_SANDBOX="0") as (upstream, _gateway, crowd):
        await crowd.waiting(300)
        await until(lambda: len(upstream.heads) == 300)


Way = Callable[[RawClient, RunningGateway, ScriptedUpstream], Awaitable[None]]


async def _answered(client: RawClient, _: RunningGateway, __: ScriptedUpstream) -> None:
    await client.send(request("/ok"))
    assert (await client.read_answer()).status == 200


async def _not_found(client: RawClient, _: RunningGateway, __: ScriptedUpstream) -> None:
    await client.send(request(sandbox="unknown"))
    assert (await client.read_answer()).status == 404


async def _replaced(client: RawClient, gateway: RunningGateway, __: ScriptedUpstream) -> None:
    gateway.registry.add("new", 1, uid="u-2")
    await client.send(request(sandbox="new", more="X-Sandbox-UID: u-1\r\n"))
    assert (await client.read_answer()).status == 421


async def _timed_out(
    client: RawClient, gateway: RunningGateway, upstream: ScriptedUpstream
) -> None:
    await client.send(request("/wait"))
    await until(lambda: upstream.heads)
    gateway.skip(181.0)
    assert (await client.read_answer()).status == 504


async def _broken_off(client: RawClient, _: RunningGateway, upstream: ScriptedUpstream) -> None:
    await client.send(request("/wait"))
    await until(lambda: upstream.heads)
    upstream.sides[0].reset()
    assert (await client.read_answer()).status == 502


async def _released(client: RawClient, gateway: RunningGateway, upstream: ScriptedUpstream) -> None:
    await client.send(request("/wait"))
    await until(lambda: upstream.heads)
    gateway.registry.remove("sb")
    assert (await client.read_answer()).status == 502


async def _too_large(client: RawClient, _: RunningGateway, __: ScriptedUpstream) -> None:
    await client.send(request(method="PUT", more="Content-Length: 11\r\n"))
    assert (await client.read_answer()).status == 413


async def _bad_chunk(client: RawClient, _: RunningGateway, __: ScriptedUpstream) -> None:
    await client.send(request(method="PUT", more="Transfer-Encoding: chunked\r\n"))
    await client.send(b"zz\r\n")
    assert (await client.read_answer()).status == 400


async def _no_handshake(client: RawClient, _: RunningGateway, __: ScriptedUpstream) -> None:
    await client.send(request(more=HANDSHAKE.replace("13", "8")))
    assert (await client.read_answer()).status == 426


WAYS_OUT = {
    "L03 answered": _answered,
    "L03 not found": _not_found,
    "L03 replaced": _replaced,
    "L03 timed out": _timed_out,
    "L03 broken off": _broken_off,
    "L03 released": _released,
    "L03 too large": _too_large,
    "L03 bad chunk": _bad_chunk,
    "L03 no handshake": _no_handshake,
}


@pytest.mark.parametrize("way", WAYS_OUT.values(), ids=WAYS_OUT.keys())
async def test_every_way_out_gives_the_place_back(way: Way) -> None:
    limits = {"SANDGATE_MAX_INFLIGHT_PER_SANDBOX": "1", "SANDGATE_MAX_BODY_BYTES": "10"}
    async with crowded(**limits) as (upstream, gateway, crowd):
        client = await crowd.client()
        await way(client, gateway, upstream)
        client.end()
        await until(lambda: not gateway.gateway.connections)
        assert len(gateway.gateway.relay.in_flight) == 0
        gateway.registry.add("sb", upstream.port)
        client = await crowd.client()
        await client.send(request("/ok"))
        assert (await client.read_answer()).body == b"ok"


async def test_a_websocket_too_many_takes_no_connection_out_of_the_pool() -> None:
    async def script(side: UpstreamSide) -> None:
        while head := (await side.read_request())[0]:
            side.send(SWITCHED if b"pgrade" in head else OK)

    async with (
        relaying(script, WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT="1") as (upstream, gateway, client),
        connect(gateway.port) as tunnel,
    ):
        await tunnel.send(request(more=HANDSHAKE))
        assert (await tunnel.read_answer()).status == 101
        for _ in range(3):
            await client.send(request())
            assert (await client.read_answer()).body == b"ok"
            await client.send(request(more=HANDSHAKE))
            answer = await client.read_answer()
            assert (answer.status, answer.code) == (429, "too_many_requests")
        assert len(upstream.sides) == gateway.dials == 2


def test_a_count_that_falls_to_nothing_is_forgotten() -> None:
    in_flight = InFlight(2)
    for _ in range(2):
        in_flight.enter(("default", "a"))
    assert (repr(in_flight), len(in_flight)) == ("<InFlight 2 of 1 sandboxes>", 2)
    for _ in range(2):
        in_flight.leave(("default", "a"))
    assert repr(in_flight) == "<InFlight 0 of 0 sandboxes>"


# L05: content of requests.

LIMIT = 100_000


async def test_l05_a_declared_length_above_the_limit_is_413_before_anything_is_asked() -> None:
    async with relaying(answer_ok, SANDGATE_MAX_BODY_BYTES=str(LIMIT)) as (
        upstream,
        gateway,
        client,
    ):
        more = f"Content-Length: {LIMIT + 1}\r\n"
        await client.send(request(method="PUT", more=more, body=b"x" * 1000))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (413, "content_too_large")
        assert (answer.json["reached"], answer.one("Connection")) == ("no", "close")
        assert await client.read_rest() == b""
        assert (upstream.sides, gateway.registry.look_ups) == ([], [])
        await gateway.settled()


async def test_l05_no_100_asks_for_content_that_is_too_large() -> None:
    async with relaying(answer_ok, SANDGATE_MAX_BODY_BYTES="10") as (upstream, _gateway, client):
        await client.send(
            request(method="PUT", more="Content-Length: 11\r\nExpect: 100-continue\r\n")
        )
        assert (await client.read_answer()).status == 413
        assert await client.read_rest() == b""
        assert upstream.sides == []


@pytest.mark.parametrize("chunked", [False, True], ids=["L05 length", "L05 chunked"])
async def test_content_of_exactly_the_limit_passes(*, chunked: bool) -> None:
    bodies = []

    async def script(side: UpstreamSide) -> None:
        bodies.append((await side.read_request())[1])
        side.send(OK)

    async with relaying(script, SANDGATE_MAX_BODY_BYTES=str(LIMIT)) as (_, _gateway, client):
        body = b"x" * LIMIT
        if chunked:
            more, framed = (
                "Transfer-Encoding: chunked\r\n",
                b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT, body),
            )
        else:
            more, framed = f"Content-Length: {LIMIT}\r\n", body
        await client.send(request(method="PUT", more=more, body=framed))
        assert (await client.read_answer()).body == b"ok"
        assert bodies == [body]


@pytest.mark.parametrize("last", [b"", b"0\r\n\r\n"], ids=["L05 more to come", "L05 with its end"])
async def test_chunks_above_the_limit_are_413_and_the_sandbox_gets_no_whole_request(
    last: bytes,
) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()

    async with relaying(script, SANDGATE_MAX_BODY_BYTES="10") as (upstream, gateway, client):
        await client.send(request(method="PUT", more="Transfer-Encoding: chunked\r\n"))
        await client.send(b"8\r\nabcdefgh\r\n")
        side = await upstream.side()
        await until(lambda: b"abcdefgh" in side.received)
        await client.send(b"3\r\nijk\r\n" + last)
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (413, "content_too_large")
        assert (answer.json["reached"], answer.json["retry_safe"]) == ("unknown", True)
        if not last:
            await client.send(b"8000\r\n" + b"x" * 0x8000)  # the answer is not reset away
            assert await client.read_rest() == b""
        await asyncio.wait_for(side.ended.wait(), PATIENCE)
        assert b"ijk" not in side.received
        assert not side.received.endswith(b"0\r\n\r\n")
        assert len(upstream.sides) == 1
        await gateway.settled(clients=1 if last else 0)


async def test_l05_chunks_above_the_limit_before_the_sandbox_is_dialled_reach_nobody() -> None:
    async with relaying(answer_ok, SANDGATE_MAX_BODY_BYTES="2") as (upstream, gateway, client):
        more = "Transfer-Encoding: chunked\r\n"
        await client.send(request(method="POST", more=more, body=b"3\r\nabc\r\n"))
        answer = await client.read_answer()
        assert (answer.status, answer.json["reached"]) == (413, "no")
        assert await client.read_rest() == b""
        assert upstream.received == b""
        await gateway.settled()


async def test_l05_chunks_above_the_limit_behind_the_head_of_the_response_are_a_reset() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")

    async with relaying(script, SANDGATE_MAX_BODY_BYTES="2") as (_upstream, gateway, client):
        await client.send(request(method="PUT", more="Transfer-Encoding: chunked\r\n"))
        await client.reader.readuntil(b"ab")
        await client.send(b"3\r\nabc\r\n")
        with pytest.raises(ConnectionResetError):
            await client.read_rest()
        await gateway.settled()


async def test_l05_a_tunnel_is_no_content() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(SWITCHED)
        side.send(await side.read_exactly(1000))

    async with relaying(script, SANDGATE_MAX_BODY_BYTES="10") as (_upstream, _gateway, client):
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        await client.send(b"x" * 1000)
        assert await client.reader.readexactly(1000) == b"x" * 1000


# Connections, of which there are fewer than half of the descriptors.


async def test_a_newcomer_where_all_are_busy_is_503_before_it_asks() -> None:
    async with crowded(SANDGATE_MAX_CONNECTIONS="4") as (upstream, gateway, crowd):
        await crowd.waiting(2)
        tunnel, writing = await crowd.client(), await crowd.client()
        await writing.send(b"GET / HT")
        await tunnel.send(request("/wait", more=HANDSHAKE))
        await until(lambda: len(upstream.heads) == 3)
        asked = len(gateway.registry.look_ups)
        for greeting in (b"", request()):
            newcomer = await crowd.client()
            await newcomer.send(greeting)
            answer = await newcomer.read_answer()
            assert (answer.status, answer.code) == (503, "connection_limit")
            assert (answer.one("Retry-After"), answer.one("Connection")) == ("1", "close")
            assert answer.json["reached"] == "no"
            assert await newcomer.read_rest() == b""
        assert len(gateway.registry.look_ups) == asked
        await until(lambda: len(gateway.gateway.connections) == 4)
        await writing.send(b"TP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: other\r\n\r\n")
        assert (await writing.read_answer()).body == b"ok"
        newcomer = await crowd.client()
        await newcomer.send(request(sandbox="other"))
        assert (await newcomer.read_answer()).body == b"ok"
        assert await writing.read_rest() == b""  # idle now, and let go for the newcomer


async def test_a_flood_of_newcomers_holds_no_more_than_half_as_many_again() -> None:
    async with crowded(SANDGATE_MAX_CONNECTIONS="20") as (upstream, gateway, crowd):
        await crowd.waiting(20)
        await until(lambda: len(upstream.heads) == 20)
        newcomers = [await crowd.client() for _ in range(100)]
        ends = await asyncio.gather(*(client.read_rest() for client in newcomers))
        answered = sum(end.startswith(b"HTTP/1.1 503 ") for end in ends)
        assert answered >= 10
        assert all(end.startswith(b"HTTP/1.1 503 ") or end == b"" for end in ends)
        await until(lambda: len(gateway.gateway.connections) == 20)


async def test_a_connection_is_idle_only_between_two_requests() -> None:
    async with crowded() as (_upstream, gateway, crowd):
        idle = gateway.gateway.idle
        client = await crowd.client()
        await until(lambda: gateway.gateway.connections)
        assert len(idle) == 0  # it has ten seconds for its first head
        for raw in (
            request("/ok"),
            request("/healthz", sandbox=None),
            request("*", method="OPTIONS"),
            request("/ok") + request("*", method="OPTIONS") * 2,
        ):
            await client.send(raw)
            for _ in range(raw.count(b"\r\n\r\n")):
                assert (await client.read_answer()).status in (200, 204)
            assert len(idle) == 1
        await client.send(b"GET /ok")
        await until(lambda: len(idle) == 0)
        await client.send(b" HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: sb\r\n\r\n")
        assert (await client.read_answer()).body == b"ok"
        client.end()
        await until(lambda: not gateway.gateway.connections)
        assert len(idle) == 0


async def test_an_evicted_connection_gets_its_last_bytes() -> None:
    async with crowded() as (_upstream, gateway, crowd):
        client = await crowd.client()
        await client.send(request("/ok"))
        assert (await client.read_answer()).body == b"ok"
        [connection] = gateway.gateway.connections
        connection.send(b"x" * 20_000_000)
        assert connection.unsent
        gateway.gateway.make_room()
        assert len(await client.read_rest()) == 20_000_000
        await until(lambda: not gateway.gateway.connections)


@pytest.mark.parametrize(
    ("descriptors", "wanted", "limit"),
    [
        (1024, 0, 511),
        (1024, 100, 100),
        (1024, 511, 511),
        (1024, 5000, 511),
        (4, 0, 1),
        (1, 0, 1),
        (resource.RLIM_INFINITY, 0, 524_288),
        (resource.RLIM_INFINITY, 7, 7),
    ],
)
def test_connections_take_less_than_half_of_the_descriptors(
    descriptors: int, wanted: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert connection_limit(wanted) == limit


def test_the_longest_idle_connection_is_taken_first() -> None:
    idle = IdleQueue[str]()
    for connection in ("a", "b", "c"):
        idle.add(connection)
    idle.discard("a")
    idle.discard("never here")
    idle.add("a")
    assert [idle.take_oldest() for _ in range(4)] == ["b", "c", "a", None]


# L08: many slow readers.


@pytest.mark.timeout(600)
async def test_l08_many_that_do_not_read_cost_what_their_buffers_hold() -> None:
    readers, size = (500, 64 * 2**20) if SOAK else (50, 16 * 2**20)
    piece = bytes(65536)

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            side.send(piece)
            await side.drain()

    async def read_all(client: RawClient) -> int:
        await client.reader.readuntil(b"\r\n\r\n")
        count = 0
        while count < size and (data := await client.reader.read(2**20)):
            count += len(data)
        return count

    async with (
        ScriptedUpstream(script).running() as upstream,
        running_gateway(SANDGATE_MAX_INFLIGHT_PER_SANDBOX="0") as gateway,
        contextlib.AsyncExitStack() as stack,
    ):
        gateway.registry.add("sb", upstream.port)
        clients = []
        for _ in range(readers):
            client = await stack.enter_async_context(connect(gateway.port, limit=65536))
            await client.send(request())
            clients.append(client)
        most, before, still = 0, -1, 0
        async with asyncio.timeout(120):
            while still < 50:
                await asyncio.sleep(0.002)
                most = max(most, gateway.held)
                stopped = all(connection.full for connection in gateway.gateway.connections)
                still = still + 1 if stopped and gateway.held == before else 0
                before = gateway.held
        assert readers * 16 * 1024 < most <= readers * HELD_AT_MOST
        assert await asyncio.gather(*map(read_all, clients)) == [size] * readers
        await gateway.settled(clients=readers, dials=gateway.dials)


# L11: what could stall the loop.

NESTED = b"[" * 60_000
HEAVY = {
    "L11 10 MB of JSON": (
        request("/v1/claims", method="POST", sandbox=None,
                more="Content-Type: application/json\r\nContent-Length: 10000000\r\n",
                body=b'{"pool":"' + b"x" * 10_000_000),
        413,
    ),
    "L11 10 MB of JSON in chunks": (
        request("/v1/claims", method="POST", sandbox=None,
                more="Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n",
                body=b"%x\r\n" % 10_000_000 + b"[" + b"1," * 5_000_000),
        413,
    ),
    "L11 nested JSON": (
        request("/v1/claims", method="POST", sandbox=None,
                more=f"Content-Type: application/json\r\nContent-Length: {len(NESTED)}\r\n",
                body=NESTED),
        400,
    ),
    "L11 head of 10,000 fields": (request(more="X: 1\r\n" * 10_000), 431),
    "L11 head of 32 KiB that fails at its end": (
        request(more=("X-a:" + "\t b" * 100 + "\r\n") * 90 + "X\x7f: 1\r\n"), 400
    ),
    "L11 head of commas": (request(more="Connection: " + "," * 30_000 + "\r\n"), 200),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "status"), HEAVY.values(), ids=HEAVY.keys())
async def test_a_heavy_request_stalls_nobody(raw: bytes, status: int) -> None:
    async def be_heavy() -> int:
        async with connect(gateway.port) as client:
            sending = asyncio.create_task(client.send(raw))
            answer = await client.read_answer()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            return answer.status

    async with relaying(answer_ok) as (upstream, gateway, client):
        longest, answered = 0.0, 0
        for _ in range(5):
            heavy = asyncio.create_task(be_heavy())
            while not heavy.done():
                before = time.perf_counter()
                await client.send(request())
                assert (await client.read_answer()).body == b"ok"
                longest = max(longest, time.perf_counter() - before)
                answered += 1
            assert heavy.result() == status
        assert answered >= 5
        assert longest < 10 * 0.05
        assert len(upstream.sides) <= 2


# The limits of one head, at their edges.


def padded(raw: bytes, size: int) -> bytes:
    """Return a request whose fields are filled up to a head of `size` bytes."""
    missing = size - len(raw) - len(b"X-Pad: \r\n") + len(b"\r\n")
    return raw[:-2] + b"X-Pad: " + b"a" * missing + b"\r\n\r\n"


def targeted(size: int) -> bytes:
    """Return a request with a request line of `size` bytes."""
    return request("/" + "a" * (size - len("GET / HTTP/1.1")))


CHUNKED = "Transfer-Encoding: chunked\r\n"
EDGES = {
    "request line of 8 KiB": (targeted(8192), 200),
    "request line and a byte": (targeted(8193), 414),
    "head of 32 KiB": (padded(request(), 32 * 1024), 200),
    "head and a byte": (padded(request(), 32 * 1024 + 1), 431),
    "100 fields": (request(more="X: 1\r\n" * 98), 200),
    "101 fields": (request(more="X: 1\r\n" * 99), 431),
    "chunk line of 256 bytes": (
        request(method="PUT", more=CHUNKED, body=b"1;" + b"a" * 254 + b"\r\nx\r\n0\r\n\r\n"),
        200,
    ),
    "chunk line and a byte": (
        request(method="PUT", more=CHUNKED, body=b"1;" + b"a" * 255 + b"\r\nx\r\n0\r\n\r\n"),
        400,
    ),
    "trailers": (
        request(method="PUT", more=CHUNKED, body=b"1\r\nx\r\n0\r\nX-T: 1\r\n\r\n"),
        400,
    ),
}


@pytest.mark.parametrize(("raw", "status"), EDGES.values(), ids=EDGES.keys())
async def test_a_limit_is_where_it_is_said_to_be(raw: bytes, status: int) -> None:
    async with relaying(answer_ok) as (upstream, gateway, client):
        await client.send(raw)
        answer = await client.read_answer()
        assert answer.status == status
        if status == 200:
            assert len(upstream.heads) == 1
            return
        assert await client.read_rest() == b""
        if status != 400:
            assert (upstream.sides, gateway.registry.look_ups) == ([], [])
        await gateway.settled()


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 499 + b"Content-Length: 2\r\n\r\nok", 200),
        (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 500 + b"Content-Length: 2\r\n\r\nok", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: " + b"a" * 65_000 + b"\r\n\r\nok", 200),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: " + b"a" * 65_536 + b"\r\n\r\nok", 502),
    ],
    ids=["500 fields", "501 fields", "64 KiB", "more than 64 KiB"],
)
async def test_a_response_head_has_its_limits_too(raw: bytes, status: int) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(raw)

    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(request())
        assert (await client.read_answer()).status == status
