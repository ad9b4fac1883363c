"""Starts and ends the members of pools: keeps them full, no faster than the machine can.

Every start and every end is a task that is kept until it is done; `close()` cancels the
starts and awaits them all.
"""

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Mapping

from sandgate_router.registry.local.member import Member, Starter, StartFailed
from sandgate_router.registry.local.pool import Pool
from sandgate_router.registry.local.pools import LocalIsolation

log = logging.getLogger(__name__)

Starters = Mapping[LocalIsolation, Starter]


class Stock:
    """The starts and ends under way."""

    def __init__(self, starters: Starters, *, died: Callable[[Pool, Member, str], None]) -> None:
        self._starters = starters
        self._died = died
        # As many at once as there are processors: more make each start slower, not all faster.
        self._starts_at_once = asyncio.Semaphore(os.cpu_count() or 1)
        self._starts = set[asyncio.Task[None]]()
        self._ends = set[asyncio.Task[None]]()
        self._closing = False

    async def close(self) -> None:
        """Stop the starts under way and wait for every end; nothing is started any more."""
        self._closing = True
        for task in self._starts:
            task.cancel()
        while tasks := [*self._starts, *self._ends]:
            await asyncio.wait(tasks)

    def end(self, pool: Pool, member: Member) -> asyncio.Task[None]:
        """End a member that its pool no longer counts as ready or claimed."""

        async def finish() -> None:
            try:
                await member.end()
            finally:
                pool.ending -= 1
                self.refill(pool)

        pool.ending += 1
        return self._keep(self._ends, finish())

    def refill(self, pool: Pool) -> None:
        """Start what the pool wants now."""
        if self._closing:
            return
        for _ in range(pool.wanted()):
            pool.starting += 1
            self._keep(self._starts, self._start_one(pool))

    async def _start_one(self, pool: Pool) -> None:
        starter = self._starters["none" if pool.isolation == "none" else "bubblewrap"]
        member = None
        begun = 0.0
        try:
            async with self._starts_at_once:
                if not pool.paused:
                    begun = time.monotonic()
                    died = functools.partial(self._died, pool)
                    member = await starter.start(pool.spec, died=died)
        except (StartFailed, OSError) as error:
            log.warning(
                "registry.start_failed", extra={"pool": pool.spec.name, "reason": str(error)}
            )
            self.pause(pool, str(error))
        finally:
            pool.starting -= 1
        if member is not None:
            pool.started(member, seconds=time.monotonic() - begun)
        self.refill(pool)

    def pause(self, pool: Pool, reason: str) -> None:
        """Start nothing for a while, because a start failed or what was started died."""

        def resume() -> None:
            pool.paused = False
            self.refill(pool)

        if (seconds := pool.failed(reason)) is not None:
            asyncio.get_running_loop().call_later(seconds, resume)

    def _keep(
        self, tasks: set[asyncio.Task[None]], work: Coroutine[object, object, None]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(functools.partial(_finish, tasks))
        return task


def _finish(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("registry.task_failed", exc_info=error)
