"""Claims whose client leaves while they wait: nothing may be left behind."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect
from support.asgi_channel import Client
from support.fake_registry import FakeRegistry

from sandgate_router.control.waiting import claim_while_connected
from sandgate_router.errors import PoolNotFound
from sandgate_router.names import DEFAULT_NAMESPACE
from sandgate_router.registry.base import ClaimRequest, Registry

WANTED = ClaimRequest(pool="python", namespace=DEFAULT_NAMESPACE)


def claim(registry: Registry, client: Client) -> "asyncio.Task[object]":
    return asyncio.create_task(claim_while_connected(registry, WANTED, client.receive))


async def test_a_claim_is_handed_to_a_client_that_stays() -> None:
    registry, client = FakeRegistry(ready=0), Client()
    claiming = claim(registry, client)
    await registry.waiting.wait()
    registry.add_member()
    assert await claiming == registry.claims()[0]
    assert registry.releases == []


async def test_a_refusal_is_passed_on() -> None:
    elsewhere = ClaimRequest(pool="ruby", namespace=DEFAULT_NAMESPACE)
    with pytest.raises(PoolNotFound):
        await claim_while_connected(FakeRegistry(), elsewhere, Client().receive)


async def test_a_client_that_leaves_gives_up_its_place() -> None:
    registry, client = FakeRegistry(ready=0), Client()
    claiming = claim(registry, client)
    await registry.waiting.wait()
    client.left.set()
    with pytest.raises(ClientDisconnect):
        await claiming
    registry.add_member()
    assert registry.claims() == []
    assert registry.pools()[0].ready == 1


async def test_a_member_taken_while_the_client_left_is_released() -> None:
    registry, client = FakeRegistry(ready=0), Client()
    registry.stubborn = True
    claiming = claim(registry, client)
    await registry.waiting.wait()
    client.left.set()
    with pytest.raises(ClientDisconnect):
        await claiming
    assert registry.claims() == []
    assert registry.releases == [("default", "claim-1")]


async def test_a_client_that_left_in_the_same_turn_as_the_claim_came_holds_no_claim() -> None:
    registry, client = FakeRegistry(ready=0), Client()
    claiming = claim(registry, client)
    await registry.waiting.wait()
    registry.add_member()
    client.left.set()
    with pytest.raises(ClientDisconnect):
        await claiming
    assert registry.claims() == []
    assert registry.releases == [("default", "claim-1")]


async def test_a_refusal_after_the_client_left_reaches_nobody() -> None:
    registry, client = FakeRegistry(), Client()
    registry.failure = PoolNotFound()
    client.left.set()
    with pytest.raises(ClientDisconnect):
        await claim(registry, client)


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_server_that_stops_leaves_no_claim_behind(*, stubborn: bool) -> None:
    registry = FakeRegistry(ready=0)
    registry.stubborn = stubborn
    claiming = claim(registry, Client())
    await registry.waiting.wait()
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert registry.claims() == []
    assert len(registry.releases) == stubborn


async def test_no_task_is_left_over() -> None:
    before = asyncio.all_tasks()
    await claim_while_connected(FakeRegistry(), WANTED, Client().receive)
    assert asyncio.all_tasks() == before
