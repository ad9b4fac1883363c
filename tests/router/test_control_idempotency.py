"""Claims with an Idempotency-Key: one claim for each key, whoever asks and leaves meanwhile."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from starlette.requests import ClientDisconnect
from support.asgi_channel import Client
from support.asgi_server import serve
from support.fake_registry import FakeRegistry
from support.local_sandbox import pool, running_registry

from sandgate_router.control.app import build_control_app
from sandgate_router.control.idempotency import (
    KEEP_SECONDS,
    SWEEP_SECONDS,
    KeyedClaims,
    parse_key,
)
from sandgate_router.errors import IdempotencyKeyReused, InvalidRequest, PoolExhausted, PoolNotFound
from sandgate_router.names import DEFAULT_NAMESPACE, Label
from sandgate_router.probes import Readiness
from sandgate_router.registry.base import Claim, ClaimRequest

WANTED = ClaimRequest(pool="python", namespace=DEFAULT_NAMESPACE)
OTHER = ClaimRequest(pool="python", namespace=DEFAULT_NAMESPACE, lease_seconds=60)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Keyed:
    """Keyed claims of a fake registry, and how often an answer was made."""

    def __init__(self, *, ready: int = 1) -> None:
        self.registry = FakeRegistry(ready=ready)
        self.clock = Clock()
        self.built = itertools.count()
        self.claims = KeyedClaims(self.registry, build_answer=self._build_answer, clock=self.clock)

    def _build_answer(self, claim: Claim) -> bytes:
        return f"{claim.name}, answer {next(self.built)}".encode()

    async def claim(self, key: str = "k", wanted: ClaimRequest = WANTED) -> bytes:
        return await self.claims.claim(key, wanted, Client().receive)

    def start(self, key: str = "k", client: Client | None = None) -> "asyncio.Task[bytes]":
        receive = (client or Client()).receive
        return asyncio.create_task(self.claims.claim(key, WANTED, receive))

    async def release_all(self) -> None:
        for claim in self.registry.claims():
            await self.registry.release(claim.namespace, claim.name)

    @property
    def live(self) -> list[str]:
        return [claim.name for claim in self.registry.claims()]


# What a key gives


async def test_the_same_key_and_request_give_the_same_answer_and_claim_once() -> None:
    keyed = Keyed(ready=5)
    answers = [await keyed.claim() for _ in range(3)]
    assert answers == [b"claim-1, answer 0"] * 3
    assert len(keyed.registry.requests) == 1


async def test_another_key_gives_another_claim() -> None:
    keyed = Keyed(ready=2)
    assert await keyed.claim("a") != await keyed.claim("b")
    assert keyed.live == ["claim-1", "claim-2"]


async def test_the_same_key_with_another_request_is_refused_and_claims_nothing() -> None:
    keyed = Keyed(ready=2)
    await keyed.claim()
    with pytest.raises(IdempotencyKeyReused):
        await keyed.claim(wanted=OTHER)
    assert keyed.live == ["claim-1"]
    assert await keyed.claim() == b"claim-1, answer 0"


async def test_another_request_is_refused_while_the_first_is_under_way() -> None:
    keyed = Keyed(ready=0)
    first = keyed.start()
    await keyed.registry.waiting.wait()
    with pytest.raises(IdempotencyKeyReused):
        await keyed.claim(wanted=OTHER)
    keyed.registry.add_member()
    assert await first == b"claim-1, answer 0"


async def test_keys_of_two_callers_are_apart() -> None:
    keyed = Keyed(ready=3)
    ours, theirs = (replace(WANTED, caller=name) for name in ("ours", "theirs"))
    first, second = await keyed.claim(wanted=ours), await keyed.claim(wanted=theirs)
    assert len({first, second, await keyed.claim()}) == 3
    assert (await keyed.claim(wanted=ours), await keyed.claim(wanted=theirs)) == (first, second)
    assert keyed.live == ["claim-1", "claim-2", "claim-3"]


async def test_keys_of_two_namespaces_are_apart() -> None:
    keyed = Keyed()
    await keyed.claim()
    elsewhere = ClaimRequest(pool="python", namespace=Label("team"))
    with pytest.raises(PoolNotFound):  # asked for anew, not taken for the same
        await keyed.claim(wanted=elsewhere)


# While the first is under way


async def test_all_who_come_with_one_key_wait_for_one_claim() -> None:
    keyed = Keyed(ready=0)
    waiting = [keyed.start() for _ in range(50)]
    await keyed.registry.waiting.wait()
    keyed.registry.add_member()
    assert set(await asyncio.gather(*waiting)) == {b"claim-1, answer 0"}
    assert len(keyed.registry.requests) == 1


async def test_a_failure_is_told_to_all_who_wait_and_frees_the_key() -> None:
    keyed = Keyed()
    keyed.registry.failure = PoolExhausted()
    waiting = [keyed.start() for _ in range(3)]
    failures = await asyncio.gather(*waiting, return_exceptions=True)
    assert failures == [keyed.registry.failure] * 3
    assert (len(keyed.claims), len(keyed.registry.requests)) == (0, 1)
    keyed.registry.failure = None
    assert await keyed.claim(wanted=OTHER) == b"claim-2, answer 0"


async def test_the_first_client_may_leave_and_the_others_get_the_claim() -> None:
    keyed = Keyed(ready=0)
    gone = Client()
    first = keyed.start(client=gone)
    await keyed.registry.waiting.wait()
    second = keyed.start()
    gone.left.set()
    with pytest.raises(ClientDisconnect):
        await first
    keyed.registry.add_member()
    assert await second == b"claim-1, answer 0"
    assert (len(keyed.registry.requests), keyed.registry.releases) == (1, [])


@pytest.mark.parametrize("stubborn", [False, True])
async def test_when_all_have_left_nothing_is_claimed_and_the_key_is_free(*, stubborn: bool) -> None:
    keyed = Keyed(ready=0)
    keyed.registry.stubborn = stubborn
    clients = [Client() for _ in range(3)]
    waiting = [keyed.start(client=client) for client in clients]
    await keyed.registry.waiting.wait()
    for client in clients:
        client.left.set()
    left = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in left] == [ClientDisconnect] * 3
    assert (keyed.live, len(keyed.claims)) == ([], 0)
    assert len(keyed.registry.releases) == stubborn
    keyed.registry.add_member()
    assert await keyed.claim(wanted=OTHER) == b"claim-2, answer 0"


async def test_a_claim_that_came_in_the_turn_in_which_its_last_client_left_is_released() -> None:
    keyed = Keyed(ready=0)
    gone = Client()
    first = keyed.start(client=gone)
    await keyed.registry.waiting.wait()
    keyed.registry.add_member()
    gone.left.set()
    with pytest.raises(ClientDisconnect):
        await first
    assert (keyed.live, len(keyed.claims)) == ([], 0)


async def test_a_claim_that_came_in_the_turn_in_which_one_of_two_left_is_the_others() -> None:
    for order in ([0, 1], [1, 0]):
        keyed = Keyed(ready=0)
        clients = [Client(), Client()]
        waiting = [keyed.start(client=clients[number]) for number in order]
        await keyed.registry.waiting.wait()
        keyed.registry.add_member()
        clients[0].left.set()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert ends[order.index(1)] == b"claim-1, answer 0"
        assert (keyed.live, keyed.registry.releases) == (["claim-1"], [])


async def test_who_comes_while_a_claim_is_given_up_gets_a_new_one() -> None:
    keyed = Keyed(ready=0)
    keyed.registry.stubborn = True
    gone = Client()
    first = keyed.start(client=gone)
    await keyed.registry.waiting.wait()
    gone.left.set()
    await keyed.registry.left.wait()
    second = keyed.start()
    with pytest.raises(ClientDisconnect):
        await first
    keyed.registry.add_member()
    assert await second == b"claim-2, answer 0"
    assert keyed.live == ["claim-2"]


async def test_a_server_that_stops_leaves_no_claim_behind() -> None:
    keyed = Keyed(ready=0)
    waiting = [keyed.start() for _ in range(2)]
    await keyed.registry.waiting.wait()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (keyed.live, len(keyed.claims)) == ([], 0)


async def test_no_task_is_left_over() -> None:
    before = asyncio.all_tasks()
    keyed = Keyed()
    await keyed.claim()
    await keyed.claim()
    assert asyncio.all_tasks() == before


# How long a key is remembered


async def test_a_key_is_remembered_while_its_claim_lives() -> None:
    keyed = Keyed()
    await keyed.claim()
    keyed.clock.now += 30 * KEEP_SECONDS
    assert await keyed.claim() == b"claim-1, answer 0"


async def test_a_key_is_remembered_for_a_day_after_the_end_of_its_claim() -> None:
    keyed = Keyed(ready=2)
    await keyed.claim()
    await keyed.release_all()
    keyed.clock.now += SWEEP_SECONDS
    assert await keyed.claim() == b"claim-1, answer 0"
    keyed.clock.now += KEEP_SECONDS - 1
    assert await keyed.claim() == b"claim-1, answer 0"
    keyed.clock.now += SWEEP_SECONDS
    assert await keyed.claim() == b"claim-2, answer 1"


async def test_too_many_keys_forget_those_whose_claims_ended_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandgate_router.control.idempotency.MAX_KEYS", 6)
    monkeypatch.setattr("sandgate_router.control.idempotency._ROOM", 2)
    keyed = Keyed(ready=100)
    for key in ("lives", "ended-1", "ended-2", "ended-3"):
        await keyed.claim(key)
    for name in ("claim-3", "claim-2", "claim-4"):
        await keyed.registry.release(DEFAULT_NAMESPACE, Label(name))
        keyed.clock.now += SWEEP_SECONDS
        await keyed.claim("lives")
    await keyed.claim("new-1")
    await keyed.claim("new-2")
    await keyed.claim("new-3")  # the seventh: the two ends that came first are forgotten
    assert len(keyed.claims) == 5
    assert len(keyed.registry.requests) == 7
    for key in ("lives", "ended-3", "new-1", "new-2", "new-3"):
        await keyed.claim(key)
    assert len(keyed.registry.requests) == 7
    await keyed.claim("ended-1")
    assert len(keyed.registry.requests) == 8


async def test_keys_of_live_claims_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandgate_router.control.idempotency.MAX_KEYS", 3)
    monkeypatch.setattr("sandgate_router.control.idempotency._ROOM", 1)
    keyed = Keyed(ready=100)
    for key in range(20):
        await keyed.claim(str(key))
    assert len(keyed.claims) == 20


# Over HTTP


@pytest.fixture
async def registry() -> FakeRegistry:
    return FakeRegistry(ready=1)


@pytest.fixture
async def client(registry: FakeRegistry) -> AsyncIterator[httpx.AsyncClient]:
    app = build_control_app(registry, readiness=Readiness(), loopback=True)
    async with (
        serve(app) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client,
    ):
        yield client


async def post(
    client: httpx.AsyncClient, key: str, content: str = '{"pool": "python"}'
) -> httpx.Response:
    fields = [
        (b"content-type", b"application/json"),
        (b"idempotency-key", key.encode("latin-1")),
    ]
    return await client.post("/v1/claims", content=content, headers=fields)


async def test_a_repeated_request_gets_201_and_the_very_same_body(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    first, second = await post(client, "k"), await post(client, "k")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.content == second.content
    assert first.headers["content-type"] == "application/json"
    assert len(registry.requests) == 1


async def test_a_body_that_says_the_same_in_other_words_is_the_same(
    client: httpx.AsyncClient,
) -> None:
    first = await post(client, "k", '{"pool": "python", "lease_seconds": 60}')
    second = await post(client, "k", '{"lease_seconds":60.0,"pool":"python"}')
    assert first.content == second.content


async def test_another_body_is_422_with_a_code_of_its_own(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    registry.add_member()
    await post(client, "k")
    answer = await post(client, "k", '{"pool": "python", "lease_seconds": 60}')
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert answer.headers["x-sandbox-error"] == "idempotency_key_reused"
    assert len(registry.claims()) == 1


async def test_a_body_that_is_refused_does_not_use_up_its_key(client: httpx.AsyncClient) -> None:
    assert (await post(client, "k", '{"pool": 1}')).status_code == 422
    assert (await post(client, "k", '{"pool": "ruby"}')).status_code == 404
    assert (await post(client, "k")).status_code == 201


@pytest.mark.parametrize("key", ["", "a b", "a\tb", "é", "a" * 256])
async def test_what_is_no_key_is_refused_and_claims_nothing(
    client: httpx.AsyncClient, registry: FakeRegistry, key: str
) -> None:
    answer = await post(client, key)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert answer.json()["detail"].startswith("Idempotency-Key must come once, with 1 to 255")
    assert registry.requests == []


@pytest.mark.parametrize("key", ["!", "~", '"5c1f0e6a"', "a" * 255])
def test_a_key_is_printable_ascii_without_a_space(key: str) -> None:
    assert parse_key([key]) == key


def test_two_keys_are_none() -> None:
    with pytest.raises(InvalidRequest):
        parse_key(["a", "a"])
    assert parse_key([]) is None


async def test_a_hundred_requests_at_once_with_ten_keys_make_ten_claims(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    keys = [f"key-{number % 10}" for number in range(100)]
    requests = [asyncio.create_task(post(client, key)) for key in keys]
    await registry.waiting.wait()
    for _ in range(99):
        registry.add_member()
    answers = await asyncio.gather(*requests)
    by_key: dict[str, set[bytes]] = {}
    for key, answer in zip(keys, answers, strict=True):
        assert answer.status_code == 201
        by_key.setdefault(key, set()).add(answer.content)
    assert [len(bodies) for bodies in by_key.values()] == [1] * 10
    names = {json.loads(body)["claim"] for bodies in by_key.values() for body in bodies}
    assert len(names) == len(registry.claims()) == len(registry.requests) == 10


async def test_whoever_of_many_hangs_up_the_others_get_the_one_claim_of_their_key(
    client: httpx.AsyncClient, registry: FakeRegistry
) -> None:
    await client.post("/v1/claims", json={"pool": "python"})
    chance = random.Random(7)
    for number in range(1, 31):
        registry.waiting.clear()
        requests = [asyncio.create_task(post(client, f"key-{number}")) for _ in range(8)]
        await registry.waiting.wait()
        gone = chance.sample(requests, chance.randrange(8))
        for request in gone:
            request.cancel()
        registry.add_member()
        answers = await asyncio.gather(*(set(requests) - set(gone)))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in answers}) == 1
        repeated = await post(client, f"key-{number}")
        assert repeated.content == answers[0].content
        assert len(registry.claims()) == number + 1
    assert registry.releases == []


async def test_a_real_pool_hands_out_one_sandbox_for_one_key() -> None:
    async with running_registry(pool(warm=2), isolation="none") as registry:
        app = build_control_app(registry, readiness=Readiness(), loopback=True)
        async with (
            serve(app) as address,
            httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client,
        ):
            answers = await asyncio.gather(
                *(post(client, "k", '{"pool": "py", "name": "box"}') for _ in range(20))
            )
            assert len({answer.content for answer in answers}) == 1
            assert [claim.name for claim in registry.claims()] == ["box"]
            await registry.release(DEFAULT_NAMESPACE, Label("box"))
            # The claim has ended: the key still tells of it, and takes no other.
            again = await post(client, "k", '{"pool": "py", "name": "box"}')
            assert again.content == answers[0].content
            assert registry.claims() == []
