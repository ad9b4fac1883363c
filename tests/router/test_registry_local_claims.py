import asyncio
from dataclasses import replace

import pytest
from support.fake_starter import FakeMember, Setup
from support.local_sandbox import DEFAULT, POOL, pool, request

from sandgate_router.config import BadConfig
from sandgate_router.errors import ClaimExists, Draining, PoolExhausted, PoolNotFound
from sandgate_router.names import DEFAULT_PORT, Label
from sandgate_router.registry.base import Claim
from sandgate_router.registry.local import LocalRegistry
from sandgate_router.registry.local.member import Member
from sandgate_router.registry.local.pool import Pool
from sandgate_router.target import Target


async def test_a_claim_takes_a_ready_member_and_the_pool_is_filled_up_again() -> None:
    async with Setup(pool(warm=2, max=8)) as setup:
        await setup.until_ready(2)
        claim = await setup.registry.claim(request(labels={"job": "1"}))
        assert (claim.state, claim.launch, claim.isolation) == ("ready", "warm", "bubblewrap")
        assert claim.labels == {"job": "1"}
        assert claim.sandbox.startswith("py-")
        assert len(claim.sandbox) == len("py-") + 16
        assert (claim.expires_at - claim.created_at).total_seconds() == 3600
        await setup.until_ready(2)
        status = setup.registry.pools()[0]
        assert (status.claimed, status.hit_rate) == (1, 1.0)
        assert setup.registry.claims() == [claim]


async def test_only_claimed_sandboxes_have_an_endpoint_and_lose_it_before_they_end() -> None:
    async with Setup(pool()) as setup:
        await setup.until_ready(1)
        waiting = setup.starter.members[0]
        assert setup.registry.endpoint(Target(waiting.id, DEFAULT, DEFAULT_PORT)) is None
        claim = await setup.registry.claim(request())
        endpoint = setup.endpoint(claim)
        assert endpoint is waiting.endpoints.http
        alive_when_told: list[bool] = []
        setup.registry.subscribe(lambda _: alive_when_told.append(waiting.alive))
        await setup.registry.release(claim.namespace, claim.name)
        assert setup.endpoint(claim) is None
        assert setup.gone == [endpoint]
        assert alive_when_told == [True]
        assert waiting.ended.is_set()
        assert claim.state == "ended"
        assert await setup.registry.find(Target(claim.sandbox, DEFAULT, DEFAULT_PORT)) is None


async def test_a_release_twice_or_of_an_unknown_claim_changes_nothing() -> None:
    async with Setup(pool()) as setup:
        claim = await setup.registry.claim(request())
        await asyncio.gather(
            *(setup.registry.release(claim.namespace, claim.name) for _ in range(3))
        )
        await setup.registry.release(DEFAULT, Label("never"))
        assert setup.registry.claims() == []
        assert setup.registry.pools()[0].claimed == 0


async def test_many_claims_at_once_hold_each_sandbox_once_and_never_more_than_max() -> None:
    async with Setup(pool(warm=4, max=50)) as setup:
        claims = await asyncio.gather(*(setup.registry.claim(request()) for _ in range(50)))
        assert len({claim.uid for claim in claims}) == 50
        assert len({claim.name for claim in claims}) == 50
        assert setup.starter.most == 50
        assert setup.registry.pools()[0].ready == 0


async def test_two_claims_for_the_last_member_have_one_winner_each_time() -> None:
    async with Setup(pool(max=1)) as setup:
        for _ in range(500):
            await setup.until_ready(1)
            results = await asyncio.gather(
                *(setup.registry.claim(request(on_empty="fail")) for _ in range(2)),
                return_exceptions=True,
            )
            won = [result for result in results if isinstance(result, Claim)]
            assert len(won) == 1
            assert sum(isinstance(result, PoolExhausted) for result in results) == 1
            await setup.registry.release(DEFAULT, won[0].name)
        assert setup.starter.most == 1


async def test_waiters_are_served_in_order_and_one_that_left_is_skipped() -> None:
    async with Setup(pool(max=1)) as setup:
        claim = await setup.registry.claim(request())
        served: list[str] = []

        async def wait(name: str) -> None:
            held = await setup.registry.claim(request(name=Label(name)))
            served.append(name)
            await setup.registry.release(DEFAULT, held.name)

        tasks = [asyncio.create_task(wait(name)) for name in ("first", "second", "third")]
        await setup.until(lambda: setup.registry.pools()[0].waiting == 3)
        tasks[1].cancel()
        await setup.until(lambda: setup.registry.pools()[0].waiting == 2)
        await setup.registry.release(DEFAULT, claim.name)
        await asyncio.gather(tasks[0], tasks[2])
        assert served == ["first", "third"]


