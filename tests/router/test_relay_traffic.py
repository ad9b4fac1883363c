"""What the relay knows of the use of an endpoint: idle claims are ended by it."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from support.raw_client import HANDSHAKE, RawClient, request
from support.relaying import relaying
from support.running_gateway import RunningGateway
from support.scripted_upstream import SWITCHED, UpstreamSide, answer_ok

from sandgate_router.errors import RegistryUnavailable
from sandgate_router.registry.base import Endpoint


def endpoint_of(gateway: RunningGateway) -> Endpoint:
    return gateway.registry.endpoints["default", "sb", 8888]


async def until_quiet(gateway: RunningGateway) -> float:
    """Wait until nothing is under way, and return when the last exchange ended."""
    pool, endpoint = gateway.gateway.relay.connector.pool, endpoint_of(gateway)
    async with asyncio.timeout(15):
        while pool.is_busy(endpoint) or pool.last_end(endpoint) is None:
            await asyncio.sleep(0.01)
    last = pool.last_end(endpoint)
    assert last is not None
    return last


async def hold_on(side: UpstreamSide) -> None:
    await side.read_head()
    await side.read()


async def answer_early(side: UpstreamSide) -> None:
    await side.read_head()
    side.send(b"HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")


async def switch(side: UpstreamSide) -> None:
    await side.read_head()
    side.send(SWITCHED)
    await side.read()


@pytest.fixture
async def relayed() -> AsyncIterator[tuple[RunningGateway, RawClient]]:
    async with relaying(hold_on) as (upstream, gateway, client):
        del upstream
        yield gateway, client


async def test_before_the_first_request_nothing_is_known(
    relayed: tuple[RunningGateway, RawClient],
) -> None:
    gateway, _client = relayed
    pool = gateway.gateway.relay.connector.pool
    assert not pool.is_busy(endpoint_of(gateway))
    assert pool.last_end(endpoint_of(gateway)) is None


async def test_an_upload_keeps_busy_and_its_abort_counts_as_its_end(
    relayed: tuple[RunningGateway, RawClient],
) -> None:
    gateway, client = relayed
    pool = gateway.gateway.relay.connector.pool
    await client.send(request(method="PUT", more="Content-Length: 10\r\n") + b"12")
    async with asyncio.timeout(15):
        while not pool.is_busy(endpoint_of(gateway)):
            await asyncio.sleep(0.01)
    gateway.skip(100)
    now = gateway.gateway.clock()
    assert pool.is_busy(endpoint_of(gateway))
    client.end()
    assert await until_quiet(gateway) >= now


async def test_an_early_answer_and_a_close_count_as_an_end() -> None:
    async with relaying(answer_early) as (_upstream, gateway, client):
        await client.send(request(method="PUT", more="Content-Length: 10\r\n") + b"12")
        assert (await client.read_answer()).status == 413
        assert await until_quiet(gateway) > 0


async def test_a_whole_exchange_counts_and_its_idle_connection_does_not() -> None:
    async with relaying(answer_ok) as (_upstream, gateway, client):
        await client.send(request())
        assert (await client.read_answer()).status == 200
        ended = await until_quiet(gateway)
        gateway.skip(100)  # the idle connection ages out
        async with asyncio.timeout(15):
            while len(gateway.gateway.relay.connector.pool):
                await asyncio.sleep(0.01)
        assert await until_quiet(gateway) == ended


async def test_a_websocket_keeps_busy_and_its_end_counts() -> None:
    async with relaying(switch) as (_upstream, gateway, client):
        pool = gateway.gateway.relay.connector.pool
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        gateway.skip(100)
        now = gateway.gateway.clock()
        assert pool.is_busy(endpoint_of(gateway))
        client.writer.transport.abort()
        assert await until_quiet(gateway) >= now


async def test_a_dial_keeps_busy_and_its_failure_counts() -> None:
    async with relaying(answer_ok) as (_upstream, gateway, client):
        gateway.registry.add("sb", 1)  # nobody listens on port 1
        pool = gateway.gateway.relay.connector.pool
        await client.send(request())
        async with asyncio.timeout(15):
            while not pool.is_busy(endpoint_of(gateway)):
                await asyncio.sleep(0.01)
        assert (await client.read_answer()).status == 502
        assert await until_quiet(gateway) > 0


async def test_endpoints_that_are_gone_leave_nothing_behind() -> None:
    async with relaying(answer_ok) as (upstream, gateway, client):
        pool = gateway.gateway.relay.connector.pool
        for number in range(50):
            gateway.registry.add(f"sb-{number}", upstream.port)
            await client.send(request(sandbox=f"sb-{number}"))
            assert (await client.read_answer()).body == b"ok"
            gateway.gateway.relay.connector.forget(
                gateway.registry.endpoints["default", f"sb-{number}", 8888]
            )
        async with asyncio.timeout(15):
            while len(pool):
                await asyncio.sleep(0.01)
        assert (len(pool._idle), len(pool._all), len(pool._dialling)) == (0, 0, 0)


async def test_bytes_that_come_while_others_are_held_stay_behind_them() -> None:
    class Taking:
        def __init__(self) -> None:
            self.pieces: list[bytes] = []

        def response_data(self, data: bytes) -> None:
            self.pieces.append(data)

    async with relaying(hold_on) as (_upstream, gateway, client):
        await client.send(request())
        pool, endpoint = gateway.gateway.relay.connector.pool, endpoint_of(gateway)
        async with asyncio.timeout(15):
            while not pool._all.get(endpoint):
                await asyncio.sleep(0.01)
        [connection] = pool._all[endpoint]
        exchange, taking = connection.handler, Taking()
        connection.handler = taking  # type: ignore[assignment]
        connection.hold(b"first ")
        connection.data_received(b"second")
        async with asyncio.timeout(15):
            while not taking.pieces:
                await asyncio.sleep(0)
        assert taking.pieces == [b"first second"]
        connection.handler = exchange


async def test_a_sandbox_that_is_replaced_while_it_is_dialled_is_reached_at_its_new_place() -> None:
    async with relaying(answer_ok) as (upstream, gateway, client):
        gateway.registry.add("sb", 1)  # nobody listens on port 1: the dial is tried again
        old, pool = endpoint_of(gateway), gateway.gateway.relay.connector.pool
        await client.send(request())
        async with asyncio.timeout(15):
            while not pool.is_busy(old):
                await asyncio.sleep(0.001)
        gateway.registry.add("sb", upstream.port)
        gateway.gateway.relay.connector.forget(old)
        assert (await client.read_answer()).body == b"ok"


async def test_a_look_up_that_fails_after_everyone_has_left_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked, fail = asyncio.Event(), asyncio.Event()

    async def find(target: object) -> Endpoint | None:
        del target
        asked.set()
        await fail.wait()
        raise RegistryUnavailable

    async with relaying(answer_ok) as (_upstream, gateway, client):
        gateway.registry.find = find  # type: ignore[method-assign]
        await client.send(request(sandbox="unknown"))
        await asyncio.wait_for(asked.wait(), 15)
        client.writer.transport.abort()
        async with asyncio.timeout(15):
            while gateway.gateway.relay.exchanges:
                await asyncio.sleep(0.01)
        fail.set()
        async with asyncio.timeout(15):
            while gateway.gateway.relay.connector.resolver._under_way:
                await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.name == "asyncio"]
