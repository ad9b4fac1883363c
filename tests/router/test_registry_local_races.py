"""No sandbox is handed out twice, whatever happens at the same time."""

import asyncio
import random

import pytest
from support.fake_starter import Setup
from support.local_sandbox import DEFAULT, pool, request

from sandgate_router.errors import PoolExhausted
from sandgate_router.names import Label
from sandgate_router.registry.base import Claim

ROUNDS = 10_000


async def test_two_claims_for_the_last_member_have_one_winner_each_in_10_000_rounds() -> None:
    async with Setup(pool(max=1)) as setup:
        seen = set[str]()
        for _ in range(ROUNDS):
            while not setup.status().ready:
                await asyncio.sleep(0)
            results = await asyncio.gather(
                *(setup.registry.claim(request(on_empty="fail")) for _ in range(2)),
                return_exceptions=True,
            )
            won = [result for result in results if isinstance(result, Claim)]
            assert len(won) == 1
            assert sum(isinstance(result, PoolExhausted) for result in results) == 1
            seen.add(won[0].uid)
            await setup.registry.release(DEFAULT, won[0].name)
        assert len(seen) == ROUNDS
        assert setup.starter.most == 1


async def test_two_that_wait_for_the_last_member_get_it_one_after_the_other() -> None:
    async with Setup(pool(max=1)) as setup:
        for _ in range(500):
            first, second = (asyncio.create_task(setup.registry.claim(request())) for _ in range(2))
            one = await first
            await asyncio.sleep(0)
            assert not second.done()
            await setup.registry.release(DEFAULT, one.name)
            other = await second
            assert other.uid != one.uid
            await setup.registry.release(DEFAULT, other.name)
        assert setup.starter.most == 1


async def test_300_claims_at_once_on_300_members_hold_300_sandboxes() -> None:
    async with Setup(pool(warm=300, max=300)) as setup:
        await setup.until_ready(300)
        claims = await asyncio.gather(*(setup.registry.claim(request()) for _ in range(300)))
        assert len({claim.uid for claim in claims}) == 300
        assert len({claim.sandbox for claim in claims}) == 300
        assert len({claim.name for claim in claims}) == 300
        assert len({id(setup.endpoint(claim)) for claim in claims}) == 300
        assert len(setup.starter.members) == 300


async def test_1000_claims_at_once_on_a_pool_of_50_make_50_and_refuse_the_rest() -> None:
    async with Setup(pool(warm=50, max=50)) as setup:
        await setup.until_ready(50)
        results = await asyncio.gather(
            *(setup.registry.claim(request(wait_seconds=0.05)) for _ in range(1000)),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, PoolExhausted)]
        assert sum(isinstance(result, Claim) for result in results) == 50
        assert len(refused) == 950
        assert all(refusal.retry_after for refusal in refused)
        assert setup.starter.most == 50
        assert setup.status().waiting == 0


@pytest.mark.parametrize("seed", range(5))
async def test_claims_cancels_releases_deaths_and_resizes_in_any_order_leave_nothing(
    seed: int,
) -> None:
    dice = random.Random(seed)
    async with Setup(pool(warm=3, max=6)) as setup:
        held: list[Claim] = []
        seen = set[str]()

        async def use() -> None:
            claim = await setup.registry.claim(request(wait_seconds=0.05))
            assert claim.uid not in seen, "handed out twice"
            seen.add(claim.uid)
            held.append(claim)

        async def step(tasks: set[asyncio.Task[None]]) -> None:
            act = dice.choice(["use", "use", "use", "cancel", "release", "die", "resize", "rest"])
            if act == "use":
                tasks.add(asyncio.create_task(use()))
            elif act == "cancel" and tasks:
                dice.choice(list(tasks)).cancel()
            elif act == "release" and held:
                await setup.registry.release(DEFAULT, held.pop(dice.randrange(len(held))).name)
            elif act == "die" and (alive := [m for m in setup.starter.members if m.alive]):
                dice.choice(alive).die()
            elif act == "resize":
                most = dice.randint(1, 6)
                await setup.registry.resize(
                    DEFAULT, "py", warm=dice.randint(0, most), max_members=most
                )
            await asyncio.sleep(dice.choice([0, 0, 0.001]))
            assert setup.starter.living <= 6

        tasks = set[asyncio.Task[None]]()
        for _ in range(400):
            await step(tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        for claim in setup.registry.claims():
            await setup.registry.release(claim.namespace, claim.name)
        await setup.registry.resize(DEFAULT, "py", warm=2, max_members=2)
        await setup.until(lambda: setup.status().ready == 2 and setup.starter.living == 2)
        assert (setup.status().claimed, setup.status().waiting) == (0, 0)
        await setup.registry.claim(request(name=Label("last")))
