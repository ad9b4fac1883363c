"""Ends claims that nobody has used for their `idle_seconds`.

A claim is in use while an exchange or a tunnel with its sandbox is under way, and while a
command runs inside. The relay knows the first; for the second the runtime is asked, but only
when the idle time is over as far as the relay knows. A claim is looked at only when it may be
idle at the earliest, by one sweep for all, so use costs nothing and 10,000 claims little.

When in doubt a claim lives on: a command is seen to run or not, but never to end, so the time
counts from the first look that finds none. It may end later by a quarter of its idle time.
"""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandgate_router.registry.base import Endpoint, Traffic
from sandgate_router.registry.local.health import NotHealthy, count_running
from sandgate_router.registry.local.leases import Lease

SWEEP_SECONDS = 1.0
"""How often the claims are looked at that may be idle."""

ASK_SECONDS = 5.0
"""How long the runtime may take to say what runs. A busy machine may need some of it."""

ASKS_AT_ONCE = 64

MAX_SILENCES = 3
"""Looks at which the runtime may not answer. Then it is stopped or hung, and nothing it still
does can be seen; before, it may be a machine that swaps."""

_LEAST_DUE = 1024

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    """What was seen of a claim's use."""

    lease: Lease
    idle_seconds: float
    used: float
    """The last moment in which it was in use, as far as is known."""
    was_running: bool = False
    silences: int = 0

    @property
    def is_in_doubt(self) -> bool:
        """Whether to look again soon, idle or not: something ran, or the runtime was silent."""
        return self.was_running or 0 < self.silences < MAX_SILENCES

    @property
    def look_again_seconds(self) -> float:
        """How soon to look again when in doubt."""
        return max(SWEEP_SECONDS, self.idle_seconds / 4)


class IdleSweep:
    """Looks after the idle claims of one registry."""

    def __init__(
        self,
        *,
        end: Callable[[Lease], object],
        count_running: Callable[[Endpoint], Awaitable[int]] = count_running,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Take what ends a claim; `clock` is the event loop's, unless a test has its own."""
        self.traffic: Traffic | None = None
        """What knows the traffic; without it no claim is ever idle."""
        self._end = end
        self._count_running = count_running
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._due: list[tuple[float, int, _Watched]] = []
        self._most_due = _LEAST_DUE
        self._serial = itertools.count()
        self._asks = asyncio.Semaphore(ASKS_AT_ONCE)

    def __len__(self) -> int:
        return len(self._due)

    def add(self, lease: Lease) -> None:
        """Look after a new claim; its making counts as use."""
        if (idle := lease.claim.idle_seconds) is None:
            return
        if len(self._due) >= self._most_due:
            # Claims that have ended are only found when they are due, perhaps in a year.
            self._due = [row for row in self._due if row[2].lease.is_live]
            heapq.heapify(self._due)
            self._most_due = max(_LEAST_DUE, 2 * len(self._due))
        now = self._clock()
        self._look_at(_Watched(lease, idle, used=now), now + idle)

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except Exception:
                log.exception("registry.idle_sweep_failed")

    async def sweep(self) -> None:
        """Look once at every claim that may be idle by now, and end those that are."""
        if self.traffic is None:
            return
        now = self._clock()
        silent = []
        while self._due and self._due[0][0] <= now:
            _, _, watched = heapq.heappop(self._due)
            if not watched.lease.is_live:
                continue
            idle_at = self._idle_at(watched, self.traffic)
            if idle_at <= now or watched.is_in_doubt:
                silent.append(watched)
            else:
                self._look_at(watched, idle_at)
        await asyncio.gather(*(self._judge(watched, self.traffic) for watched in silent))

    async def _judge(self, watched: _Watched, traffic: Traffic) -> None:
        """End a claim without traffic, unless something runs in it."""
        async with self._asks:
            running = await self._ask(watched)
        if not watched.lease.is_live:
            return
        now = self._clock()
        if running or watched.was_running:
            watched.used = now
        watched.was_running = running
        idle_at = self._idle_at(watched, traffic)
        if watched.is_in_doubt:
            self._look_at(watched, now + watched.look_again_seconds)
        elif idle_at > now:
            self._look_at(watched, idle_at)
        else:
            self._end(watched.lease)

    def _idle_at(self, watched: _Watched, traffic: Traffic) -> float:
        """Return when the claim is idle at the earliest."""
        for endpoint in watched.lease.member.endpoints:
            if traffic.is_busy(endpoint):
                watched.used = self._clock()
                break
            if (ended := traffic.last_end(endpoint)) is not None:
                watched.used = max(watched.used, ended)
        return watched.used + watched.idle_seconds

    async def _ask(self, watched: _Watched) -> bool:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                running = await self._count_running(watched.lease.member.endpoints.http)
        except (TimeoutError, NotHealthy) as error:
            watched.silences += 1
            log.warning(
                "registry.health_unanswered",
                extra={"sandbox": watched.lease.member.id, "reason": str(error) or "timeout"},
            )
            return watched.was_running and watched.silences < MAX_SILENCES
        watched.silences = 0
        return running > 0

    def _look_at(self, watched: _Watched, moment: float) -> None:
        heapq.heappush(self._due, (moment, next(self._serial), watched))
