import asyncio
import os
import signal
from pathlib import Path

import pytest
from support.local_sandbox import (
    DEFAULT,
    POOL,
    claimed_sandbox,
    is_running,
    pool,
    request,
    running_registry,
)

from sandgate_router.errors import NotAllowedHere
from sandgate_router.registry.local.plain import PlainSandbox, reachable_by_all

SECRET = "a-secret-of-the-gateway"


async def test_an_unisolated_sandbox_serves_no_port_but_its_own() -> None:
    async with claimed_sandbox(isolation="none") as inside:
        assert inside.claim.isolation == "none"
        assert inside.endpoint().relay_port is None
        with pytest.raises(NotAllowedHere, match="un-isolated sandboxes serve port 8888 only"):
            inside.endpoint(3000)


async def test_it_starts_in_an_empty_folder_of_its_own_without_the_gateways_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", SECRET)
    async with claimed_sandbox(isolation="none", env={"GREETING": "hello"}) as inside:
        work = (await inside.sh("pwd")).strip()
        assert await inside.sh("ls -A; echo $HOME $GREETING") == f"{work} hello\n"
        assert Path(work).stat().st_mode & 0o777 == 0o700
        assert SECRET not in await inside.sh("env; cat /proc/$PPID/environ")


async def test_release_ends_the_whole_tree_and_removes_the_folder() -> None:
    async with claimed_sandbox(isolation="none", warm=0) as inside:
        work = Path((await inside.sh("pwd")).strip())
        await inside.sh("mkdir -p a/b; chmod 000 a/b; ln -s /etc/passwd link")
        running = asyncio.create_task(
            inside.execute("/bin/sh", "-c", "setsid sleep 1000 & nohup sleep 1001 & wait")
        )
        async with asyncio.timeout(10):
            while len(pids := inside.processes()) < 4:
                await asyncio.sleep(0.01)
        await inside.registry.release(inside.claim.namespace, inside.claim.name)
        assert not any(map(is_running, pids))
        assert not work.exists()
        await asyncio.gather(running, return_exceptions=True)
    assert Path("/etc/passwd").stat().st_mode & 0o777 == 0o644


async def test_a_runtime_that_ignores_the_signal_is_killed_with_its_children() -> None:
    async with claimed_sandbox(isolation="none", warm=0) as inside:
        running = asyncio.create_task(inside.execute("/bin/sh", "-c", "sleep 1000 & wait"))
        async with asyncio.timeout(10):
            while len(pids := inside.processes()) < 3:
                await asyncio.sleep(0.01)
        os.kill(inside.runtime, signal.SIGSTOP)
        await inside.registry.release(inside.claim.namespace, inside.claim.name)
        assert not any(map(is_running, pids))
        await asyncio.gather(running, return_exceptions=True)


async def test_orphans_of_a_killed_runtime_are_ended_too() -> None:
    async with claimed_sandbox(isolation="none", warm=0) as inside:
        running = asyncio.create_task(
            inside.execute("/bin/sh", "-c", "setsid sh -c 'echo $$ > pid; exec sleep 1000' & wait")
        )
        work = Path((await inside.sh("pwd")).strip())
        async with asyncio.timeout(10):
            while not (work / "pid").exists() or not (work / "pid").read_text():
                await asyncio.sleep(0.01)
        orphan = int((work / "pid").read_text())
        assert is_running(orphan)
        os.kill(inside.runtime, signal.SIGKILL)
        async with asyncio.timeout(10):
            while inside.claim.state != "failed" or work.exists():
                await asyncio.sleep(0.01)
        assert "SIGKILL" in str(inside.claim.reason)
        assert not is_running(orphan)
        await asyncio.gather(running, return_exceptions=True)


def test_what_lies_below_a_closed_folder_is_not_reachable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    tmp_path.chmod(0o700)
    assert not reachable_by_all(file)
    assert not reachable_by_all(tmp_path / "missing")
    assert reachable_by_all(Path("/bin/sh"))


async def test_a_sandbox_that_died_a_moment_ago_is_not_handed_out() -> None:
    async with running_registry(pool(warm=1, max=1), isolation="none") as registry:
        inner = registry._fleet.find(DEFAULT, POOL)
        while not inner.ready:
            await asyncio.sleep(0.01)
        member = inner.ready[0]
        assert isinstance(member, PlainSandbox)
        assert member._process is not None
        member._process.send_signal(signal.SIGKILL)
        # Dead, and the event loop has had no chance to hear of it.
        os.waitid(os.P_PID, member._process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        assert len(inner.ready) == 1
        claim = await registry.claim(request())
        assert claim.uid != member.uid
