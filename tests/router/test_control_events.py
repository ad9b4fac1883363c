"""`GET /v1/events`: what happened, in order, from where the client left off."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from support.control import Control, KnownTokens, bearer, caller, running_control
from support.fake_registry import CREATED_AT, FakeRegistry
from support.raw_client import connect

from sandgate_router.control.events import EventRing
from sandgate_router.names import DEFAULT_NAMESPACE, Label
from sandgate_router.registry.base import ClaimRequest, Event

START = 1_764_504_000_000_000
"""The id before the first event of `ring()`."""

TEAM = Label("team")


def ring(capacity: int = 100) -> EventRing:
    return EventRing(now=lambda: START / 1e6, capacity=capacity)


def event(pool: str = "python", namespace: Label = DEFAULT_NAMESPACE) -> Event:
    return Event("pool.changed", CREATED_AT, namespace, pool)


@dataclass
class Message:
    """One block of a stream."""

    id: int | None = None
    kind: str | None = None
    data: dict[str, Any] | None = None
    comments: list[str] = field(default_factory=list)


@asynccontextmanager
async def following(
    control: Control, fields: dict[str, str] | None = None
) -> AsyncIterator["Stream"]:
    async with control.client.stream("GET", "/v1/events", headers=fields) as answer:
        yield Stream(answer)


class Stream:
    """The messages of an answer."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self) -> Message | None:
        """Return the next message; None at a clean end."""
        message = Message()
        async with asyncio.timeout(20):
            async for line in self._lines:
                if not line:
                    return message
                name, _, value = line.partition(": ")
                if name == "":
                    message.comments.append(value)
                elif name == "id":
                    message.id = int(value)
                elif name == "event":
                    message.kind = value
                else:
                    message.data = json.loads(value)
        return None

    async def kinds(self, count: int) -> list[str | None]:
        return [message.kind for _ in range(count) if (message := await self.next())]


# The ring


def test_ids_begin_at_the_time_of_the_start_and_increase_by_one() -> None:
    kept = ring()
    assert kept.last == START
    for _ in range(3):
        kept.add(event())
    assert [number for number, _ in kept.after(START, limit=10)] == [
        START + 1,
        START + 2,
        START + 3,
    ]
    assert [number for number, _ in kept.after(START + 1, limit=1)] == [START + 2]
    assert kept.after(START + 3, limit=10) == []


def test_a_gateway_that_starts_later_never_reaches_the_ids_of_the_one_before() -> None:
    before = ring()
    for _ in range(1000):
        before.add(event())
    after = EventRing(now=lambda: START / 1e6 + 1)
    assert not after.reaches(before.last)
    assert not before.reaches(after.last)


def test_what_is_dropped_is_not_reached_any_more() -> None:
    kept = ring(capacity=3)
    assert kept.reaches(START)
    assert not kept.reaches(START - 1)
    assert not kept.reaches(START + 1)
    for _ in range(5):
        kept.add(event())
    assert [kept.reaches(START + n) for n in range(7)] == [False, False, *[True] * 4, False]
    assert len(kept.after(START + 2, limit=10)) == 3
    assert repr(kept) == "<EventRing 3 events>"


# The stream


async def test_what_happens_to_claims_and_pools_is_told_in_order() -> None:
    registry = FakeRegistry(ready=2)
    async with running_control(registry, events=ring()) as control, following(control) as stream:
        assert stream.answer.headers["content-type"] == "text/event-stream"
        assert stream.answer.headers["cache-control"] == "no-store"
        assert await stream.next() == Message(id=START, comments=["from now on"])
        client = control.client
        created = (await client.post("/v1/claims", json={"pool": "python", "name": "a"})).json()
        await client.post("/v1/claims", json={"pool": "python", "name": "b"})
        await client.post("/v1/claims/default/a/renew", json={"lease_seconds": 60})
        await client.patch("/v1/pools/default/python", json={"warm": 7})
        await client.delete("/v1/claims/default/a")
        registry.expire(DEFAULT_NAMESPACE, Label("b"))
        told = [await stream.next() for _ in range(6)]
    assert [(message.id, message.kind) for message in told if message] == [
        (START + 1, "claim.created"),
        (START + 2, "claim.created"),
        (START + 3, "claim.renewed"),
        (START + 4, "pool.changed"),
        (START + 5, "claim.released"),
        (START + 6, "claim.expired"),
    ]
    first, pool, last = told[0], told[3], told[5]
    assert first is not None
    del created["token"], created["token_expires_at"]
    assert first.data == {
        "kind": "claim.created",
        "at": "2026-11-30T12:00:00.000Z",
        "namespace": "default",
        "pool": "python",
        "reason": None,
        "claim": created,
        "status": None,
    }
    assert pool is not None
    assert pool.data is not None
    assert (pool.data["claim"], pool.data["status"]["warm"]) == (None, 7)
    assert last is not None
    assert last.data is not None
    assert (last.data["reason"], last.data["claim"]["state"]) == ("lease", "ended")


