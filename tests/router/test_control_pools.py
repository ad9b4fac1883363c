"""Pools over HTTP: shown one by one, and resized."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.control import running_control
from support.fake_registry import FakeRegistry

from sandgate_router.control.pools import MAX_MEMBERS
from sandgate_router.errors import InvalidRequest, NotImplementedHere

PATH = "/v1/pools/default/python"
WRONG: list[Any] = [
    {},
    [],
    {"warm": None, "max": None},
    {"warm": -1},
    {"warm": MAX_MEMBERS + 1},
    {"max": 0},
    {"max": MAX_MEMBERS + 1},
    {"max": 10**30},
    {"warm": 1.5},
    {"warm": "1"},
    {"warm": True},
    {"size": 1},
    {"warm": 1, "name": "ruby"},
]


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
async def client(registry: FakeRegistry) -> AsyncIterator[httpx.AsyncClient]:
    async with running_control(registry) as control:
        yield control.client


async def size(client: httpx.AsyncClient) -> tuple[int, int]:
    shown = (await client.get(PATH)).json()
    return shown["warm"], shown["max"]


async def test_one_pool_is_shown_as_the_list_shows_it(client: httpx.AsyncClient) -> None:
    (listed,) = (await client.get("/v1/pools")).json()["pools"]
    answer = await client.get(PATH)
    assert (answer.status_code, answer.json()) == (200, listed)


@pytest.mark.parametrize("path", ["default/ruby", "team/python", "DEFAULT/python", "default/a.b"])
async def test_a_pool_that_is_not_there_is_neither_shown_nor_resized(
    client: httpx.AsyncClient, path: str
) -> None:
    for answer in (
        await client.get(f"/v1/pools/{path}"),
        await client.patch(f"/v1/pools/{path}", json={"warm": 1}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "pool_not_found")


@pytest.mark.parametrize(
    ("body", "after"),
    [
        ({"warm": 0}, (0, 32)),
        ({"max": 1}, (4, 1)),
        ({"warm": 8, "max": 64}, (8, 64)),
        ({"warm": 8.0, "max": None}, (8, 32)),
        ({"warm": MAX_MEMBERS, "max": MAX_MEMBERS}, (MAX_MEMBERS, MAX_MEMBERS)),
    ],
)
async def test_a_pool_is_resized(
    client: httpx.AsyncClient, body: dict[str, Any], after: tuple[int, int]
) -> None:
    answer = await client.patch(PATH, json=body)
    assert answer.status_code == 200
    assert (answer.json()["warm"], answer.json()["max"]) == after == await size(client)


@pytest.mark.parametrize("body", WRONG)
async def test_a_size_that_is_none_changes_nothing(client: httpx.AsyncClient, body: Any) -> None:
    answer = await client.patch(PATH, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert await size(client) == (4, 32)


@pytest.mark.parametrize(
    ("failure", "status"),
    [(NotImplementedHere(), 501), (InvalidRequest("warm 9 is above max 8"), 422)],
)
async def test_what_the_registry_refuses_is_told(
    client: httpx.AsyncClient, registry: FakeRegistry, failure: Exception, status: int
) -> None:
    registry.failure = failure
    answer = await client.patch(PATH, json={"warm": 9})
    assert (answer.status_code, answer.json()["detail"]) == (status, str(failure))