async def test_a_member_handed_to_a_caller_that_just_left_goes_to_the_next() -> None:
    async with Setup(pool(warm=0, max=1)) as setup:
        setup.starter.gate.clear()
        leaver = asyncio.create_task(setup.registry.claim(request()))
        stayer = asyncio.create_task(setup.registry.claim(request()))
        await setup.until(lambda: setup.registry.pools()[0].waiting == 2)
        inner = setup.registry._fleet.find(DEFAULT, POOL)
        offer = inner.offer

        def offer_and_leave(member: Member) -> None:
            inner.offer = offer  # type: ignore[method-assign]
            offer(member)
            leaver.cancel()

        inner.offer = offer_and_leave  # type: ignore[method-assign]
        setup.starter.gate.set()
        claim = await stayer
        assert claim.uid == setup.starter.members[0].uid
        assert leaver.cancelled() or leaver.cancelling()
        assert setup.registry.pools()[0].claimed == 1
        assert len(setup.starter.members) == 1


async def test_a_member_that_dies_in_the_moment_of_its_claim_is_not_claimed() -> None:
    async with Setup(pool(warm=0, max=1)) as setup:
        inner = setup.registry._fleet.find(DEFAULT, POOL)
        offer = inner.offer

        def offer_and_die(member: Member) -> None:
            inner.offer = offer  # type: ignore[method-assign]
            offer(member)
            assert isinstance(member, FakeMember)
            member.die()

        inner.offer = offer_and_die  # type: ignore[method-assign]
        claim = await setup.registry.claim(request())
        assert [member.uid for member in setup.starter.members][1:] == [claim.uid]
        assert setup.starter.most == 1
        assert setup.registry.pools()[0].claimed == 1


async def test_one_whose_member_died_before_it_had_it_is_still_the_first_in_line() -> None:
    async with Setup(pool(warm=0, max=1)) as setup:
        setup.starter.gate.clear()
        inner = setup.registry._fleet.find(DEFAULT, POOL)
        offer = inner.offer

        def offer_and_die(member: Member) -> None:
            inner.offer = offer  # type: ignore[method-assign]
            offer(member)
            assert isinstance(member, FakeMember)
            member.die()

        inner.offer = offer_and_die  # type: ignore[method-assign]
        first = asyncio.create_task(setup.registry.claim(request()))
        await setup.until(lambda: setup.registry.pools()[0].waiting == 1)
        second = asyncio.create_task(setup.registry.claim(request()))
        await setup.until(lambda: setup.registry.pools()[0].waiting == 2)
        setup.starter.gate.set()
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        assert (first.done(), second.done()) == (True, False)
        await setup.registry.release(DEFAULT, first.result().name)
        await second


async def test_a_member_handed_over_in_the_moment_of_a_close_is_not_lost() -> None:
    async with Setup(pool(warm=1)) as setup:
        await setup.until_ready(1)
        member = setup.starter.members[0]
        other = Pool(pool(), isolation="bubblewrap")
        waiter = other.join()
        other.offer(member)
        assert (other.claimed, other.waiting) == (1, 0)
        assert other.dismiss() == [member]
        assert await other.wait(waiter, timeout=1) is None
        assert (other.claimed, len(other.ready)) == (0, 0)


async def test_a_sandbox_that_dies_in_the_moment_of_its_release_is_ended_once() -> None:
    async with Setup(pool(max=1)) as setup:
        claim = await setup.registry.claim(request())
        setup.registry.on_event(
            lambda event: setup.member(claim).die() if event.kind == "claim.released" else None
        )
        await setup.registry.release(DEFAULT, claim.name)
        assert setup.member(claim).ends == 1
        assert setup.registry.pools()[0].claimed == 0


async def test_an_empty_pool_refuses_at_once_or_after_the_wait() -> None:
    async with Setup(pool(max=1)) as setup:
        await setup.registry.claim(request())
        with pytest.raises(PoolExhausted) as refused:
            await setup.registry.claim(request(on_empty="fail"))
        assert refused.value.retry_after is not None
        assert refused.value.retry_after >= 1
        with pytest.raises(PoolExhausted):
            await setup.registry.claim(request(wait_seconds=0.01))
        assert setup.registry.pools()[0].waiting == 0


async def test_cold_starts_a_sandbox_below_max_and_says_so() -> None:
    async with Setup(pool(warm=0, max=2)) as setup:
        claim = await setup.registry.claim(request(on_empty="cold"))
        assert claim.launch == "cold"
        assert setup.registry.pools()[0].hit_rate == 0.0


