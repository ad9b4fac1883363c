"""Claims on a cluster: made once, found again by any replica, and taken back by who gave up."""

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest
from support.fake_kube import FakeKube, Fault, Obj, Rule, User
from support.fake_kube.kinds import CLAIMS, POOLS, SANDBOXES
from support.fake_kube.objects import condition
from support.kube_gateway import POOL, cluster, started

from sandgate_router.errors import (
    ClaimExists,
    ClaimNotFound,
    GatewayError,
    IdempotencyKeyReused,
    InvalidRequest,
    PoolExhausted,
    PoolNotFound,
    QuotaExceeded,
    RegistryUnavailable,
    SandboxNotReady,
)
from sandgate_router.names import DEFAULT_NAMESPACE, DEFAULT_PORT, Label, Port
from sandgate_router.registry.base import ClaimRequest
from sandgate_router.registry.kubernetes import claiming
from sandgate_router.target import Target

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def wanted(**members: object) -> ClaimRequest:
    chosen: dict[str, object] = {"pool": POOL, "namespace": DEFAULT_NAMESPACE, **members}
    return ClaimRequest(**chosen)  # type: ignore[arg-type]


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with cluster() as kube:
        yield kube


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def only_claim(kube: FakeKube) -> Obj:
    (claim,) = kube.store.items(CLAIMS)
    return claim


