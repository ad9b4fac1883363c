"""A gateway that is killed leaves no sandbox behind, and the next one removes its folder."""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_sandbox import descendants, is_running, needs_bubblewrap, running_registry
from support.system_gateway import nothing_left_running

from sandgate_router.registry.local.folder import PREFIX, RunFolder, sweep_dead
from sandgate_router.registry.local.pools import LocalIsolation

SOAK = os.environ.get("SANDGATE_SOAK") == "1"
KILLS = 250 if SOAK else 3
"""How many gateways of each isolation are killed at random moments."""

BUSY_LOOPS = 3
"""More than this project's machines have processors to spare."""

GATEWAY = """
import sys
import uvloop
from sandgate_router.registry.local import LocalRegistry, PoolSpec

async def main():
    registry = LocalRegistry([PoolSpec(name="py", warm=3, max=3)], isolation=sys.argv[1])
    await registry.start()
    while registry.pools()[0].ready < int(sys.argv[3]):
        await asyncio.sleep(0.01)
    print(registry._starters.folder.path, flush=True)
    await asyncio.sleep(1000)

import asyncio
asyncio.run(main()) if sys.argv[2] == "asyncio" else uvloop.run(main())
"""


@needs_bubblewrap
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("seconds", [0, 0.02, 0.04, 0.08, 0.16, 1])
def test_a_gateway_killed_at_any_moment_leaves_no_isolated_process(
    seconds: float, loop: str
) -> None:
    kill_gateway("bubblewrap", loop, ready=0, seconds=seconds)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_killed_gateway_leaves_no_unisolated_process(loop: str) -> None:
    kill_gateway("none", loop, ready=3, seconds=0)


@needs_bubblewrap
@pytest.mark.timeout(7200 if SOAK else 120)
@pytest.mark.parametrize("isolation", ["bubblewrap", "none"])
def test_gateways_killed_at_random_moments_on_a_busy_machine_leave_nothing(
    isolation: LocalIsolation,
) -> None:
    with busy_machine():
        for _ in range(KILLS):
            # What loses its parents comes to this process, so nothing can hide.
            with nothing_left_running():
                kill_gateway(isolation, "uvloop", ready=0, seconds=random.uniform(0, 1.5))


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """Keep every processor busy, so that a process may wait long at any instruction."""
    loop = ["nice", "-n", "2", sys.executable, "-I", "-S", "-c", "while True: pass"]
    loops = [subprocess.Popen(loop) for _ in range(BUSY_LOOPS)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def kill_gateway(isolation: LocalIsolation, loop: str, *, ready: int, seconds: float) -> None:
    command = [sys.executable, "-c", GATEWAY, isolation, loop, str(ready)]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert gateway.stdout is not None
        folder = Path(gateway.stdout.readline().strip())
        assert folder.is_dir()
        assert folder not in sweep_dead()
        # Killed in the midst of starts: a process that had not yet asked to die with us is
        # what this is about, so the moment is varied.
        below, until = set[int](), time.monotonic() + seconds
        while not below or time.monotonic() < until:
            below |= descendants(gateway.pid)
    finally:
        gateway.kill()
        gateway.wait()
        if gateway.stdout is not None:
            gateway.stdout.close()
    deadline = time.monotonic() + 5
    while any(map(is_running, below)):
        assert time.monotonic() < deadline, [pid for pid in below if is_running(pid)]
        time.sleep(0.01)
    while folder.exists():  # a start that was under way may hold the lock for an instant
        assert time.monotonic() < deadline
        sweep_dead()


@needs_bubblewrap
async def test_the_next_start_sweeps_a_dead_gateways_folder_and_spares_a_live_ones() -> None:
    dead = Path(tempfile.mkdtemp(prefix=PREFIX))
    (dead / "work").mkdir()
    (dead / "work" / "left").write_text("x")
    (dead / "work").chmod(0o000)
    with RunFolder.create() as live:
        async with running_registry() as registry:
            assert not dead.exists()
            assert live.path.is_dir()
            assert registry._starters.folder is not None
            assert registry._starters.folder.path.stat().st_mode & 0o777 == 0o700
    assert not live.path.exists()


async def test_a_temporary_folder_that_is_too_deep_for_sockets_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 80)))
    with pytest.raises(OSError, match="too long for unix sockets"):
        RunFolder.create()