async def test_a_name_is_taken_while_its_claim_lives_or_is_being_made() -> None:
    async with Setup(pool(max=1)) as setup:
        mine = request(name=Label("mine"))
        await setup.registry.claim(mine)
        with pytest.raises(ClaimExists):
            await setup.registry.claim(mine)
        waiting = asyncio.create_task(setup.registry.claim(request(name=Label("next"))))
        await setup.until(lambda: setup.registry.pools()[0].waiting == 1)
        with pytest.raises(ClaimExists):
            await setup.registry.claim(request(name=Label("next")))
        await setup.registry.release(DEFAULT, Label("mine"))
        await waiting
        await setup.registry.release(DEFAULT, Label("next"))
        await setup.registry.claim(mine)


async def test_an_unknown_pool_or_one_of_another_namespace_is_not_found() -> None:
    async with Setup(pool()) as setup:
        with pytest.raises(PoolNotFound):
            await setup.registry.claim(request(pool="other"))
        with pytest.raises(PoolNotFound):
            await setup.registry.claim(request(namespace=Label("elsewhere")))


async def test_a_lease_that_runs_out_ends_the_claim() -> None:
    async with Setup(pool(max_age_seconds=1000)) as setup:
        long = await setup.registry.claim(request(lease_seconds=5000))
        assert (long.expires_at - long.created_at).total_seconds() == 1000
        short = await setup.registry.claim(request(lease_seconds=0.02))
        await setup.until(lambda: short.state == "ended")
        assert setup.endpoint(short) is None
        assert setup.registry.claims() == [long]
        ended = next(member for member in setup.starter.members if member.uid == short.uid)
        await asyncio.wait_for(ended.ended.wait(), 5)


async def test_a_member_that_dies_while_warm_is_replaced() -> None:
    async with Setup(pool()) as setup:
        await setup.until_ready(1)
        setup.starter.members[0].die()
        status = setup.registry.pools()[0]
        assert (status.ready, status.last_error) == (0, "the runtime was ended by SIGKILL")
        await setup.until_ready(1)
        assert setup.registry.pools()[0].last_error is None


async def test_a_sandbox_that_dies_while_claimed_fails_its_claim_and_frees_its_place() -> None:
    async with Setup(pool(max=1)) as setup:
        claim = await setup.registry.claim(request())
        endpoint = setup.endpoint(claim)
        setup.starter.members[0].die()
        assert (claim.state, claim.reason) == ("failed", "the runtime was ended by SIGKILL")
        assert setup.endpoint(claim) is None
        assert setup.gone == [endpoint]
        assert setup.registry.claims() == [claim]
        await setup.until_ready(1)
        await setup.registry.release(DEFAULT, claim.name)
        assert setup.registry.claims() == []
        assert setup.registry.pools()[0].ready == 1


async def test_a_pool_whose_starts_fail_says_why_waits_longer_each_time_and_recovers() -> None:
    setup = Setup(pool(warm=3))
    setup.starter.fail("no more memory")
    async with setup:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await setup.until(lambda: setup.registry.pools()[0].last_error == "no more memory")
        with pytest.raises(PoolExhausted, match="no more memory"):
            await setup.registry.claim(request(wait_seconds=0.01))
        first = len(setup.starter.attempts)
        await setup.until(lambda: len(setup.starter.attempts) > first)
        second = len(setup.starter.attempts)
        await setup.until(lambda: len(setup.starter.attempts) > second)
        assert loop.time() - begun >= 0.2 + 0.4 - 0.01
        setup.starter.fault = None
        await setup.until_ready(3)
        assert setup.registry.pools()[0].last_error is None


async def test_close_ends_starts_claims_and_ready_members_and_sends_waiters_away() -> None:
    setup = Setup(pool(warm=1, max=2))
    await setup.registry.start()
    await setup.until_ready(1)
    setup.starter.gate.clear()
    claim = await setup.registry.claim(request())
    waiter = asyncio.create_task(setup.registry.claim(request()))
    await setup.until(lambda: setup.registry.pools()[0].waiting == 1)
    await setup.registry.close()
    with pytest.raises(Draining):
        await waiter
    with pytest.raises(Draining):
        await setup.registry.claim(request())
    assert claim.state == "ended"
    assert setup.starter.living == 0


async def test_a_pool_may_not_ask_for_less_isolation_than_the_gateway() -> None:
    loose = replace(pool(), isolation="none")
    with pytest.raises(BadConfig, match="--isolation none"):
        LocalRegistry([loose])
    assert LocalRegistry([loose], isolation="none").pools()[0].isolation == "none"
    strict = replace(pool(), isolation="bubblewrap")
    assert LocalRegistry([strict], isolation="none").pools()[0].isolation == "bubblewrap"
