"""How pools are kept full: never over their max, in turns, and slower where starts fail."""

import asyncio

import pytest
from support.fake_starter import Setup
from support.local_sandbox import DEFAULT, POOL, pool, request

from sandgate_router.errors import InvalidRequest, PoolExhausted, PoolNotFound
from sandgate_router.names import Label

BIG, SMALL = Label("big"), Label("small")


async def test_a_pool_grows_and_shrinks_while_it_runs() -> None:
    async with Setup(pool(warm=1, max=4)) as setup:
        await setup.until_ready(1)
        status = await setup.registry.resize(DEFAULT, POOL, warm=6, max_members=8)
        assert (status.warm, status.max) == (6, 8)
        await setup.until_ready(6)
        claim = await setup.registry.claim(request())
        await setup.until_ready(6)
        await setup.registry.resize(DEFAULT, POOL, warm=2, max_members=None)
        assert (setup.status().ready, setup.status().max) == (2, 8)
        await setup.until(lambda: setup.starter.living == 3)
        await setup.registry.resize(DEFAULT, POOL, warm=0, max_members=1)
        await setup.until(lambda: setup.starter.living == 1)
        assert (claim.state, setup.endpoint(claim) is not None) == ("ready", True)
        with pytest.raises(PoolExhausted):
            await setup.registry.claim(request(wait_seconds=0.01))


async def test_claimed_members_above_a_lowered_max_are_left_alone() -> None:
    async with Setup(pool(warm=0, max=4)) as setup:
        claims = [await setup.registry.claim(request()) for _ in range(4)]
        await setup.registry.resize(DEFAULT, POOL, warm=1, max_members=2)
        await setup.registry.release(DEFAULT, claims[0].name)
        await setup.registry.release(DEFAULT, claims[1].name)
        await asyncio.sleep(0.01)
        assert (setup.status().ready, setup.status().claimed) == (0, 2)
        await setup.registry.release(DEFAULT, claims[2].name)
        await setup.until_ready(1)
        assert len(setup.starter.members) == 5


async def test_members_that_were_being_started_when_a_pool_shrank_do_not_stay() -> None:
    async with Setup(pool(warm=2, max=4)) as setup:
        setup.starter.gate.clear()
        await setup.until(lambda: len(setup.starter.attempts) > 0)
        await setup.registry.resize(DEFAULT, POOL, warm=0, max_members=None)
        begun = len(setup.starter.attempts)
        setup.starter.gate.set()
        await setup.until(lambda: len(setup.starter.members) == begun)
        await setup.until(lambda: setup.starter.living == 0)
        assert setup.status().ready == 0


async def test_a_member_whose_claim_stopped_waiting_serves_the_next_try() -> None:
    async with Setup(pool(warm=0, max=4)) as setup:
        setup.starter.gate.clear()
        with pytest.raises(PoolExhausted):
            await setup.registry.claim(request(wait_seconds=0.01))
        setup.starter.gate.set()
        await setup.until_ready(1)
        await setup.registry.claim(request(on_empty="fail"))


@pytest.mark.parametrize(
    ("warm", "most", "message"),
    [
        (5, None, r"warm 5 is not between 0 and max \(4\)"),
        (-1, None, r"warm -1 is not"),
        (None, 0, "max 0 is not at least 1"),
        (None, 1, r"warm 2 is not between 0 and max \(1\)"),
    ],
)
async def test_sizes_that_cannot_be_are_refused_and_change_nothing(
    warm: int | None, most: int | None, message: str
) -> None:
    async with Setup(pool(warm=2, max=4)) as setup:
        with pytest.raises(InvalidRequest, match=message):
            await setup.registry.resize(DEFAULT, POOL, warm=warm, max_members=most)
        assert (setup.status().warm, setup.status().max) == (2, 4)
        with pytest.raises(PoolNotFound):
            await setup.registry.resize(DEFAULT, "other", warm=1, max_members=None)


