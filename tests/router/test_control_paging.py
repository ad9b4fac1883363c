"""Pages of claims: in order, without repeats or gaps, whatever comes and goes meanwhile."""

import base64
import json
import random
from datetime import timedelta

import pytest
from support.control import running_control
from support.fake_registry import CREATED_AT, FakeRegistry

from sandgate_router.control.paging import build_cursor, parse_cursor
from sandgate_router.errors import InvalidRequest
from sandgate_router.names import DEFAULT_NAMESPACE, Label
from sandgate_router.registry.base import ClaimRequest

POSITION = (CREATED_AT + timedelta(microseconds=1), "default", "a")


def encode(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


WRONG = [
    "x",
    "é",
    "%",
    "a b",
    build_cursor(POSITION) + "=",
    build_cursor(POSITION)[:-1],
    build_cursor(POSITION) + "A",
    encode(None),
    encode({}),
    encode([]),
    encode(["2026-11-30T12:00:00+00:00", "default"]),
    encode(["2026-11-30T12:00:00+00:00", "default", 1]),
    encode(["2026-11-30T12:00:00", "default", "a"]),
    encode(["2026-11-30T13:00:00+01:00", "default", "a"]),
    encode(["0001-01-01T00:00:00+14:00", "a", "b"]),
    encode(["9999-12-31T23:59:59-14:00", "a", "b"]),
    encode(["noon", "default", "a"]),
    encode([0, "default", "a"]),
    "W" * 8000,
]


def test_a_cursor_comes_back_as_it_was() -> None:
    assert parse_cursor(build_cursor(POSITION)) == POSITION
    assert parse_cursor("") is None


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_cursor_of_ours_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^cursor .* is no cursor; give the next_cursor"):
        parse_cursor(text)


async def claim(registry: FakeRegistry, name: str, **labels: str) -> None:
    registry.now += timedelta(milliseconds=1)
    wanted = ClaimRequest("python", DEFAULT_NAMESPACE, name=Label(name), labels=labels)
    await registry.claim(wanted)


async def test_pages_show_each_claim_once_in_order() -> None:
    registry = FakeRegistry(ready=25)
    for number in range(25):
        await claim(registry, f"c{number}", even=str(number % 2 == 0))
    async with running_control(registry) as control:
        seen, cursor, sizes = [], "", []
        while True:
            answer = await control.client.get(
                "/v1/claims", params={"limit": 6, "cursor": cursor, "label_selector": "even=True"}
            )
            page = answer.json()
            sizes.append(len(page["claims"]))
            seen += [shown["claim"] for shown in page["claims"]]
            if "next_cursor" not in page:
                break
            cursor = page["next_cursor"]
    assert seen == [f"c{number}" for number in range(0, 25, 2)]
    assert sizes == [6, 6, 1]


async def test_a_page_that_is_just_full_is_the_last() -> None:
    registry = FakeRegistry(ready=2)
    await claim(registry, "a")
    await claim(registry, "b")
    async with running_control(registry) as control:
        assert "next_cursor" not in (await control.client.get("/v1/claims?limit=2")).json()
        assert "next_cursor" in (await control.client.get("/v1/claims?limit=1")).json()


async def test_claims_made_at_the_same_time_are_neither_repeated_nor_left_out() -> None:
    registry = FakeRegistry(ready=10)
    for name in "jihgfedcba":
        await registry.claim(ClaimRequest("python", DEFAULT_NAMESPACE, name=Label(name)))
    seen, cursor = [], ""
    async with running_control(registry) as control:
        for _ in range(10):
            page = (await control.client.get(f"/v1/claims?limit=1&cursor={cursor}")).json()
            seen += [shown["claim"] for shown in page["claims"]]
            cursor = page.get("next_cursor", "")
    assert (seen, cursor) == (list("abcdefghij"), "")


async def test_claims_that_come_and_go_between_pages_move_no_other() -> None:
    registry = FakeRegistry(ready=1000)
    chance = random.Random(7)
    for number in range(60):
        await claim(registry, f"stays-{number}")
        await claim(registry, f"goes-{number}")
    leaving = [f"goes-{number}" for number in range(60)]
    chance.shuffle(leaving)
    seen, cursor, rounds = [], "", 0
    async with running_control(registry) as control:
        while rounds == 0 or cursor:
            page = (await control.client.get(f"/v1/claims?limit=7&cursor={cursor}")).json()
            seen += [shown["claim"] for shown in page["claims"]]
            cursor = page.get("next_cursor", "")
            for _ in range(4):
                if leaving:
                    await registry.release(DEFAULT_NAMESPACE, Label(leaving.pop()))
            if rounds < 20:
                await claim(registry, f"comes-{rounds}")
            rounds += 1
    assert [name for name in seen if name.startswith("stays")] == [
        f"stays-{number}" for number in range(60)
    ]
    assert len(seen) == len(set(seen))


async def test_a_wrong_cursor_and_a_wrong_selector_are_told_over_http() -> None:
    async with running_control(FakeRegistry()) as control:
        for query, start in (
            ({"cursor": "x"}, "cursor 'x' is no cursor"),
            ({"label_selector": "a in b"}, "label_selector part 'a in b' is none of"),
        ):
            answer = await control.client.get("/v1/claims", params=query)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
            assert answer.json()["detail"].startswith(start)
