"""Un-isolated sandboxes forked off one process are what they are when started as programs."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.local_sandbox import (
    Inside,
    claimed_sandbox,
    descendants,
    is_running,
    pool,
    request,
    running_registry,
)

from sandgate_router.registry.local import LocalRegistry
from sandgate_router.registry.local.folder import RunFolder, listen_unix
from sandgate_router.registry.local.plain import PlainStarter
from sandgate_router.registry.local.zygote import ForkRequest, Zygote

SAME = ("PPid", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "NoNewPrivs", "Seccomp", "Umask")
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
NOBODY = 65519


@contextlib.asynccontextmanager
async def started() -> AsyncIterator[tuple[Zygote, socket.socket, RunFolder]]:
    """Yield a zygote and a socket to serve."""
    with RunFolder.create() as folder, listen_unix(folder.path / "http.sock") as listener:
        zygote = Zygote()
        try:
            yield zygote, listener, folder
        finally:
            zygote.close()


@contextlib.asynccontextmanager
async def sandbox(*, forked: bool) -> AsyncIterator[Inside]:
    """Claim a sandbox that was started in one of the two ways."""
    async with running_registry(pool(warm=0), isolation="none") as registry:
        if not forked:
            starter = starter_of(registry)
            starter.close()
        yield Inside(registry, await registry.claim(request()))


def wanted(folder: RunFolder, **members: object) -> ForkRequest:
    chosen: dict[str, object] = {
        "argv": [f"--die-with-parent={os.getpid()}"],
        "environ": {"SANDBOX_BASE_DIR": str(folder.path), "HOME": str(folder.path)},
        "file_bytes": 2**20,
        "descriptors": 200,
        "uid": None,
        **members,
    }
    return ForkRequest(**chosen)  # type: ignore[arg-type]


async def serves(listener: socket.socket) -> bool:
    """Ask whoever serves the socket for its health."""
    reader, writer = await asyncio.open_unix_connection(listener.getsockname())
    writer.write(b"GET /v1/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200 ")


def status(pid: int, names: tuple[str, ...]) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {name: found[name].strip() for name in names}


def describe(inside: Inside) -> dict[str, object]:
    """Return all that a process has of those who started it."""
    pid = inside.runtime
    places = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return {
        **status(pid, SAME + CAPABILITIES),
        "descriptors": sorted(place.partition(":")[0] for place in places),
        # The limit on processes is what the user has now, and some.
        "limits": [line for line in limits if not line.startswith("Max processes")],
        "cwd": os.readlink(f"/proc/{pid}/cwd"),
        "owner": Path(f"/proc/{pid}").stat().st_uid,
        "leads": (os.getsid(pid) == pid, os.getpgid(pid) == pid),
        "oom": Path(f"/proc/{pid}/oom_score_adj").read_text(),
    }


async def test_a_fork_has_no_more_of_the_gateway_than_a_program() -> None:
    ours, theirs = socket.socketpair()
    ours.set_inheritable(True)
    look = "ls -l /proc/self/fd | wc -l; pwd; env | sort"
    with ours, theirs:
        async with sandbox(forked=True) as fork, sandbox(forked=False) as program:
            assert Path(f"/proc/{fork.runtime}/comm").read_text() == "sandbox-runtime\n"
            words = Path(f"/proc/{program.runtime}/cmdline").read_text().split("\0")
            assert "sandgate_runtime" in words
            commands, others = await fork.sh(look), await program.sh(look)
            # A connection that was used just now may be open still.
            await until(lambda: describe(fork) == describe(program))

    def normal(text: str) -> list[str]:
        # The folder and the mark of the run differ, of course.
        different = ("sandgate-run-", "SANDBOX_PROCESS_ID=")
        return [line for line in text.splitlines() if not any(word in line for word in different)]

    assert normal(commands) == normal(others)


async def test_what_the_gateway_knows_is_not_in_the_process_that_forks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "a-secret-of-the-gateway")
    async with started() as (zygote, listener, folder):
        # Once it has answered it reads no modules any more.
        (await zygote.fork(wanted(folder), listener, on_exit=lambda: None)).kill()
        assert b"secret" not in Path(f"/proc/{zygote.pid}/environ").read_bytes()
        kinds = [os.readlink(link) for link in Path(f"/proc/{zygote.pid}/fd").iterdir()]
        assert sum(kind.startswith("socket:") for kind in kinds) == 1
        assert len(kinds) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts others as another user")
async def test_a_fork_becomes_its_user_and_stays_in_sight() -> None:
    async with started() as (zygote, listener, folder):
        process = await zygote.fork(wanted(folder, uid=NOBODY), listener, on_exit=lambda: None)
        assert await serves(listener)
        seen = status(process.pid, ("Uid", "Gid", "Groups", *CAPABILITIES))
        assert seen.pop("Uid").split() == seen.pop("Gid").split() == [str(NOBODY)] * 4
        assert seen.pop("Groups") == ""
        assert seen.pop("CapBnd")
        assert {int(value, 16) for value in seen.values()} == {0}
        assert Path(f"/proc/{process.pid}").stat().st_uid == NOBODY
        limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        (size,) = (line.split()[3:5] for line in limits if line.startswith("Max file size"))
        assert size == [str(2**20)] * 2
        process.kill()


async def test_sandboxes_outlive_the_process_that_forked_them_and_more_can_be_started() -> None:
    async with running_registry(pool(warm=1, max=4), isolation="none") as registry:
        first = Inside(registry, await registry.claim(request()))
        old = zygote_of(registry)
        os.kill(old.pid, signal.SIGKILL)
        await until(lambda: not old.alive)
        following = [Inside(registry, await registry.claim(request())) for _ in range(3)]
        for inside in (first, *following):
            assert await inside.sh("echo lives") == "lives\n"
        assert zygote_of(registry) is not old
        assert zygote_of(registry).alive


async def test_a_fork_that_nobody_waits_for_any_more_leaves_nothing() -> None:
    async with started() as (zygote, listener, folder):
        before = open_descriptors()
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.004) * 4:
            forking = asyncio.create_task(
                zygote.fork(wanted(folder), listener, on_exit=lambda: None)
            )
            await asyncio.sleep(delay)
            forking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await forking).kill()
        kept = await zygote.fork(wanted(folder), listener, on_exit=lambda: None)
        kept.kill()
        await until(lambda: descendants(os.getpid()) & children() <= {zygote.pid})
        assert open_descriptors() == before


async def test_a_fork_waits_for_the_gateway_to_hold_it_and_ends_without() -> None:
    async with started() as (zygote, listener, folder):
        kept = await zygote.fork(wanted(folder), listener, on_exit=lambda: None)
        kept.kill()
        before = children()
        answer = ask_without_go(zygote, wanted(folder), listener)
        pid = await answer
        assert children() - before == {pid}
        _, ended = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(ended) == 0


async def test_a_process_that_forks_nothing_any_more_is_given_up() -> None:
    with RunFolder.create() as folder, listen_unix(folder.path / "http.sock") as listener:
        zygote = Zygote(answer_seconds=0.2)
        os.kill(zygote.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="nothing was forked"):
            await zygote.fork(wanted(folder), listener, on_exit=lambda: None)
        assert not is_running(zygote.pid)
        with pytest.raises(OSError, match="has ended"):
            await zygote.fork(wanted(folder), listener, on_exit=lambda: None)
        zygote.close()


async def test_a_request_that_is_too_long_to_be_sent_is_an_error_and_harms_no_other() -> None:
    async with started() as (zygote, listener, folder):
        with pytest.raises(OSError, match="too long"):
            await zygote.fork(
                wanted(folder, environ={"LONG": "x" * 2**20}), listener, on_exit=lambda: None
            )
        process = await zygote.fork(wanted(folder), listener, on_exit=lambda: None)
        assert await serves(listener)
        process.kill()


async def test_a_pool_with_variables_too_long_for_a_fork_has_its_sandboxes_started() -> None:
    async with claimed_sandbox(
        isolation="none", env={f"V{n}": "x" * 90_000 for n in range(4)}
    ) as inside:
        assert await inside.sh("echo ${#V3}") == "90000\n"


def ask_without_go(
    zygote: Zygote, request: ForkRequest, listener: socket.socket
) -> "asyncio.Future[int]":
    """Ask for a fork as a gateway does that dies before it has heard the answer."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.close(write)
    try:
        return zygote._ask(request, (listener.fileno(), read, read))
    finally:
        os.close(read)


def starter_of(registry: LocalRegistry) -> PlainStarter:
    starter = registry._starters.open_ones["none"]
    assert isinstance(starter, PlainStarter)
    return starter


def zygote_of(registry: LocalRegistry) -> Zygote:
    zygote = starter_of(registry)._zygote
    assert zygote is not None
    return zygote


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> set[int]:
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
