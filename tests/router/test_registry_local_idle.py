"""A claim that nobody uses ends; one in use does not. The clock is the test's."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.fake_starter import FakeTraffic, Setup
from support.local_sandbox import (
    DEFAULT,
    claimed_sandbox,
    needs_bubblewrap,
    pool,
    request,
)

from sandgate_router.registry.base import Claim, Endpoint
from sandgate_router.registry.local import idle
from sandgate_router.registry.local.health import NotHealthy, count_running
from sandgate_router.registry.local.idle import MAX_SILENCES, IdleSweep
from sandgate_router.registry.local.leases import Lease
from sandgate_router.registry.local.pools import LocalIsolation

IDLE = 100.0


class Watch:
    """Claims of a real registry over names, watched by a sweep with a clock of the test's."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.traffic = FakeTraffic()
        self.running: int | Exception = 0
        self.asked = 0
        self.ended: list[Claim] = []
        self.begun = asyncio.get_running_loop().time()
        self.after = 0.0
        self.sweep = IdleSweep(
            end=self._end, count_running=self._count, clock=lambda: self.begun + self.after
        )
        self.sweep.traffic = self.traffic

    async def claim(self, seconds: float | None = IDLE) -> tuple[Claim, Endpoint]:
        claim = await self.setup.registry.claim(request(idle_seconds=seconds))
        lease = self.setup.registry._leases.get((claim.namespace, claim.name))
        assert lease is not None
        self.sweep.add(lease)
        endpoint = self.setup.endpoint(claim)
        assert endpoint is not None
        return claim, endpoint

    async def at(self, after: float) -> bool:
        """Sweep at a time after the begin; tell whether all claims live still."""
        self.after = after
        await self.sweep.sweep()
        return not self.ended

    def _end(self, lease: object) -> None:
        assert isinstance(lease, Lease)
        self.setup.registry._leases.drop(lease, "claim.expired", reason="idle")
        self.ended.append(lease.claim)

    async def _count(self, _: Endpoint) -> int:
        self.asked += 1
        if isinstance(self.running, Exception):
            raise self.running
        return self.running


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    async with Setup(pool(max=8, idle_seconds=None)) as setup:
        yield Watch(setup)


async def test_a_claim_that_was_never_used_ends_its_idle_time_after_it_was_made(
    watch: Watch,
) -> None:
    claim, _ = await watch.claim()
    assert await watch.at(IDLE - 1)
    assert watch.asked == 0
    assert not await watch.at(IDLE)
    assert (claim.state, watch.asked) == ("ended", 1)


async def test_the_time_counts_from_the_end_of_the_last_exchange(watch: Watch) -> None:
    _, endpoint = await watch.claim()
    watch.traffic.ends[endpoint] = watch.begun + 70
    assert await watch.at(IDLE)
    assert await watch.at(169)
    assert watch.asked == 0
    assert not await watch.at(170)


async def test_an_exchange_or_tunnel_under_way_keeps_a_claim(watch: Watch) -> None:
    _, endpoint = await watch.claim()
    watch.traffic.busy.add(endpoint)
    for hour in range(1, 10):
        assert await watch.at(hour * 3600)
    watch.traffic.busy.clear()
    watch.traffic.ends[endpoint] = watch.begun + 33000
    assert await watch.at(33000 + IDLE - 1)
    assert watch.asked == 0
    assert not await watch.at(33000 + IDLE)


async def test_use_of_another_port_counts(watch: Watch) -> None:
    claim, _ = await watch.claim()
    other = watch.setup.endpoint(claim, 3000)
    assert other is not None
    watch.traffic.busy.add(other)
    assert await watch.at(IDLE)
    watch.traffic.busy.clear()
    assert not await watch.at(2 * IDLE)


async def test_a_running_command_keeps_a_claim_and_its_end_begins_the_time_anew(
    watch: Watch,
) -> None:
    await watch.claim()
    watch.running = 1
    for step in range(40):
        assert await watch.at(IDLE + step * IDLE / 4)
    assert watch.asked == 40
    watch.running = 0
    last = IDLE + 39 * IDLE / 4
    assert await watch.at(last + IDLE / 4)  # ended since the last look, nobody knows when
    assert await watch.at(last + IDLE / 4 + IDLE - 1)
    assert not await watch.at(last + IDLE / 4 + IDLE)