async def test_a_claim_of_a_small_namespace_does_not_wait_behind_a_big_pools_refill() -> None:
    pools = [pool(namespace=BIG, warm=200, max=200), pool(namespace=SMALL, warm=0, max=4)]
    async with Setup(*pools) as setup:
        setup.starter.gate.clear()
        await setup.until(lambda: len(setup.starter.attempts) > 0)
        begun = len(setup.starter.attempts)
        claiming = asyncio.create_task(setup.registry.claim(request(namespace=SMALL)))
        await setup.until(lambda: setup.registry.pools()[1].waiting == 1)
        setup.starter.gate.set()
        await claiming
        namespaces = [spec.namespace for spec in setup.starter.attempts]
        assert namespaces.index(SMALL) == begun


async def test_a_claim_that_waits_comes_before_refill_whoever_had_the_last_turn() -> None:
    pools = [pool(namespace=BIG, warm=200, max=200), pool(namespace=SMALL, warm=0, max=4)]
    async with Setup(*pools) as setup:
        setup.starter.gate.clear()
        await setup.until(lambda: len(setup.starter.attempts) > 0)
        begun = len(setup.starter.attempts)
        setup.registry._stock._last_turn[SMALL] = 1000
        claiming = asyncio.create_task(setup.registry.claim(request(namespace=SMALL)))
        await setup.until(lambda: setup.registry.pools()[1].waiting == 1)
        setup.starter.gate.set()
        await claiming
        assert setup.starter.attempts[begun].namespace == SMALL


async def test_namespaces_take_turns_when_both_have_claims_waiting() -> None:
    pools = [pool(namespace=name, warm=0, max=50) for name in (BIG, SMALL)]
    async with Setup(*pools) as setup:
        many = [
            asyncio.create_task(setup.registry.claim(request(namespace=BIG))) for _ in range(30)
        ]
        await setup.until(lambda: len(setup.starter.attempts) > 0)
        begun = len(setup.starter.attempts)
        few = [
            asyncio.create_task(setup.registry.claim(request(namespace=SMALL))) for _ in range(5)
        ]
        await asyncio.gather(*many, *few)
        after = [spec.namespace for spec in setup.starter.attempts][begun:]
        # Each of the five had every second turn, or nearly so: one may have begun meanwhile.
        last = len(after) - 1 - after[::-1].index(SMALL)
        assert last <= 2 * 5 + setup.registry._stock.slots


async def test_no_more_are_started_at_once_than_there_are_processors() -> None:
    async with Setup(pool(warm=20, max=20)) as setup:
        setup.starter.gate.clear()
        await asyncio.sleep(0.01)
        assert len(setup.starter.attempts) == setup.registry._stock.slots
        setup.starter.gate.set()
        await setup.until_ready(20)


async def test_a_starter_that_breaks_is_tried_again_like_one_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup(pool())
    setup.starter.fault = ValueError("a bug")
    async with setup:
        await setup.until(lambda: setup.status().last_error is not None)
        assert setup.status().last_error == "ValueError('a bug')"
        await asyncio.sleep(0.05)
        assert len(setup.starter.attempts) <= setup.registry._stock.slots
        setup.starter.fault = None
        await setup.until_ready(1)
    assert "start_broke" in caplog.text


async def test_the_wait_that_is_told_follows_the_pace_of_refill() -> None:
    async with Setup(pool(warm=0, max=1)) as setup:
        inner = setup.registry._fleet.find(DEFAULT, POOL)
        for _ in range(40):
            inner.rate.started(8.0)
        with pytest.raises(PoolExhausted) as refused:
            await setup.registry.claim(request(on_empty="fail"))
        assert refused.value.retry_after is not None
        assert 7 < refused.value.retry_after <= 12


async def test_a_cancelled_waiter_has_no_sandbox_started_for_it() -> None:
    async with Setup(pool(warm=0, max=9), pool(name=Label("slow"), warm=0, max=9)) as setup:
        setup.starter.gate.clear()
        blocked = [
            asyncio.create_task(setup.registry.claim(request(pool="slow"))) for _ in range(8)
        ]
        await setup.until(lambda: len(setup.starter.attempts) == setup.registry._stock.slots)
        leaver = asyncio.create_task(setup.registry.claim(request()))
        await setup.until(lambda: setup.registry.pools()[0].waiting == 1)
        leaver.cancel()
        await setup.until(leaver.done)
        setup.starter.gate.set()
        await asyncio.gather(*blocked)
        assert {spec.name for spec in setup.starter.attempts} == {"slow"}
