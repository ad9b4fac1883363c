"""List-and-watch keeps a copy through all that happens to connections and versions."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from support.fake_kube import FakeKube, Fault, Rule, User, fake_kube
from support.fake_kube.kinds import POOLS, TEMPLATES
from support.fake_kube.objects import warm_pool

from sandgate_router.kube import list_watch
from sandgate_router.kube.access import Access, TokenSource
from sandgate_router.kube.backoff import Backoff
from sandgate_router.kube.client import KubeClient
from sandgate_router.kube.list_watch import ListWatch
from sandgate_router.kube.resources import WARM_POOLS


class Copy:
    """The names and sizes of pools, as they were told."""

    def __init__(self) -> None:
        self.pools: dict[str, int] = {}
        self.lists = 0
        self.told: list[tuple[str, str]] = []

    def replace(self, items: list[bytes], *, version: str, namespace: str) -> None:
        assert version.isdecimal()
        assert namespace == ""
        self.lists += 1
        pools = [json.loads(item) for item in items]
        self.pools = {pool["metadata"]["name"]: pool["spec"]["replicas"] for pool in pools}

    def apply(self, kind: str, item: msgspec.Raw) -> None:
        pool = json.loads(bytes(item))
        name = pool["metadata"]["name"]
        self.told.append((kind, name))
        if kind == "DELETED":
            self.pools.pop(name, None)
        else:
            self.pools[name] = pool["spec"]["replicas"]


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with fake_kube(controller=False) as kube:
        yield kube


@contextlib.asynccontextmanager
async def watching(
    kube: FakeKube, *, token: str = "", synced: bool = True
) -> AsyncIterator[tuple[ListWatch, Copy]]:
    client = KubeClient(Access(kube.url, None, TokenSource(token)))
    copy = Copy()
    watch = ListWatch(client, WARM_POOLS, "", copy, backoff=lambda: Backoff(first=0.01, most=0.05))
    task = asyncio.create_task(watch.run())
    try:
        if synced:
            async with asyncio.timeout(20):
                await watch.synced.wait()
            await until(lambda: len(kube.app.watches) == 1)
        yield watch, copy
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def add(kube: FakeKube, name: str, replicas: int = 1) -> None:
    kube.store.create(POOLS, "default", warm_pool(name, replicas=replicas))


async def test_it_lists_page_by_page_and_then_hears_of_changes(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_watch, "PAGE", 2)
    for number in range(5):
        add(kube, f"p{number}")
    async with watching(kube) as (_, copy):
        assert copy.pools == {f"p{number}": 1 for number in range(5)}
        assert len(kube.calls("list", "sandboxwarmpools")) == 3
        add(kube, "p5")
        kube.store.delete(POOLS, "default", "p0")
        await until(lambda: "p5" in copy.pools and "p0" not in copy.pools)
        assert copy.told == [("ADDED", "p5"), ("DELETED", "p0")]


@pytest.mark.parametrize("abruptly", [True, False])
async def test_a_watch_that_ends_is_resumed_without_a_list(kube: FakeKube, abruptly: bool) -> None:
    add(kube, "p0")
    async with watching(kube) as (_, copy):
        for number in range(1, 4):
            assert kube.cut_watches(abruptly=abruptly) == 1
            add(kube, f"p{number}")  # while nobody listens
            await until(lambda name=f"p{number}": name in copy.pools)  # type: ignore[misc]
            await until(lambda: len(kube.app.watches) == 1)
        assert copy.lists == 1
        assert copy.told == [("ADDED", f"p{number}") for number in range(1, 4)]


async def test_a_bookmark_is_resumed_from_though_nothing_happened(kube: FakeKube) -> None:
    add(kube, "p0")
    kube.faults.bookmark_seconds = 0.02
    async with watching(kube) as (watch, copy):
        before = watch._version
        kube.store.create(
            TEMPLATES, "default", {"metadata": {"name": "t"}, "spec": {"podTemplate": {"spec": {}}}}
        )
        add(kube, "p1")
        await until(lambda: int(watch._version) > int(before))
        kube.cut_watches()
        await until(lambda: len(kube.app.watches) == 1)
        assert copy.told == [("ADDED", "p1")]


async def test_a_version_that_has_expired_has_everything_listed_anew(kube: FakeKube) -> None:
    add(kube, "p0")
    add(kube, "p1")
    async with watching(kube) as (_, copy):
        await kube.down()
        kube.store.delete(POOLS, "default", "p0")
        add(kube, "p2")
        kube.store.forget_history()
        await kube.up()
        await until(lambda: copy.pools == {"p1": 1, "p2": 1})
        assert copy.lists == 2


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize(("code", "reason"), [(429, "TooManyRequests"), (500, "InternalError")])
async def test_refusals_that_pass_are_waited_out(
    kube: FakeKube, verb: str, code: int, reason: str
) -> None:
    add(kube, "p0")
    kube.faults.refusals.append(Fault(code, reason, times=3, when=lambda call: call.verb == verb))
    async with watching(kube) as (watch, copy):
        assert copy.pools == {"p0": 1}
        await until(lambda: watch.fault is None)


def test_the_api_server_may_ask_for_a_pause() -> None:
    backoff = Backoff(first=0.01, most=10)
    assert backoff.next(at_least=3.0) == 3.0
    assert backoff.next(at_least=3600.0) == 10.0


def test_waits_double_and_differ() -> None:
    waits = [Backoff(first=1, most=8).next() for _ in range(50)]
    assert len(set(waits)) > 40
    backoff = Backoff(first=1, most=8)
    spans = [backoff.next() for _ in range(6)]
    for wait, most in zip(spans, [1, 2, 4, 8, 8, 8], strict=True):
        assert most / 2 <= wait <= most
    backoff.reset()
    assert backoff.next() <= 1


async def test_an_api_server_that_is_away_changes_nothing_and_is_heard_again(
    kube: FakeKube,
) -> None:
    add(kube, "p0")
    async with watching(kube) as (watch, copy):
        await kube.down()
        await until(lambda: watch.fault is not None)
        assert watch.fault == "the Kubernetes API does not answer"
        assert copy.pools == {"p0": 1}
        add(kube, "p1")
        await kube.up()
        await until(lambda: copy.pools == {"p0": 1, "p1": 1})
        assert watch.fault is None


async def test_what_is_forbidden_is_named(kube: FakeKube) -> None:
    kube.rbac.users["t"] = User("gateway", rules=(Rule(("get",), "*", "*"),))
    async with watching(kube, token="t", synced=False) as (watch, _):
        await until(lambda: watch.fault is not None)
        assert watch.fault == (
            "the Kubernetes API forbids: list sandboxwarmpools.extensions.agents.x-k8s.io in all"
            " namespaces"
        )
        assert not watch.synced.is_set()
        kube.rbac.users["t"] = User("gateway")
        await until(watch.synced.is_set)
        assert watch.fault is None


async def test_a_silent_watch_counts_as_broken(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_watch, "SILENCE_SECONDS", 0.2)
    kube.faults.hold_events = True
    async with watching(kube) as (_, copy):
        add(kube, "p0")
        kube.faults.hold_events = False
        await until(lambda: "p0" in copy.pools)
        assert copy.lists == 1


async def test_an_older_cluster_is_spoken_to_in_its_own_version(kube: FakeKube) -> None:
    add(kube, "p0")
    kube.app.served_versions = ("v1alpha1",)
    async with watching(kube) as (_, copy):
        assert copy.pools == {"p0": 1}


async def test_events_that_come_twice_are_passed_on_twice(kube: FakeKube) -> None:
    kube.faults.duplicate_events = True
    async with watching(kube) as (_, copy):
        add(kube, "p0")
        await until(lambda: len(copy.told) == 2)
        assert copy.told == [("ADDED", "p0")] * 2