async def test_a_stream_goes_on_behind_the_last_event_that_was_seen() -> None:
    kept = ring()
    async with running_control(FakeRegistry(), events=kept) as control:
        for number in range(200):
            kept.add(event(f"p{number}"))
        since = {"last-event-id": str(START + 150)}
        async with following(control, since) as stream:
            kept.add(event("later"))
            told = [await stream.next() for _ in range(51)]
    assert [message.id for message in told if message] == [*range(START + 151, START + 202)]
    assert told[-1] is not None
    assert told[-1].data is not None
    assert told[-1].data["pool"] == "later"


async def test_a_stream_that_reconnects_all_the_time_misses_and_repeats_nothing() -> None:
    kept = ring(capacity=1000)
    seen: list[int] = []
    async with running_control(FakeRegistry(), events=kept) as control:

        async def happen() -> None:
            for _ in range(300):
                kept.add(event())
                await asyncio.sleep(0)

        happening = asyncio.create_task(happen())
        last = START
        while len(seen) < 300:
            async with following(control, {"last-event-id": str(last)}) as stream:
                for _ in range(min(7, 300 - len(seen))):
                    message = await stream.next()
                    assert message is not None
                    assert message.id is not None
                    last = message.id
                    seen.append(last)
        await happening
    assert seen == [*range(START + 1, START + 301)]


@pytest.mark.parametrize(
    "since", ["0", str(START - 1), str(START + 1000), "9" * 19, "9" * 40, "x", "-1", "1e3"]
)
async def test_an_id_that_is_too_old_or_foreign_is_told_by_the_first_event(since: str) -> None:
    kept = ring(capacity=3)
    async with running_control(FakeRegistry(), events=kept) as control:
        for _ in range(6):
            kept.add(event())
        async with following(control, {"last-event-id": since}) as stream:
            reset = await stream.next()
            kept.add(event("next"))
            first = await stream.next()
    assert reset is not None
    assert first is not None
    assert (reset.kind, first.kind) == ("stream.reset", "pool.changed")
    assert reset.data is not None
    assert reset.data["detail"].endswith("list claims and pools anew.")
    assert (reset.id, first.id) == (START + 6, START + 7)


async def test_an_empty_id_is_none() -> None:
    async with (
        running_control(FakeRegistry(), events=ring()) as control,
        following(control, {"last-event-id": ""}) as stream,
    ):
        assert await stream.next() == Message(id=START, comments=["from now on"])


