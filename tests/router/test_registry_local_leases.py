import asyncio

import pytest
from support.fake_starter import DEATH, Setup
from support.local_sandbox import DEFAULT, POOL, pool, request

from sandgate_router.errors import ClaimNotFound, NotAllowedHere, PoolExhausted, QuotaExceeded
from sandgate_router.names import Label, Port
from sandgate_router.registry.base import Claim, Endpoint, Event

OTHER = Label("other")


def life(claim: Claim) -> float:
    return (claim.expires_at - claim.created_at).total_seconds()


async def test_a_claim_keeps_what_it_was_asked_with() -> None:
    async with Setup(pool(idle_seconds=300.0)) as setup:
        claim = await setup.registry.claim(
            request(ports=(Port(3000),), idle_seconds=7.0, caller="ci", lease_seconds=60.0)
        )
        assert (claim.ports, claim.idle_seconds, claim.caller) == ((3000,), 7.0, "ci")
        assert life(claim) == 60
        plain = await setup.registry.claim(request())
        assert (plain.ports, plain.idle_seconds, plain.caller) == (None, 300.0, None)


async def test_renewing_has_a_claim_end_so_long_from_now() -> None:
    async with Setup(pool(lease_seconds=0.05)) as setup:
        claim = await setup.registry.claim(request())
        renewed = await setup.registry.renew(DEFAULT, claim.name, 100.0)
        assert renewed is claim
        assert 100 <= life(claim) < 101
        await asyncio.sleep(0.1)
        assert claim.state == "ready"
        shortened = await setup.registry.renew(DEFAULT, claim.name, 0.01)
        await setup.until(lambda: shortened.state == "ended")
        assert setup.kinds() == [
            "claim.created",
            "claim.renewed",
            "claim.renewed",
            "claim.expired",
        ]
        assert [event.reason for event in setup.events if event.claim][-1] == "lease"


async def test_renewing_without_a_time_takes_the_lease_that_the_claim_was_made_with() -> None:
    async with Setup(pool(lease_seconds=1000.0)) as setup:
        own = await setup.registry.claim(request(lease_seconds=50.0))
        pools = await setup.registry.claim(request())
        for claim in (own, pools):
            await setup.registry.renew(DEFAULT, claim.name, 5.0)
            assert life(claim) < 6
            await setup.registry.renew(DEFAULT, claim.name, None)
        assert 50 <= life(own) < 51
        assert 1000 <= life(pools) < 1001


async def test_renewing_without_a_time_leaves_a_lease_that_ends_later_as_it_is() -> None:
    async with Setup(pool(lease_seconds=10.0)) as setup:
        claim = await setup.registry.claim(request(lease_seconds=0.05))
        prolonged = (await setup.registry.renew(DEFAULT, claim.name, 1000.0)).expires_at
        token = await setup.registry.renew(DEFAULT, claim.name, None)
        assert token.expires_at == prolonged
        await asyncio.sleep(0.1)
        assert claim.state == "ready"


async def test_the_time_that_the_machine_sleeps_counts_for_a_lease() -> None:
    async with Setup(pool(max=8, lease_seconds=1000.0, max_age_seconds=3000.0)) as setup:
        claim, renewed, failed = [await setup.registry.claim(request()) for _ in range(3)]
        setup.member(failed).die()
        setup.slept = 600.0
        await setup.registry.renew(DEFAULT, renewed.name, None)
        setup.slept = 999.0
        setup.registry._leases.end_overdue()
        assert setup.registry.claims() == [claim, renewed, failed]
        setup.slept = 1001.0
        await setup.until(lambda: setup.registry.claims() == [renewed])  # looked at by itself
        assert setup.endpoint(claim) is None
        assert [event.reason for event in setup.events if event.claim][-2:] == ["lease", "lease"]
        await setup.registry.renew(DEFAULT, renewed.name, 5000.0)
        setup.slept = 3001.0
        setup.registry._leases.end_overdue()
        assert setup.registry.claims() == []