async def test_a_claim_is_an_object_that_says_all_that_other_replicas_have_to_know(
    kube: FakeKube,
) -> None:
    async with started(kube) as registry:
        claim = await registry.claim(
            wanted(
                labels={"team": "x"},
                caller="ci",
                ports=(Port(3000), DEFAULT_PORT),
                lease_seconds=120.0,
                idle_seconds=60.5,
                traceparent=TRACE,
            )
        )
        made = only_claim(kube)
        assert made["metadata"]["name"] == claim.name
        assert made["metadata"]["labels"] == {
            "team": "x",
            "agents.x-k8s.io/created-by": "sandgate",
        }
        assert made["spec"]["warmPoolRef"] == {"name": POOL}
        assert made["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
        ends = datetime.fromisoformat(made["spec"]["lifecycle"]["shutdownTime"])
        assert 55 < (ends - datetime.now(UTC)).total_seconds() < 62  # idle comes first
        annotations = made["metadata"]["annotations"]
        assert annotations["sandgate.dev/lease-seconds"] == "120"
        assert annotations["sandgate.dev/idle-seconds"] == "60.5"
        assert annotations["sandgate.dev/caller"] == "ci"
        assert annotations["sandgate.dev/ports"] == "3000,8888"
        assert annotations["opentelemetry.io/trace-context"] == f'{{"traceparent": "{TRACE}"}}'
        async with started(kube) as other:
            found = await other.find_claim(claim.namespace, claim.name)
            assert found == claim
            assert other.claims() == [claim]


async def test_completion_is_seen_on_one_watch_however_many_wait(kube: FakeKube) -> None:
    async with started(kube) as registry:
        await asyncio.gather(*(registry.claim(wanted()) for _ in range(20)))
        assert len(kube.calls("watch", "sandboxclaims")) == 1
        assert kube.calls("get", "sandboxclaims") == []


async def test_a_key_leads_to_one_claim_through_every_replica(kube: FakeKube) -> None:
    async with started(kube) as one, started(kube) as two:
        keyed = wanted(key="k-1", caller="ci")
        first, second = await asyncio.gather(one.claim(keyed), two.claim(keyed))
        again = await one.claim(dataclasses.replace(keyed, wait_seconds=5.0))
        assert first == second == again
        place = b"ci\0default\0k-1"
        assert first.name == "c-" + hashlib.sha256(place).hexdigest()[:20]
        assert len(kube.store.items(CLAIMS)) == 1


async def test_a_key_with_another_request_is_refused(kube: FakeKube) -> None:
    async with started(kube) as registry:
        await registry.claim(wanted(key="k-1"))
        with pytest.raises(IdempotencyKeyReused):
            await registry.claim(wanted(key="k-1", labels={"other": "one"}))
        other = await registry.claim(wanted(key="k-1", caller="another"))  # keys are apart
        assert len({other.name, *(c.name for c in registry.claims())}) == 2


async def test_a_name_that_another_claim_has_is_refused(kube: FakeKube) -> None:
    async with started(kube) as registry:
        await registry.claim(wanted(name=Label("mine")))
        with pytest.raises(ClaimExists):
            await registry.claim(wanted(name=Label("mine")))


async def test_an_answer_that_gets_lost_makes_no_second_claim(kube: FakeKube) -> None:
    kube.faults.refusals.append(
        Fault(500, times=2, after=True, when=lambda call: call.verb == "create")
    )
    async with started(kube) as registry:
        claim = await registry.claim(wanted())
        assert only_claim(kube)["metadata"]["name"] == claim.name


@pytest.mark.parametrize(("code", "reason"), [(429, "TooManyRequests"), (503, "Unavailable")])
async def test_refusals_that_pass_are_waited_out(kube: FakeKube, code: int, reason: str) -> None:
    kube.faults.refusals.append(Fault(code, reason, times=2, when=lambda c: c.verb == "create"))
    async with started(kube) as registry:
        await registry.claim(wanted())


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        (Fault(403, "Forbidden"), RegistryUnavailable),
        (Fault(422, "Invalid"), InvalidRequest),
        (Fault(404, "NotFound"), PoolNotFound),
        (Fault(500, "InternalError"), RegistryUnavailable),
    ],
)
async def test_what_the_api_refuses_is_told_without_its_texts(
    kube: FakeKube, fault: Fault, refusal: type[GatewayError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "API_SECONDS", 0.3)
    fault = dataclasses.replace(fault, when=lambda call: call.verb == "create")
    kube.faults.refusals.append(fault)
    async with started(kube) as registry:
        with pytest.raises(refusal) as caught:
            await registry.claim(wanted(wait_seconds=0.1))
        assert "a test wants it so" not in caught.value.message


@pytest.mark.parametrize(
    ("reason", "refusal"),
    [
        ("WarmPoolNotFound", PoolNotFound),
        ("TemplateNotFound", PoolNotFound),
        ("InvalidMetadata", InvalidRequest),
        ("EnvVarsInjectionRejected", InvalidRequest),
        ("PodFailed", SandboxNotReady),
        ("ClaimExpired", SandboxNotReady),
    ],
)
async def test_reasons_that_last_end_the_wait_and_the_claim(
    kube: FakeKube, reason: str, refusal: type[GatewayError]
) -> None:
    kube.controller.paused = True
    async with started(kube) as registry:
        claiming = asyncio.create_task(registry.claim(wanted()))
        await until(lambda: bool(kube.store.items(CLAIMS)))
        claim = only_claim(kube)
        rows = [condition("Ready", "False", reason, "secret: rule 7 of the cluster")]
        kube.store.replace(
            CLAIMS,
            "default",
            claim["metadata"]["name"],
            claim | {"status": {"conditions": rows}},
            status=True,
        )
        with pytest.raises(refusal, match=reason) as caught:
            await claiming
        assert "secret" not in caught.value.message
        assert kube.store.items(CLAIMS) == []


async def test_who_waited_in_vain_leaves_nothing_behind(kube: FakeKube) -> None:
    kube.controller.paused = True
    async with started(kube) as registry:
        with pytest.raises(PoolExhausted) as caught:
            await registry.claim(wanted(wait_seconds=0.1))
        assert caught.value.retry_after
        assert kube.store.items(CLAIMS) == []
        assert registry.claims() == []


async def test_a_client_that_leaves_leaves_nothing_behind(kube: FakeKube) -> None:
    kube.controller.paused = True
    async with started(kube) as registry:
        claiming = asyncio.create_task(registry.claim(wanted()))
        await until(lambda: bool(kube.store.items(CLAIMS)))
        claiming.cancel()
        await asyncio.wait({claiming})
        await until(lambda: kube.store.items(CLAIMS) == [])


async def test_a_client_that_leaves_while_its_claim_is_being_created_leaves_nothing_behind(
    kube: FakeKube,
) -> None:
    kube.faults.latency_of = lambda call: 0.2 if call.verb == "create" else 0.0
    async with started(kube) as registry:
        claiming = asyncio.create_task(registry.claim(wanted()))
        await until(lambda: bool(kube.calls("create", "sandboxclaims")))
        claiming.cancel()
        await asyncio.wait({claiming})
        await until(lambda: bool(kube.calls("delete", "sandboxclaims")))
        await until(lambda: kube.store.items(CLAIMS) == [])


async def test_a_client_that_comes_again_through_another_replica_gets_its_claim(
    kube: FakeKube,
) -> None:
    kube.controller.paused = True
    async with started(kube) as one, started(kube) as two:
        keyed = wanted(key="k-1")
        first = asyncio.create_task(one.claim(keyed))
        await until(lambda: bool(kube.store.items(CLAIMS)))
        second = asyncio.create_task(two.claim(keyed))
        await until(lambda: len(kube.calls("create", "sandboxclaims")) == 2)
        first.cancel()  # one has noticed that the client is gone, and deletes what it made
        await asyncio.wait({first})
        kube.controller.paused = False
        claim = await second
        assert only_claim(kube)["metadata"]["name"] == claim.name
        assert two.endpoint(Target(claim.sandbox, claim.namespace, DEFAULT_PORT)) is not None


async def test_a_claim_that_another_replica_has_answered_with_is_not_taken_back(
    kube: FakeKube,
) -> None:
    kube.controller.paused = True
    async with started(kube) as one, started(kube) as two:
        keyed = wanted(key="k-1")
        first = asyncio.create_task(one.claim(keyed))
        await until(lambda: [c.state for c in one.claims()] == ["pending"])
        kube.faults.hold_events = True  # `one` does not hear that it is ready
        kube.controller.paused = False
        kube.controller.reconcile()
        claim = await two.claim(keyed)
        first.cancel()
        await asyncio.wait({first})
        assert only_claim(kube)["metadata"]["name"] == claim.name
        assert kube.calls("delete", "sandboxclaims") != []  # it was tried, and refused


async def test_nothing_is_created_where_one_would_have_to_wait_and_will_not(
    kube: FakeKube,
) -> None:
    async with started(kube) as registry:
        kube.controller.paused = True
        pool = kube.store.get(POOLS, "default", POOL)
        empty = pool["status"] | {"readyReplicas": 0}
        kube.store.replace(POOLS, "default", POOL, pool | {"status": empty}, status=True)
        await until(lambda: registry.pools()[0].ready == 0)
        for key in (None, "k-1"):
            with pytest.raises(PoolExhausted):
                await registry.claim(wanted(on_empty="fail", key=key))
        assert kube.calls("create", "sandboxclaims") == []


async def test_a_pool_that_has_just_been_made_is_found(kube: FakeKube) -> None:
    async with started(kube) as registry:
        kube.faults.hold_events = True
        spec = {"spec": {"replicas": 1, "sandboxTemplateRef": {"name": "python"}}}
        kube.store.create(POOLS, "default", {"metadata": {"name": "new"}} | spec)
        kube.faults.hold_events = False
        assert (await registry.claim(wanted(pool="new"))).pool == "new"


async def test_quotas_of_the_cluster_are_quotas(kube: FakeKube) -> None:
    message = 'sandboxclaims "c" is forbidden: exceeded quota: claims, requested: 1'
    fault = Fault(403, "Forbidden", message=message, when=lambda call: call.verb == "create")
    kube.faults.refusals.append(fault)
    async with started(kube) as registry:
        with pytest.raises(QuotaExceeded):
            await registry.claim(wanted())


async def test_renewing_moves_both_ends_and_is_seen_by_other_replicas(kube: FakeKube) -> None:
    async with started(kube) as one, started(kube) as two:
        claim = await one.claim(wanted(lease_seconds=60.0, idle_seconds=7200.0))
        renewed = await two.renew(claim.namespace, claim.name, 1800.0, uid=claim.uid)
        assert renewed.expires_at - claim.expires_at > timedelta(seconds=1700)
        await until(lambda: one.claims()[0].expires_at == renewed.expires_at)
        told = only_claim(kube)
        ends = datetime.fromisoformat(told["spec"]["lifecycle"]["shutdownTime"])
        assert abs(ends - renewed.expires_at) <= timedelta(seconds=1)


async def test_two_that_renew_at_once_both_do(kube: FakeKube) -> None:
    async with started(kube) as one, started(kube) as two:
        claim = await one.claim(wanted(lease_seconds=60.0))
        await until(lambda: len(two.claims()) == 1)
        await asyncio.gather(
            *(r.renew(claim.namespace, claim.name, 600.0) for r in (one, two, one, two))
        )


async def test_a_replica_that_saw_use_does_not_undo_a_renewal_that_it_has_not_heard_of(
    kube: FakeKube,
) -> None:
    async with started(kube) as one, started(kube) as two:
        claim = await one.claim(wanted(lease_seconds=60.0, idle_seconds=3600.0))
        await until(lambda: [c.state for c in two.claims()] == ["ready"])
        key = (claim.namespace, claim.name)
        await until(lambda: two._claims.get(key) == one._claims.get(key))
        kube.faults.hold_events = True
        await one.renew(claim.namespace, claim.name, 1800.0)
        renewed = only_claim(kube)["spec"]["lifecycle"]["shutdownTime"]
        stale = two._claims.get(key)
        assert stale is not None
        await two._move(stale, claim.expires_at)
        assert only_claim(kube)["spec"]["lifecycle"]["shutdownTime"] == renewed


async def test_no_renewal_goes_beyond_the_greatest_age(kube: FakeKube) -> None:
    pool = kube.store.get(POOLS, "default", POOL)
    ages = {"annotations": {"sandgate.dev/max-age-seconds": "100"}}
    kube.store.replace(POOLS, "default", POOL, pool | {"metadata": pool["metadata"] | ages})
    async with started(kube) as registry:
        claim = await registry.claim(wanted(lease_seconds=60.0))
        renewed = await registry.renew(claim.namespace, claim.name, 5000.0)
        age = renewed.expires_at - claim.created_at
        assert age <= timedelta(seconds=100, milliseconds=1)


async def test_another_generation_is_neither_renewed_nor_released(kube: FakeKube) -> None:
    async with started(kube) as registry:
        claim = await registry.claim(wanted(name=Label("mine")))
        with pytest.raises(ClaimNotFound):
            await registry.renew(claim.namespace, claim.name, 60.0, uid="another")
        await registry.release(claim.namespace, claim.name, uid="another")
        assert only_claim(kube)["metadata"]["name"] == "mine"
        await registry.release(claim.namespace, claim.name, uid=claim.uid)
        assert kube.store.items(CLAIMS) == []


async def test_a_release_ends_the_sandbox_and_its_pod(kube: FakeKube) -> None:
    async with started(kube) as one, started(kube) as two:
        claim = await one.claim(wanted())
        target = Target(claim.sandbox, claim.namespace, DEFAULT_PORT)
        assert await two.find(target) is not None
        await one.release(claim.namespace, claim.name)
        assert one.endpoint(target) is None
        await until(lambda: two.endpoint(target) is None)
        await until(lambda: kube.store.find(SANDBOXES, "default", claim.sandbox) is None)


async def test_while_the_api_is_away_control_calls_say_so(kube: FakeKube) -> None:
    async with started(kube) as registry:
        claim = await registry.claim(wanted())
        await kube.down()
        for call in (
            registry.find_claim(claim.namespace, claim.name),
            registry.renew(claim.namespace, claim.name, None),
            registry.release(claim.namespace, claim.name),
        ):
            with pytest.raises(RegistryUnavailable) as caught:
                await call
            assert caught.value.retry_after
        assert registry.endpoint(Target(claim.sandbox, claim.namespace, DEFAULT_PORT)) is not None
        assert registry.health().is_ready
        await kube.up()


async def test_a_gateway_without_its_rights_says_which_it_needs(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandgate_router.registry.kubernetes.registry.START_SECONDS", 0.2)
    rules = (Rule(("*",), "agents.x-k8s.io", "*"), Rule(("list", "watch"), "*", "sandboxwarmpools"))
    kube.rbac.users["t"] = User("gateway", rules=rules)
    async with started(kube, token="t") as registry:
        health = registry.health()
        assert not health.is_ready
        assert health.fault == (
            "the Kubernetes API forbids: list sandboxclaims.extensions.agents.x-k8s.io in all"
            " namespaces"
        )


async def test_only_the_listed_namespaces_are_looked_at(kube: FakeKube) -> None:
    async with started(kube, namespaces=("default", "team")) as registry:
        await registry.claim(wanted())
        with pytest.raises(PoolNotFound):
            await registry.claim(wanted(namespace=Label("other")))
        assert await registry.find(Target(Label("x"), Label("other"), DEFAULT_PORT)) is None
        seen = {call.namespace for call in kube.app.calls}
        assert seen == {"default", "team"}
