"""The pools follow their file: what it makes stale ends, what is claimed stays."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_starter import FakeStarter, Setup
from support.local_sandbox import DEFAULT, request

from sandgate_router.config import BadConfig
from sandgate_router.errors import PoolNotFound, QuotaExceeded
from sandgate_router.registry.base import PoolStatus
from sandgate_router.registry.local import LocalRegistry, PoolsFile, watched_file
from sandgate_router.registry.local.pools import parse_pools
from sandgate_router.registry.local.unavailable import IsolationUnavailable
from sandgate_router.registry.local.watched_file import WatchedPools


def settings(*pools: dict[str, object], **members: object) -> PoolsFile:
    return parse_pools({"pools": [{"warm": 1, "max": 4, **pool} for pool in pools], **members})


class Reloading(Setup):
    """A registry that is given new settings."""

    def __init__(self, *pools: dict[str, object]) -> None:
        super().__init__(*settings(*pools).pools)

    async def apply(self, *pools: dict[str, object], **members: object) -> None:
        await self.registry._fleet.apply(settings(*pools, **members))

    def named(self, name: str) -> PoolStatus:
        return next(status for status in self.registry.pools() if status.name == name)


STALE: list[dict[str, object]] = [
    {"env": {"A": "2"}},
    {"memory_bytes": 2**28},
    {"cpu_seconds": 9},
    {"max_processes": 9},
    {"workspace_bytes": 2**28},
]


@pytest.mark.parametrize("change", STALE, ids=lambda change: next(iter(change)))
async def test_members_made_from_old_settings_are_replaced_and_claimed_ones_are_not(
    change: dict[str, object],
) -> None:
    async with Reloading({"name": "py", "warm": 2}) as setup:
        await setup.until_ready(2)
        claim = await setup.registry.claim(request())
        await setup.until_ready(2)
        old = list(setup.starter.members)
        await setup.apply({"name": "py", "warm": 2, **change})
        assert setup.status().ready == 0
        await setup.until_ready(2)
        await setup.until(lambda: setup.starter.living == 3)
        assert (claim.state, setup.member(claim).alive) == ("ready", True)
        following = await setup.registry.claim(request())
        assert following.uid not in {member.uid for member in old}
        (name,) = change
        assert getattr(setup.member(following).spec, name) == change[name]


@pytest.mark.parametrize(
    "change",
    [{"lease_seconds": 7.0}, {"idle_seconds": None}, {"max_age_seconds": 7.0}, {"max": 9}],
    ids=lambda change: next(iter(change)),
)
async def test_other_settings_hold_for_new_claims_and_replace_nobody(
    change: dict[str, object],
) -> None:
    async with Reloading({"name": "py"}) as setup:
        await setup.until_ready(1)
        await setup.apply({"name": "py", **change})
        claim = await setup.registry.claim(request())
        assert claim.uid == setup.starter.members[0].uid
        if "max" not in change:
            left = (claim.expires_at - claim.created_at).total_seconds()
            assert claim.idle_seconds is None or left == 7


async def test_a_member_that_was_being_started_from_old_settings_is_not_used() -> None:
    async with Reloading({"name": "py"}) as setup:
        setup.starter.gate.clear()
        await setup.until(lambda: len(setup.starter.attempts) == 1)
        await setup.apply({"name": "py", "env": {"A": "2"}})
        setup.starter.gate.set()
        claim = await setup.registry.claim(request())
        assert setup.member(claim).spec.env == {"A": "2"}


async def test_new_settings_are_tried_at_once_where_the_old_ones_failed() -> None:
    setup = Reloading({"name": "py"})
    setup.starter.fail("bad env")
    async with setup:
        await setup.until(lambda: setup.status().last_error == "bad env")
        setup.registry._fleet.find(DEFAULT, "py")._failures = 100
        setup.starter.fault = None
        await setup.apply({"name": "py", "env": {"A": "2"}})
        assert setup.status().last_error is None
        await setup.until_ready(1)


async def test_a_start_from_old_settings_that_fails_delays_nothing() -> None:
    async with Reloading({"name": "py"}) as setup:
        setup.starter.gate.clear()
        await setup.until(lambda: len(setup.starter.attempts) == 1)
        await setup.apply({"name": "py", "env": {"A": "2"}})
        setup.starter.fail("old env")
        setup.starter.faulty = lambda spec: not spec.env
        setup.starter.gate.set()
        for _ in range(20):  # steps, no time: a pause would be longer
            await asyncio.sleep(0)
        assert [spec.env for spec in setup.starter.attempts[:2]] == [{}, {"A": "2"}]
        await setup.until_ready(1)


async def test_pools_appear_and_removed_ones_wait_for_their_claims() -> None:
    async with Reloading({"name": "py"}, {"name": "old"}) as setup:
        kept = await setup.registry.claim(request(pool="old"))
        await setup.until(lambda: setup.named("old").ready == 1)
        await setup.until(lambda: setup.named("py").ready == 1)
        await setup.apply({"name": "py"}, {"name": "new"})
        assert [status.name for status in setup.registry.pools()] == ["new", "py"]
        with pytest.raises(PoolNotFound):
            await setup.registry.claim(request(pool="old"))
        await setup.registry.claim(request(pool="new"))
        assert (kept.state, setup.endpoint(kept) is not None) == ("ready", True)
        await setup.registry.renew(DEFAULT, kept.name, 60.0)
        await setup.registry.release(DEFAULT, kept.name)
        await setup.until(lambda: setup.named("new").ready == 1)
        assert setup.starter.living == 3
        assert setup.events[-1].pool != "old" or setup.events[-1].status is None


async def test_claims_that_wait_for_a_pool_that_is_removed_learn_it() -> None:
    async with Reloading({"name": "py", "max": 1}) as setup:
        await setup.registry.claim(request())
        waiting = asyncio.create_task(setup.registry.claim(request()))
        await setup.until(lambda: setup.status().waiting == 1)
        await setup.apply({"name": "other"})
        with pytest.raises(PoolNotFound):
            await waiting


async def test_a_pool_that_comes_back_counts_the_claims_it_still_has() -> None:
    async with Reloading({"name": "py", "max": 2}) as setup:
        await setup.registry.claim(request())
        await setup.apply({"name": "other"})
        await setup.apply({"name": "py", "max": 2}, {"name": "other"})
        await setup.until(lambda: setup.named("py").ready == 1)
        assert (setup.named("py").claimed, setup.named("py").max) == (1, 2)


async def test_a_size_given_at_run_time_stays_until_the_file_says_another() -> None:
    async with Reloading({"name": "py"}, {"name": "other"}) as setup:
        await setup.registry.resize(DEFAULT, "py", warm=3, max_members=5)
        await setup.apply({"name": "py"}, {"name": "other", "warm": 2})
        assert (setup.named("py").warm, setup.named("py").max) == (3, 5)
        await setup.apply({"name": "py", "warm": 2}, {"name": "other", "warm": 2})
        assert (setup.named("py").warm, setup.named("py").max) == (2, 4)


async def test_quotas_follow_the_file() -> None:
    async with Reloading({"name": "py"}) as setup:
        await setup.registry.claim(request())
        await setup.apply({"name": "py"}, quotas={"default": 1})
        with pytest.raises(QuotaExceeded):
            await setup.registry.claim(request())
        await setup.apply({"name": "py"})
        await setup.registry.claim(request())


async def test_settings_that_cannot_hold_here_change_nothing() -> None:
    class Refusing(FakeStarter):
        async def open(self) -> None:
            raise IsolationUnavailable("not here")

    async with Reloading({"name": "py"}) as setup:
        with pytest.raises(BadConfig, match="--isolation none"):
            await setup.apply({"name": "other", "isolation": "none"})
        assert [status.name for status in setup.registry.pools()] == ["py"]
    plain = FakeStarter()
    registry = LocalRegistry(
        settings({"name": "py"}).pools,
        isolation="none",
        starters={"none": plain, "bubblewrap": Refusing()},
    )
    await registry.start()
    with pytest.raises(IsolationUnavailable):
        await registry._fleet.apply(settings({"name": "py", "isolation": "bubblewrap"}))
    assert registry.pools()[0].isolation == "none"
    await registry.close()


class Applied:
    """What a watched file had applied."""

    def __init__(self, path: Path) -> None:
        self.names: list[list[str]] = []
        self.watched = WatchedPools(path)
        self.watched.load()

    async def look(self, times: int = 2) -> list[list[str]]:
        for _ in range(times):
            await self.watched.look(self.apply)
        return self.names

    async def apply(self, file: PoolsFile) -> None:
        self.names.append([spec.name for spec in file.pools])


def write(path: Path, *names: str) -> None:
    path.write_text("pools:\n" + "".join(f"- name: {name}\n" for name in names))


async def test_a_change_is_applied_once_it_has_looked_the_same_twice(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    write(path, "a")
    applied = Applied(path)
    assert await applied.look() == []
    write(path, "a", "b")
    assert await applied.look(1) == []
    write(path, "a", "b", "c")  # it was being written
    assert await applied.look(1) == []
    assert await applied.look(1) == [["a", "b", "c"]]
    assert await applied.look(3) == [["a", "b", "c"]]


async def test_a_file_that_replaces_the_old_one_counts_as_changed(tmp_path: Path) -> None:
    path, new = tmp_path / "pools.yaml", tmp_path / "new"
    write(path, "a")
    applied = Applied(path)
    write(new, "b")
    times = path.stat()
    os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
    new.rename(path)
    assert await applied.look() == [["b"]]


async def test_a_broken_or_missing_file_is_logged_once_and_keeps_the_old_pools(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pools.yaml"
    write(path, "a")
    applied = Applied(path)
    path.write_text("pools:\n- name: A B\n")
    assert await applied.look(5) == []
    assert [record.message for record in caplog.records] == ["pools.kept"]
    path.unlink()
    assert await applied.look(5) == []
    assert len(caplog.records) == 2
    write(path, "b")
    assert await applied.look() == [["b"]]


@pytest.mark.parametrize("fault", [IsolationUnavailable("no"), ValueError("a bug")])
async def test_a_failure_to_apply_is_logged_and_ends_no_watch(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
) -> None:
    monkeypatch.setattr(watched_file, "LOOK_SECONDS", 0.001)
    path = tmp_path / "pools.yaml"
    write(path, "a")
    watched = WatchedPools(path)
    names: list[str] = []

    async def apply(file: PoolsFile) -> None:
        if not caplog.records:
            raise fault
        names.extend(spec.name for spec in file.pools)

    watching = asyncio.create_task(watched.run(apply))
    try:
        write(path, "b")
        await _until(lambda: bool(caplog.records))
        write(path, "bb")
        await _until(lambda: bool(names))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert caplog.records[0].message == "pools.kept"
    assert names == ["bb"]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_registry_over_a_file_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_file, "LOOK_SECONDS", 0.01)
    path = tmp_path / "pools.yaml"
    path.write_text("pools:\n- {name: a, warm: 1, max: 2}\n")
    watched = WatchedPools(path)
    registry = LocalRegistry(
        watched.load(), starters={"bubblewrap": FakeStarter()}, watched=watched
    )
    await registry.start()
    try:
        path.write_text("pools:\n- {name: a, warm: 2, max: 2}\n- {name: b, warm: 1, max: 2}\n")
        await _until(lambda: [status.ready for status in registry.pools()] == [2, 1])
    finally:
        await registry.close()
