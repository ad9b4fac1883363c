"""What a scraper sees of pools and claims, counted over a real registry of names."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from support.fake_starter import Setup
from support.local_sandbox import DEFAULT, pool, request

from sandgate_router import claim_metrics
from sandgate_router.claim_metrics import ClaimMetrics

PY = {"sandbox_namespace": "default", "pool": "py"}


class Scraper:
    """A scraper of one registry's metrics."""

    def __init__(self, setup: Setup) -> None:
        self._metrics = CollectorRegistry(auto_describe=False)
        self._metrics.register(ClaimMetrics(setup.registry))

    def value(self, name: str, **labels: str) -> float | None:
        return self._metrics.get_sample_value(f"sandgate_{name}", labels)

    def members(self) -> list[float | None]:
        states = ("ready", "starting", "claimed")
        return [self.value("pool_members", **PY, state=state) for state in states]

    def claims(self) -> dict[str, float | None]:
        outcomes = ("created", "released", "expired", "failed")
        return {each: self.value("claims_total", **PY, outcome=each) for each in outcomes}

    def text(self) -> str:
        return generate_latest(self._metrics).decode()


async def test_a_pool_is_shown_as_it_stands_at_each_scrape() -> None:
    async with Setup(pool(warm=2, max=3)) as setup:
        scraper = Scraper(setup)
        await setup.until_ready(2)
        assert scraper.members() == [2, 0, 0]
        setup.starter.gate.clear()
        await setup.registry.claim(request())
        await setup.until(lambda: setup.status().starting == 1)
        assert scraper.members() == [1, 1, 1]
        await setup.registry.claim(request())
        waiting = asyncio.create_task(setup.registry.claim(request()))
        await setup.until(lambda: setup.status().waiting == 1)
        assert scraper.value("pool_waiting", **PY) == 1
        setup.starter.gate.set()
        await waiting
        assert scraper.members() == [0, 0, 3]
        assert scraper.value("pool_waiting", **PY) == 0


async def test_claims_are_counted_by_what_became_of_them_with_their_waits() -> None:
    async with Setup(pool(max=9)) as setup:
        scraper = Scraper(setup)
        assert "sandgate_claims_total{" not in scraper.text()
        released = await setup.registry.claim(request())
        await setup.registry.release(DEFAULT, released.name)
        setup.member(await setup.registry.claim(request())).die()
        await setup.registry.claim(request(lease_seconds=0.01))
        await setup.until(lambda: len(setup.registry.claims()) == 1)
        assert scraper.claims() == {"created": 3, "released": 1, "expired": 1, "failed": 1}
        assert scraper.value("claim_wait_seconds_count", **PY) == 3
        assert scraper.value("claim_wait_seconds_bucket", **PY, le="300.0") == 3
        waited = scraper.value("claim_wait_seconds_sum", **PY)
        assert waited is not None
        assert 0 < waited < 10


async def test_a_wait_falls_into_every_bucket_whose_bound_it_does_not_pass() -> None:
    async with Setup(pool(warm=0, max=1)) as setup:
        scraper = Scraper(setup)
        setup.starter.gate.clear()
        claiming = asyncio.create_task(setup.registry.claim(request()))
        await asyncio.sleep(0.03)
        setup.starter.gate.set()
        await claiming
        assert scraper.value("claim_wait_seconds_bucket", **PY, le="0.025") == 0
        assert scraper.value("claim_wait_seconds_bucket", **PY, le="60.0") == 1


async def test_pools_beyond_the_limit_are_counted_as_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim_metrics, "MAX_POOLS", 1)
    async with Setup(pool(), pool(name="second")) as setup:
        scraper = Scraper(setup)
        for name in ("py", "second", "second"):
            await setup.registry.claim(request(pool=name))
        other = {"sandbox_namespace": "other", "pool": "other"}
        assert scraper.value("claims_total", **other, outcome="created") == 2
        assert scraper.value("claims_total", **PY, outcome="created") == 1
        assert scraper.value("claim_wait_seconds_count", **other) == 2
