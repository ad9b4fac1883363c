"""Each limit of a pool is seen to hold, with the real runtime and small values."""

import asyncio
import os

import pytest
from support.local_sandbox import (
    Inside,
    claimed_sandbox,
    needs_bubblewrap,
    pool,
    request,
    running_registry,
)

from sandgate_router.registry.local.pools import LocalIsolation

MIB = 1024**2

BOTH = pytest.mark.parametrize(
    "isolation", [pytest.param("bubblewrap", marks=needs_bubblewrap), "none"]
)


@BOTH
async def test_a_command_gets_no_more_memory_than_the_limit(isolation: LocalIsolation) -> None:
    async with claimed_sandbox(isolation=isolation, memory_bytes=256 * MIB) as inside:
        take = "x = bytearray({} * 1024**2); print(len(x))"
        assert await inside.python(take.format(100)) == f"{100 * MIB}\n"
        code, _, err = await inside.execute("python3", "-c", take.format(300))
        assert code != 0
        assert "MemoryError" in err


@BOTH
async def test_a_command_gets_no_more_processor_time_than_the_limit(
    isolation: LocalIsolation,
) -> None:
    async with claimed_sandbox(isolation=isolation, cpu_seconds=1) as inside:
        code, _, _ = await inside.execute("python3", "-c", "while True: pass")
        assert code != 0
        used = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0])"
        assert await inside.python(used) == "1\n"


FORK = """
import os, time
children = 0
try:
    while children < 200:
        if os.fork() == 0:
            time.sleep(100)
        children += 1
except BlockingIOError:
    pass
print(children)
"""


@BOTH
async def test_a_sandbox_has_no_more_processes_than_the_limit(isolation: LocalIsolation) -> None:
    if isolation == "none" and os.geteuid() == 0:
        pytest.skip("the kernel exempts root, whom an un-isolated sandbox may run as")
    async with claimed_sandbox(isolation=isolation, max_processes=40) as inside:
        assert 5 <= int(await inside.python(FORK)) < 100


@needs_bubblewrap
async def test_two_sandboxes_do_not_share_one_limit_on_processes() -> None:
    async with running_registry(pool(max_processes=60, warm=2)) as registry:
        claims = [await registry.claim(request()) for _ in range(2)]
        hold = f"{FORK}\nif children: time.sleep(1)"
        counts = await asyncio.gather(*(Inside(registry, claim).python(hold) for claim in claims))
        assert all(int(count) > 40 for count in counts), counts


@needs_bubblewrap
async def test_the_files_of_a_sandbox_together_are_no_larger_than_the_limit() -> None:
    async with claimed_sandbox(workspace_bytes=8 * MIB) as inside:
        fill = "dd if=/dev/zero of={} bs=1M count={} 2>&1"
        await inside.sh(fill.format("/home/user/a", 5))
        code, out, _ = await inside.execute("/bin/sh", "-c", fill.format("/tmp/b", 5))
        assert code != 0
        assert "No space left on device" in out
        code, out, _ = await inside.execute("/bin/sh", "-c", fill.format("/dev/shm/c", 65))
        assert code != 0
        assert "No space left on device" in out


async def test_a_file_of_an_unisolated_sandbox_is_no_larger_than_the_limit() -> None:
    async with claimed_sandbox(isolation="none", workspace_bytes=8 * MIB) as inside:
        fill = "dd if=/dev/zero of=a bs=1M count={} 2>&1"
        await inside.sh(fill.format(5))
        code, _, _ = await inside.execute("/bin/sh", "-c", fill.format(20))
        assert code != 0
        assert await inside.sh("stat -c %s a") == f"{8 * MIB}\n"