async def test_no_renewal_outlives_the_greatest_age_of_the_pool() -> None:
    async with Setup(pool(lease_seconds=10.0, max_age_seconds=60.0)) as setup:
        claim = await setup.registry.claim(request())
        await setup.registry.renew(DEFAULT, claim.name, 5000.0)
        assert life(claim) == pytest.approx(60, abs=1)
        assert life(claim) <= 60
    # It is kept by the timer, not only by what is shown.
    async with Setup(pool(max_age_seconds=0.05)) as setup:
        claim = await setup.registry.claim(request())
        for _ in range(100):
            if claim.state == "ended":
                break
            await setup.registry.renew(DEFAULT, claim.name, 5000.0)
            await asyncio.sleep(0.01)
        assert claim.state == "ended"


async def test_only_a_live_claim_can_be_renewed() -> None:
    async with Setup(pool()) as setup:
        with pytest.raises(ClaimNotFound):
            await setup.registry.renew(DEFAULT, Label("never"), None)
        claim = await setup.registry.claim(request())
        await setup.registry.release(DEFAULT, claim.name)
        with pytest.raises(ClaimNotFound):
            await setup.registry.renew(DEFAULT, claim.name, None)


async def test_a_failed_claim_stays_listed_until_its_lease_ends_and_cannot_be_prolonged() -> None:
    async with Setup(pool()) as setup:
        claim = await setup.registry.claim(request(lease_seconds=0.1))
        ends = claim.expires_at
        setup.member(claim).die()
        assert (claim.state, claim.reason) == ("failed", DEATH)
        assert await setup.registry.renew(DEFAULT, claim.name, 1000.0) is claim
        assert (claim.state, claim.expires_at) == ("failed", ends)
        assert setup.registry.claims() == [claim]
        await setup.until(lambda: not setup.registry.claims())
        assert claim.state == "ended"
        assert setup.kinds() == ["claim.created", "claim.failed", "claim.expired"]


async def test_a_claim_reaches_its_ports_and_no_others() -> None:
    async with Setup(pool()) as setup:
        claim = await setup.registry.claim(request(ports=(Port(3000), Port(8888))))
        assert setup.endpoint(claim, 8888) is not None
        assert setup.endpoint(claim, 3000) is not None
        with pytest.raises(NotAllowedHere, match=r"Port 3001 is not one .*\(3000, 8888\)"):
            setup.endpoint(claim, 3001)
        closed = await setup.registry.claim(request(ports=()))
        with pytest.raises(NotAllowedHere, match=r"\(none\)"):
            setup.endpoint(closed, 8888)


async def test_the_endpoint_is_gone_then_listeners_hear_of_it_then_the_sandbox_dies() -> None:
    async with Setup(pool()) as setup:
        claim = await setup.registry.claim(request())
        member, order = setup.member(claim), list[str]()
        assert setup.endpoint(claim, 8888) is not None
        assert setup.endpoint(claim, 3000) is not None

        def on_gone(endpoint: Endpoint) -> None:
            assert setup.endpoint(claim) is None, "still in the table"
            order.append(f"gone {endpoint.relay_port} alive={member.alive}")

        def on_event(event: Event) -> None:
            if event.claim is not None:
                order.append(f"{event.kind} alive={member.alive}")

        setup.registry.subscribe(on_gone)
        setup.registry.on_event(on_event)
        releasing = asyncio.create_task(setup.registry.release(DEFAULT, claim.name))
        await asyncio.sleep(0)
        order.append("released")
        await releasing
        assert order == [
            "gone None alive=True",
            "gone 3000 alive=True",
            "claim.released alive=True",
            "released",
        ]
        assert member.ended.is_set()


