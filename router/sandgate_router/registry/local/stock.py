"""Starts and ends the members of pools: keeps them full, no faster than the machine can.

As many starts at once as there are processors: more make each slower, not all faster. Which
pool's turn it is when a place is free is decided then: claims that wait come before members
that are to stand ready, and namespaces take turns, so none starves behind another's big pool.

Every start and every end is a task that is kept until it is done; `close()` cancels the
starts and awaits them all.
"""

import asyncio
import functools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping

from sandgate_router.names import Label
from sandgate_router.registry.local.member import Member, Starter, StartFailed
from sandgate_router.registry.local.pool import Pool, Start
from sandgate_router.registry.local.pools import LocalIsolation

log = logging.getLogger(__name__)

Starters = Mapping[LocalIsolation, Starter]


class Stock:
    """The starts and ends under way."""

    def __init__(
        self,
        starters: Starters,
        *,
        pools: Callable[[], Iterable[Pool]],
        died: Callable[[Pool, Member, str], None],
        slots: int | None = None,
    ) -> None:
        self._starters = starters
        self._pools = pools
        self._died = died
        self.slots = slots or len(os.sched_getaffinity(0))
        """Starts at once."""
        self._turns = 0
        self._last_turn = dict[Label, int]()
        self._starts = set[asyncio.Task[None]]()
        self._ends = set[asyncio.Task[None]]()
        self._resumptions = dict[Pool, asyncio.TimerHandle]()
        self._closing = False

    async def close(self) -> None:
        """Stop the starts under way and wait for every end; nothing is started any more."""
        self._closing = True
        for timer in self._resumptions.values():
            timer.cancel()
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

        pool.ending += 1
        return self._keep(self._ends, finish())

    def refill(self) -> None:
        """Start what the pools want now, as far as there are places."""
        while not self._closing and len(self._starts) < self.slots:
            pool = self._next()
            if pool is None:
                return
            self._turns += 1
            pool.last_turn = self._last_turn[pool.spec.namespace] = self._turns
            self._keep(self._starts, self._start_one(pool, pool.begin_start()))

    def pause(self, pool: Pool, reason: str) -> None:
        """Start nothing for a while, because a start failed or what was started died."""
        if (seconds := pool.failed(reason)) is not None:
            self._resumptions[pool] = asyncio.get_running_loop().call_later(
                seconds, self.resume, pool
            )

    def resume(self, pool: Pool) -> None:
        """End a pause, if there is one, and start again."""
        if (timer := self._resumptions.pop(pool, None)) is not None:
            timer.cancel()
        pool.paused = False
        self.refill()

    def _next(self) -> Pool | None:
        """Return the pool whose turn it is."""
        wanting = [pool for pool in self._pools() if pool.wanted()]

        def rank(pool: Pool) -> tuple[bool, int, int]:
            # Starts under way serve the line first, so only who waits beyond them is urgent.
            urgent = pool.waiting > pool.starting
            return not urgent, self._last_turn.get(pool.spec.namespace, 0), pool.last_turn

        return min(wanting, key=rank, default=None)

    async def _start_one(self, pool: Pool, start: Start) -> None:
        starter = self._starters["none" if pool.isolation == "none" else "bubblewrap"]
        member = fault = None
        begun = time.monotonic()
        try:
            died = functools.partial(self._died, pool)
            member = await starter.start(pool.spec, died=died)
        except (StartFailed, OSError) as error:
            fault = str(error)
        except Exception as error:
            log.exception("registry.start_broke")
            fault = repr(error)
        finally:
            pool.end_start()
        if fault is not None:
            log.warning("registry.start_failed", extra={"pool": pool.spec.name, "reason": fault})
            if start.recipe == pool.recipe:
                self.pause(pool, fault)
        elif member is not None:
            seconds = time.monotonic() - begun
            if not pool.started(member, start, seconds=seconds):
                self.end(pool, member)

    def _keep(
        self, tasks: set[asyncio.Task[None]], work: Coroutine[object, object, None]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(functools.partial(self._finish, tasks))
        return task

    def _finish(self, tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("registry.task_failed", exc_info=error)
        self.refill()
