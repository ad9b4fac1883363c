"""The promises of `registry/base.py`, kept by every registry.

A registry without claims keeps those about endpoints, and says of the rest that it has none.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from contract.registries import (
    POOL,
    ClaimingHarness,
    DnsHarness,
    Harness,
    KubernetesHarness,
    LocalHarness,
    PlainHarness,
    StaticHarness,
    until,
)

from sandgate_router.errors import (
    ClaimExists,
    ClaimNotFound,
    DnsError,
    Draining,
    InvalidRequest,
    NotAllowedHere,
    NotImplementedHere,
    PoolExhausted,
    PoolNotFound,
)
from sandgate_router.names import DEFAULT_NAMESPACE, DEFAULT_PORT, Label, Port
from sandgate_router.registry.base import Claim, ClaimRequest, Endpoint, Event, PoolStatus, Registry
from sandgate_router.target import Target

Make = Callable[..., ClaimingHarness]

CLAIMING = {
    "local": LocalHarness,
    "local-processes": PlainHarness,
    "kubernetes": KubernetesHarness,
}
ROUTING_ONLY = {"static": StaticHarness, "dns": DnsHarness}
EVERY = CLAIMING | ROUTING_ONLY


@contextlib.asynccontextmanager
async def started(harness: Harness) -> AsyncIterator[Registry]:
    await harness.open()
    try:
        await harness.registry.start()
        yield harness.registry
    finally:
        await harness.registry.close()
        await harness.shut()


@pytest.fixture(params=EVERY.values(), ids=list(EVERY))
async def every(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    harness: Harness = request.param(tmp_path)
    async with started(harness):
        yield harness


@pytest.fixture(params=ROUTING_ONLY.values(), ids=list(ROUTING_ONLY))
async def routing(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    harness: Harness = request.param(tmp_path)
    async with started(harness):
        yield harness


@pytest.fixture(params=CLAIMING.values(), ids=list(CLAIMING))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def build(*, warm: int = 1, most: int = 4) -> ClaimingHarness:
        harness: ClaimingHarness = request.param(tmp_path, warm=warm, most=most)
        return harness

    return build


def wanted(**members: object) -> ClaimRequest:
    chosen: dict[str, object] = {"pool": POOL, "namespace": DEFAULT_NAMESPACE, **members}
    return ClaimRequest(**chosen)  # type: ignore[arg-type]


def status(registry: Registry) -> PoolStatus:
    (only,) = registry.pools()
    return only


def endpoint(registry: Registry, claim: Claim, port: int = DEFAULT_PORT) -> Endpoint | None:
    return registry.endpoint(Target(claim.sandbox, claim.namespace, Port(port)))


async def test_an_endpoint_is_one_object_that_knows_its_name(every: Harness) -> None:
    target = await every.sandbox()
    found = every.registry.endpoint(target)
    assert found is not None
    assert found.name == f"{target.namespace}/{target.sandbox}"
    assert every.registry.endpoint(target) is found
    assert (found.path == "") != (found.host == "")


@pytest.mark.parametrize(("sandbox", "namespace"), [("sb-9", "default"), ("sb-1", "elsewhere")])
async def test_an_unknown_sandbox_has_no_endpoint(
    every: Harness, sandbox: str, namespace: str
) -> None:
    target = Target(Label(sandbox), Label(namespace), DEFAULT_PORT)
    assert every.registry.endpoint(target) is None
    # Asked once more it may say why there is none, but it says so within a second.
    async with asyncio.timeout(1):
        with contextlib.suppress(DnsError):
            assert await every.registry.find(target) is None


async def test_whoever_subscribed_hears_of_each_endpoint_that_leaves_the_table(
    every: Harness,
) -> None:
    target = await every.sandbox()
    found = every.registry.endpoint(target)
    heard: list[Endpoint] = []
    still_there: list[Endpoint | None] = []

    def on_gone(gone: Endpoint) -> None:
        heard.append(gone)
        still_there.append(every.registry.endpoint(target))

    every.registry.subscribe(on_gone)
    await every.take_away(target)
    assert heard == [found]
    assert still_there == [None]


async def test_releasing_what_never_was_changes_nothing(every: Harness) -> None:
    for _ in range(2):
        await every.registry.release(DEFAULT_NAMESPACE, Label("never"))
    assert every.registry.claims() == []


async def test_a_registry_that_only_routes_says_so(routing: Harness) -> None:
    assert routing.registry.pools() == []
    with pytest.raises(NotImplementedHere):
        await routing.registry.claim(wanted())
    with pytest.raises(NotImplementedHere):
        await routing.registry.renew(DEFAULT_NAMESPACE, Label("c"), None)
    with pytest.raises(NotImplementedHere):
        await routing.registry.resize(DEFAULT_NAMESPACE, POOL, warm=1, max_members=None)


async def test_a_claim_is_ready_and_keeps_what_it_was_asked_with(make: Make) -> None:
    async with started(make()) as registry:
        ports = (Port(3000), DEFAULT_PORT)
        claim = await registry.claim(
            wanted(
                name=Label("mine"),
                labels={"app": "demo"},
                ports=ports,
                caller="ci",
                lease_seconds=60.0,
                idle_seconds=30.0,
            )
        )
        assert (claim.name, claim.namespace, claim.pool) == ("mine", DEFAULT_NAMESPACE, POOL)
        assert (claim.state, claim.reason) == ("ready", None)
        assert (claim.ports, claim.caller, claim.idle_seconds) == (ports, "ci", 30.0)
        assert claim.labels == {"app": "demo"}
        assert (claim.expires_at - claim.created_at).total_seconds() == pytest.approx(60, abs=1)
        found = endpoint(registry, claim)
        assert found is not None
        assert found.uid == claim.uid
        assert registry.claims() == [claim]


async def test_a_claim_reaches_its_ports_alone(make: Make) -> None:
    async with started(make()) as registry:
        claim = await registry.claim(wanted(ports=(DEFAULT_PORT,)))
        assert endpoint(registry, claim) is not None
        with pytest.raises(NotAllowedHere, match="Port 3000"):
            endpoint(registry, claim, 3000)


async def test_no_two_claims_hold_the_same_sandbox(make: Make) -> None:
    async with started(make(warm=2, most=4)) as registry:
        claims = await asyncio.gather(*(registry.claim(wanted()) for _ in range(4)))
        assert len({claim.uid for claim in claims}) == 4
        assert len({claim.sandbox for claim in claims}) == 4
        assert len({claim.name for claim in claims}) == 4
        await until(lambda: (status(registry).claimed, status(registry).ready) == (4, 0))


async def test_of_two_claims_for_the_last_member_one_wins(make: Make) -> None:
    async with started(make(most=1)) as registry:
        await until(lambda: status(registry).ready == 1)
        results = await asyncio.gather(
            *(registry.claim(wanted(on_empty="fail")) for _ in range(2)), return_exceptions=True
        )
        (refusal,) = (result for result in results if isinstance(result, PoolExhausted))
        assert refusal.retry_after is not None
        assert refusal.retry_after >= 1
        assert sum(isinstance(result, Claim) for result in results) == 1


async def test_who_waits_is_served_in_order_and_who_left_is_skipped(make: Make) -> None:
    harness = make(most=1)
    async with started(harness) as registry:
        held = await registry.claim(wanted())
        served: list[str] = []

        async def wait(name: str) -> None:
            claim = await registry.claim(wanted(name=Label(name)))
            served.append(claim.name)
            await registry.release(claim.namespace, claim.name)

        tasks = [asyncio.create_task(wait(name)) for name in ("first", "second", "third")]
        await until(lambda: status(registry).waiting == 3)
        tasks[1].cancel()
        await until(lambda: status(registry).waiting == 2)
        await registry.release(held.namespace, held.name)
        await asyncio.gather(tasks[0], tasks[2])
        # In a cluster the order is that in which its API server took the claims.
        assert (served if harness.is_sole else sorted(served)) == ["first", "third"]


async def test_an_empty_pool_waits_no_longer_than_asked_and_then_refuses(make: Make) -> None:
    async with started(make(most=1)) as registry:
        await registry.claim(wanted())
        with pytest.raises(PoolExhausted):
            await registry.claim(wanted(wait_seconds=0.05))
        assert status(registry).waiting == 0


async def test_a_claim_that_had_one_started_is_cold(make: Make) -> None:
    async with started(make(warm=0)) as registry:
        assert (await registry.claim(wanted(on_empty="cold"))).launch == "cold"


async def test_a_live_claims_name_is_taken_and_free_again_after_it(make: Make) -> None:
    async with started(make()) as registry:
        mine = wanted(name=Label("mine"))
        claim = await registry.claim(mine)
        with pytest.raises(ClaimExists):
            await registry.claim(mine)
        await registry.release(claim.namespace, claim.name)
        assert (await registry.claim(mine)).uid != claim.uid


async def test_an_unknown_pool_is_not_found(make: Make) -> None:
    async with started(make()) as registry:
        with pytest.raises(PoolNotFound):
            await registry.claim(wanted(pool="other"))
        with pytest.raises(PoolNotFound):
            await registry.claim(wanted(namespace=Label("elsewhere")))
        with pytest.raises(PoolNotFound):
            await registry.resize(DEFAULT_NAMESPACE, "other", warm=1, max_members=None)


async def test_a_lease_ends_its_claim_unless_it_is_renewed(make: Make) -> None:
    async with started(make()) as registry:
        short = await registry.claim(wanted(lease_seconds=0.3))
        kept = await registry.claim(wanted(lease_seconds=0.3))
        renewed = await registry.renew(kept.namespace, kept.name, 60.0)
        assert renewed.expires_at > short.expires_at
        await until(lambda: [claim.name for claim in registry.claims()] == [kept.name])
        assert endpoint(registry, short) is None
        assert endpoint(registry, kept) is not None
        with pytest.raises(ClaimNotFound):
            await registry.renew(short.namespace, short.name, None)


async def test_renewing_without_a_time_never_makes_a_claim_end_earlier(make: Make) -> None:
    async with started(make()) as registry:
        claim = await registry.claim(wanted(lease_seconds=60.0))
        prolonged = (await registry.renew(claim.namespace, claim.name, 600.0)).expires_at
        kept = await registry.renew(claim.namespace, claim.name, None)
        assert kept.expires_at >= prolonged
        shortened = await registry.renew(claim.namespace, claim.name, 5.0)
        assert shortened.expires_at < prolonged
        shortened_end = shortened.expires_at
        assert (await registry.renew(claim.namespace, claim.name, None)).expires_at > shortened_end


async def test_a_released_sandbox_is_gone_for_ever_and_releasing_again_is_no_error(
    make: Make,
) -> None:
    harness = make(most=1)
    async with started(harness) as registry:
        claim = await registry.claim(wanted())
        await asyncio.gather(*(registry.release(claim.namespace, claim.name) for _ in range(3)))
        await registry.release(claim.namespace, claim.name)
        assert endpoint(registry, claim) is None
        assert registry.claims() == []
        following = await registry.claim(wanted())
        assert following.uid != claim.uid
        assert following.sandbox != claim.sandbox
        assert harness.living() == 1


async def test_a_sandbox_that_dies_fails_its_claim_with_the_reason(make: Make) -> None:
    harness = make(most=1)
    async with started(harness) as registry:
        claim = await registry.claim(wanted())
        found, gone = endpoint(registry, claim), list[Endpoint]()
        registry.subscribe(gone.append)
        await harness.kill(claim)
        (listed,) = registry.claims()
        assert (listed.name, listed.state) == (claim.name, "failed")
        assert listed.reason is not None
        assert "SIGKILL" in listed.reason
        assert endpoint(registry, claim) is None
        assert gone == [found]
        await registry.claim(wanted())
        await registry.release(claim.namespace, claim.name)
        assert len(registry.claims()) == 1


async def test_events_tell_what_happened_to_claims_in_order(make: Make) -> None:
    harness, events = make(), list[Event]()
    async with started(harness) as registry:
        registry.on_event(events.append)
        claim = await registry.claim(wanted())
        await registry.renew(claim.namespace, claim.name, 60.0)
        await harness.kill(claim)
        await registry.release(claim.namespace, claim.name)
        await registry.claim(wanted(lease_seconds=0.05))
        await until(lambda: not registry.claims())
        told = [event for event in events if event.claim is not None]
        assert [event.kind for event in told] == [
            "claim.created",
            "claim.renewed",
            "claim.failed",
            "claim.released",
            "claim.created",
            "claim.expired",
        ]
        assert [event.claim.state for event in told if event.claim] == [
            "ready",
            "ready",
            "failed",
            "ended",
            "ready",
            "ended",
        ]
        await until(lambda: any(event.kind == "pool.changed" for event in events))


async def test_a_pool_follows_its_new_size(make: Make) -> None:
    harness = make(warm=1, most=2)
    async with started(harness) as registry:
        if not harness.is_sole:
            with pytest.raises(NotImplementedHere):
                await registry.resize(DEFAULT_NAMESPACE, POOL, warm=3, max_members=3)
            harness.make_room(3)
        most = 3 if harness.is_sole else None
        await registry.resize(DEFAULT_NAMESPACE, POOL, warm=3, max_members=most)
        await until(lambda: status(registry).ready == 3)
        shown = await registry.resize(DEFAULT_NAMESPACE, POOL, warm=1, max_members=None)
        assert (shown.warm, shown.max) == (1, most)
        await until(lambda: status(registry).ready == 1)
        if harness.is_sole:
            with pytest.raises(InvalidRequest):
                await registry.resize(DEFAULT_NAMESPACE, POOL, warm=4, max_members=None)


async def test_closing_sends_who_waits_away_and_ends_what_the_registry_started(
    make: Make,
) -> None:
    harness = make(most=1)
    await harness.open()
    registry = harness.registry
    await registry.start()
    claim = await registry.claim(wanted())
    waiting = asyncio.create_task(registry.claim(wanted()))
    await until(lambda: status(registry).waiting == 1)
    await registry.close()
    with pytest.raises(Draining):
        await waiting
    with pytest.raises(Draining):
        await registry.claim(wanted())
    if harness.is_sole:
        assert endpoint(registry, claim) is None
    assert harness.living() == (0 if harness.is_sole else 1)
    await harness.shut()