async def test_a_listener_that_raises_stops_neither_the_end_nor_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup(pool())

    def broken(_: object) -> None:
        raise RuntimeError("listener")

    setup.registry.subscribe(broken)
    setup.registry.on_event(broken)
    heard: list[Endpoint] = []
    setup.registry.subscribe(heard.append)
    async with setup:
        claim = await setup.registry.claim(request())
        endpoint = setup.endpoint(claim)
        await setup.registry.release(DEFAULT, claim.name)
        assert heard == [endpoint]
        assert setup.registry.claims() == []
    assert "listener_failed" in caplog.text


async def test_events_hold_copies_and_say_why() -> None:
    async with Setup(pool(lease_seconds=100.0)) as setup:
        released = await setup.registry.claim(request(labels={"a": "b"}))
        await setup.registry.release(DEFAULT, released.name)
        failed = await setup.registry.claim(request())
        setup.member(failed).die()
        left = await setup.registry.claim(request())
    claims = [event for event in setup.events if event.claim is not None]
    assert [(event.kind, event.reason) for event in claims] == [
        ("claim.created", None),
        ("claim.released", "released"),
        ("claim.created", None),
        ("claim.failed", DEATH),
        ("claim.created", None),
        ("claim.released", "shutdown"),
        ("claim.released", "shutdown"),
    ]
    first, second = claims[0], claims[1]
    assert first.claim is not None
    assert second.claim is not None
    assert (first.claim.state, second.claim.state) == ("ready", "ended")
    assert first.claim.labels == {"a": "b"}
    assert (first.namespace, first.pool, first.status) == (DEFAULT, POOL, None)
    assert first.at <= second.at
    assert left.state == "ended"


async def test_a_pools_changes_are_told_together_and_only_when_there_are_some() -> None:
    async with Setup(pool(warm=2, max=8)) as setup:
        await setup.until_ready(2)
        await setup.until(lambda: setup.events[-1:] != [] and setup.events[-1].status is not None)
        before = len(setup.events)
        await asyncio.gather(*(setup.registry.claim(request()) for _ in range(5)))
        await setup.until_ready(2)
        await setup.until(lambda: setup.events[-1].kind == "pool.changed")
        changes = [event for event in setup.events[before:] if event.kind == "pool.changed"]
        assert len(changes) <= 2
        assert setup.events[-1].status == setup.status()
        assert setup.events[-1].claim is None
        told = len(setup.events)
        await setup.registry.resize(DEFAULT, POOL, warm=2, max_members=8)
        await asyncio.sleep(0.15)
        assert len(setup.events) == told


async def test_a_namespace_holds_as_many_claims_as_its_quota_and_waiting_ones_count() -> None:
    pools = [pool(max=9), pool(namespace=OTHER, max=1)]
    async with Setup(*pools, quotas={"*": 2, "other": 3}) as setup:
        first = await setup.registry.claim(request())
        await setup.registry.claim(request())
        with pytest.raises(QuotaExceeded, match=r"default holds as many claims as it may \(2\)"):
            await setup.registry.claim(request())
        await setup.registry.release(DEFAULT, first.name)
        await setup.registry.claim(request())

        claim = await setup.registry.claim(request(namespace=OTHER))
        waiting = [
            asyncio.create_task(setup.registry.claim(request(namespace=OTHER))) for _ in range(2)
        ]
        await setup.until(lambda: setup.registry.pools()[1].waiting == 2)
        with pytest.raises(QuotaExceeded):
            await setup.registry.claim(request(namespace=OTHER))
        waiting[1].cancel()
        await setup.until(waiting[1].done)
        with pytest.raises(PoolExhausted):
            await setup.registry.claim(request(namespace=OTHER, on_empty="fail"))
        await setup.registry.release(OTHER, claim.name)
        await waiting[0]


async def test_a_quota_of_none_refuses_every_claim_and_no_quota_none() -> None:
    async with Setup(pool(max=40), quotas={"default": 0}) as setup:
        with pytest.raises(QuotaExceeded):
            await setup.registry.claim(request())
    async with Setup(pool(max=40), quotas={"other": 1}) as setup:
        for _ in range(30):
            await setup.registry.claim(request())