async def test_a_reader_that_is_too_slow_is_told_that_it_missed_something() -> None:
    kept = ring(capacity=50)
    async with (
        running_control(FakeRegistry(), events=kept) as control,
        connect(control.gateway.port) as client,
    ):
        await client.send(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = bytearray()
        while b"from now on" not in received:
            received += await client.reader.read(1000)
        # It reads no more until all that is in between has filled and lost its place.
        for _ in range(20_000):
            kept.add(event("p" * 200))
            if kept.last % 50 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while b"stream.reset" not in received:
                received += await client.reader.read(1_000_000)


async def test_a_quiet_stream_says_that_it_lives() -> None:
    async with (
        running_control(FakeRegistry(), events=ring(), ping_seconds=0.01) as control,
        following(control) as stream,
    ):
        assert await stream.next() == Message(id=START, comments=["from now on"])
        for _ in range(3):
            assert await stream.next() == Message(id=START, comments=["ping"])


async def test_no_deadline_of_the_connection_ends_a_stream() -> None:
    kept = ring()
    async with (
        running_control(FakeRegistry(), events=kept) as control,
        following(control) as stream,
    ):
        await stream.next()
        control.gateway.skip(7 * 24 * 3600)
        kept.add(event())
        assert await stream.kinds(1) == ["pool.changed"]


async def test_head_has_the_fields_and_ends() -> None:
    async with running_control(FakeRegistry(), events=ring()) as control:
        answer = await control.client.head("/v1/events")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"] == "text/event-stream"
        assert (await control.client.get("/healthz")).status_code == 200


# Its beginning and its end


async def test_http_1_0_has_no_stream_and_is_told_what_to_do() -> None:
    async with running_control(FakeRegistry()) as control, connect(control.gateway.port) as client:
        await client.send(b"GET /v1/events HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = await client.read_answer()
    assert answer.status == 505
    assert answer.one("transfer-encoding") is None
    refusal = json.loads(answer.body)
    assert refusal["code"] == "version_not_supported"
    assert "HTTP/1.1" in refusal["detail"]


async def test_a_gateway_that_stops_ends_its_streams_cleanly() -> None:
    kept = ring()
    async with running_control(FakeRegistry(), events=kept) as control:
        async with following(control) as stream, following(control) as other:
            await stream.next()
            await other.next()
            kept.close()
            assert (await stream.next(), await other.next()) == (None, None)
        async with following(control) as late:
            assert await late.next() is None
        assert (await control.client.get("/healthz")).status_code == 200


async def test_a_client_that_leaves_leaves_nothing_behind() -> None:
    kept = ring()
    registry = FakeRegistry()
    async with running_control(registry, events=kept) as control:
        await control.client.get("/healthz")
        await control.client.aclose()
        await control.gateway.settled()
        before = len(asyncio.all_tasks())
        for number in range(30):
            async with connect(control.gateway.port) as client:
                await client.send(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                received = b""
                while b"from now on" not in received:
                    received += await client.reader.read(1000)
                if number % 2:
                    kept.add(event())
        await control.gateway.settled()
        async with asyncio.timeout(10):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.001)
        assert len(registry._listeners) == 1


# Who sees what


CALLERS = (
    caller("reader", "read"),
    caller("team", "read", namespaces=["team"]),
    caller("root", "admin", namespaces=["*"]),
    caller("claimer", "claim"),
)


async def test_a_stream_tells_of_the_callers_namespaces_alone() -> None:
    kept = ring()
    async with running_control(
        FakeRegistry(), callers=KnownTokens(*CALLERS), events=kept
    ) as control:
        seen: dict[str, list[str]] = {}
        for name in ("reader", "team", "root"):
            since = bearer(name) | {"last-event-id": str(START)}
            async with following(control, since) as stream:
                if name == "reader":
                    kept.add(event("a"))
                    kept.add(event("b", TEAM))
                    kept.add(event("c"))
                told = [await stream.next() for _ in range(1 if name == "team" else 2)]
                seen[name] = [m.data["pool"] for m in told if m is not None and m.data is not None]
    assert seen == {"reader": ["a", "c"], "team": ["b"], "root": ["a", "b"]}


async def test_what_was_not_for_the_caller_does_not_make_its_place_too_old() -> None:
    kept = ring(capacity=3)
    async with running_control(
        FakeRegistry(), callers=KnownTokens(*CALLERS), events=kept, ping_seconds=0.05
    ) as control:
        async with following(control, bearer("team")) as stream:
            await stream.next()
            for _ in range(10):
                kept.add(event())
                await asyncio.sleep(0)
            message = await stream.next()
            while message is not None and message.id != kept.last:
                message = await stream.next()
        since = bearer("team") | {"last-event-id": str(kept.last)}
        async with following(control, since) as stream:
            kept.add(event("mine", TEAM))
            assert await stream.kinds(1) == ["pool.changed"]


async def test_who_may_only_claim_may_not_follow() -> None:
    known = KnownTokens(*CALLERS)
    async with running_control(FakeRegistry(), callers=known, events=ring()) as control:
        answer = await control.client.get("/v1/events", headers=bearer("claimer"))
        assert answer.status_code == 403
        assert (await control.client.get("/v1/events")).status_code == 401


async def test_a_stream_ends_when_its_caller_is_taken_off_the_list() -> None:
    kept = ring()
    known = KnownTokens(*CALLERS)
    async with (
        running_control(FakeRegistry(), callers=known, events=kept) as control,
        following(control, bearer("root")) as stream,
    ):
        await stream.next()
        known.callers.clear()
        kept.add(event())
        assert await stream.next() is None


async def test_an_event_cannot_begin_another_field_of_the_stream() -> None:
    registry = FakeRegistry()
    kept = ring()
    async with running_control(registry, events=kept) as control, following(control) as stream:
        await stream.next()
        kept.add(
            Event("claim.failed", CREATED_AT, DEFAULT_NAMESPACE, "a", reason="x\n\nid: 7\r\u2028")
        )
        message = await stream.next()
        assert message is not None
        assert message.data is not None
        assert message.data["reason"] == "x\n\nid: 7\r\u2028"
        await registry.claim(ClaimRequest("python", DEFAULT_NAMESPACE))
        assert await stream.kinds(1) == ["claim.created"]