async def test_an_exchange_that_begins_while_the_runtime_is_asked_keeps_the_claim(
    watch: Watch,
) -> None:
    _, endpoint = await watch.claim()

    async def count(_: Endpoint) -> int:
        watch.traffic.busy.add(endpoint)
        return 0

    asking, watch.sweep._count_running = watch.sweep._count_running, count
    assert await watch.at(IDLE)
    watch.sweep._count_running = asking
    watch.traffic.busy.clear()
    assert await watch.at(2 * IDLE - 1)
    assert not await watch.at(2 * IDLE)


async def test_a_claim_released_while_the_runtime_is_asked_is_not_ended_twice(
    watch: Watch,
) -> None:
    claim, _ = await watch.claim()

    async def count(_: Endpoint) -> int:
        await watch.setup.registry.release(DEFAULT, claim.name)
        return 0

    watch.sweep._count_running = count
    assert await watch.at(IDLE)
    assert watch.setup.kinds() == ["claim.created", "claim.released"]


async def test_a_runtime_that_does_not_answer_is_asked_again_before_its_claim_ends(
    watch: Watch,
) -> None:
    await watch.claim()
    watch.running = NotHealthy("answered nothing")
    now = IDLE
    for _ in range(MAX_SILENCES - 1):
        assert await watch.at(now)
        assert await watch.at(now + IDLE / 4 - 1)
        now += IDLE / 4
    assert not await watch.at(now)
    assert watch.asked == MAX_SILENCES


async def test_an_answer_after_a_silence_counts(watch: Watch) -> None:
    await watch.claim()
    watch.running = TimeoutError()
    assert await watch.at(IDLE)
    watch.running = 1
    assert await watch.at(IDLE * 1.25)
    watch.running = 0
    assert await watch.at(IDLE * 1.5)
    assert await watch.at(IDLE * 2.5 - 1)
    assert not await watch.at(IDLE * 2.5)


async def test_a_claim_without_an_idle_time_and_one_nobody_watches_never_end(
    watch: Watch,
) -> None:
    await watch.claim(None)
    assert await watch.at(1e9)
    await watch.claim()
    watch.sweep.traffic = None
    assert await watch.at(2e9)
    assert watch.asked == 0


async def test_claims_that_have_ended_are_forgotten_before_they_are_due(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "_LEAST_DUE", 4)
    watch.sweep._most_due = 4
    kept, _ = await watch.claim()
    for _ in range(50):
        claim, _ = await watch.claim()
        await watch.setup.registry.release(DEFAULT, claim.name)
        assert len(watch.sweep) <= 5
    assert not await watch.at(IDLE)
    assert watch.ended == [kept]


async def test_a_registry_ends_an_idle_claim_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "SWEEP_SECONDS", 0.01)
    async with claimed_sandbox(isolation="none", idle_seconds=None) as inside:
        traffic = FakeTraffic()
        inside.registry.watch(traffic)
        events: list[str | None] = []
        inside.registry.on_event(lambda event: events.append(event.reason))
        inside.registry._fleet.find(DEFAULT, "py").change(pool(idle_seconds=0.1), isolation="none")
        claim = await inside.registry.claim(request())
        used = await inside.registry.claim(request())
        lease = inside.registry._leases.get((DEFAULT, used.name))
        assert lease is not None
        traffic.busy.add(lease.member.endpoints.http)
        async with asyncio.timeout(10):
            while claim.state != "ended":
                await asyncio.sleep(0.01)
        assert "idle" in events
        assert (used.state, inside.claim.state) == ("ready", "ready")


@needs_bubblewrap
@pytest.mark.parametrize("isolation", ["bubblewrap", "none"])
async def test_a_command_that_runs_in_a_real_sandbox_keeps_its_claim(
    monkeypatch: pytest.MonkeyPatch, isolation: LocalIsolation
) -> None:
    monkeypatch.setattr(idle, "SWEEP_SECONDS", 0.01)
    async with claimed_sandbox(isolation=isolation, idle_seconds=0.2) as inside:
        endpoint = inside.endpoint()
        command = asyncio.create_task(inside.sh("sleep 1; echo done"))
        while await count_running(endpoint) == 0:
            await asyncio.sleep(0.01)
        # The relay is said to see nothing, so that the command alone is what keeps the claim.
        inside.registry.watch(FakeTraffic())
        assert await command == "done\n"
        assert [claim.state for claim in inside.registry.claims()] == ["ready"]
        async with asyncio.timeout(10):
            while inside.registry.claims():
                await asyncio.sleep(0.01)
        assert inside.claim.state == "ended"
