"""Moves the end of claims that are in use, and lets that of idle ones come.

The end of a claim stands in the cluster: the earlier of its lease's end and `idle_seconds`
after its last use. Each replica knows only the use that went through itself, so each moves the
end for what it saw, and never back. A patch for every request would be the API server's
end: a replica patches when it gains a quarter of the span, or when the last quarter has begun.
Then it also asks the runtime whether a command runs, which counts as use. One that does not
answer gets three more quarters: it may be a machine that swaps.
"""

import asyncio
import heapq
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from sandgate_router.names import DEFAULT_PORT
from sandgate_router.registry.base import Endpoint, Traffic
from sandgate_router.registry.kubernetes.claim_table import ClaimTable
from sandgate_router.registry.kubernetes.objects import ClaimObject, Key
from sandgate_router.registry.kubernetes.outcome import judge
from sandgate_router.registry.kubernetes.plan import HASH, expiry_of, idle_of
from sandgate_router.registry.kubernetes.table import Entry, SandboxTable
from sandgate_router.registry.local.health import NotHealthy, count_running

SWEEP_SECONDS = 1.0

ASK_SECONDS = 5.0
"""How long the runtime may take to say what runs."""

ASKS_AT_ONCE = 64

MAX_SILENCES = 3

Move = Callable[[ClaimObject, datetime], Awaitable[None]]

log = logging.getLogger("sandgate.registry")


class IdleWatch:
    """Looks after the ends of the claims that this replica knows."""

    def __init__(
        self,
        claims: ClaimTable,
        sandboxes: SandboxTable,
        *,
        move: Move,
        count_running: Callable[[Endpoint], Awaitable[int]] = count_running,
        clock: Callable[[], float] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Take what knows claims, and what moves the end of one.

        `clock` is the event loop's, by which traffic is timed; `now` is the wall's.
        """
        self.traffic: Traffic | None = None
        """What knows the traffic; without it no use is ever seen."""
        self._claims = claims
        self._sandboxes = sandboxes
        self._move = move
        self._count_running = count_running
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._now = now
        self._due: list[tuple[float, int, Key, str]] = []
        self._known = set[str]()
        self._silences: dict[str, int] = {}
        self._serial = itertools.count()
        self._asks = asyncio.Semaphore(ASKS_AT_ONCE)

    def add(self, claim: ClaimObject) -> None:
        """Look after a claim, unless that is done already or it may be idle for ever."""
        idle = idle_of(claim)
        if idle is None or HASH not in claim.annotations or claim.uid in self._known:
            return
        self._known.add(claim.uid)
        self._look_again(claim, idle)

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.sweep()
            except Exception:
                log.exception("registry.idle_sweep_failed")

    async def sweep(self) -> None:
        """Look at the claims whose turn it is."""
        if self.traffic is None:
            return
        looks = []
        while self._due and self._due[0][0] <= self._clock():
            _, _, key, uid = heapq.heappop(self._due)
            claim = self._claims.get(key)
            if claim is None or claim.uid != uid or judge(claim) == "failed":
                self._known.discard(uid)
                self._silences.pop(uid, None)
                continue
            looks.append(self._look(claim, self.traffic))
        await asyncio.gather(*looks)

    async def _look(self, claim: ClaimObject, traffic: Traffic) -> None:
        idle = idle_of(claim)
        if idle is None:
            return
        try:
            until = await self._decide(claim, idle, traffic)
            if until is not None:
                await self._move(claim, until)
        finally:
            self._look_again(claim, idle)

    async def _decide(self, claim: ClaimObject, idle: float, traffic: Traffic) -> datetime | None:
        """Return the end that a claim is to have; None leaves it."""
        entry = self._sandboxes.of_claim(claim.uid)
        ends = claim.shutdown_at
        if entry is None or ends is None:
            return None
        quarter = timedelta(seconds=idle / 4)
        is_last = ends - self._now() <= quarter
        used = self._last_use(entry, traffic)
        until = None if used is None else self._end_after(claim, used + timedelta(seconds=idle))
        least = timedelta(seconds=1) if is_last else quarter  # the API has whole seconds
        if until is not None and until - ends >= least:
            return until
        if not is_last or ends >= expiry_of(claim):
            return None
        return await self._ask(claim, entry, idle)

    def _last_use(self, entry: Entry, traffic: Traffic) -> datetime | None:
        latest: float | None = None
        for endpoint in entry.endpoints.values():
            if traffic.is_busy(endpoint):
                return self._now()
            ended = traffic.last_end(endpoint)
            if ended is not None and (latest is None or ended > latest):
                latest = ended
        if latest is None:
            return None
        return self._now() - timedelta(seconds=self._clock() - latest)

    async def _ask(self, claim: ClaimObject, entry: Entry, idle: float) -> datetime | None:
        """Return a later end where a command runs, or where the runtime does not say."""
        if entry.standing != "ready":
            return None
        try:
            async with self._asks, asyncio.timeout(ASK_SECONDS):
                running = await self._count_running(self._sandboxes.open(entry, DEFAULT_PORT))
        except (TimeoutError, NotHealthy) as error:
            silences = self._silences[claim.uid] = self._silences.get(claim.uid, 0) + 1
            log.warning(
                "registry.health_unanswered",
                extra={"sandbox": entry.key[1], "reason": str(error) or "timeout"},
            )
            if silences > MAX_SILENCES:
                return None
            return self._end_after(claim, self._now() + timedelta(seconds=idle / 2))
        self._silences.pop(claim.uid, None)
        if not running:
            return None
        return self._end_after(claim, self._now() + timedelta(seconds=idle))

    def _end_after(self, claim: ClaimObject, moment: datetime) -> datetime:
        return min(moment, expiry_of(claim))

    def _look_again(self, claim: ClaimObject, idle: float) -> None:
        # Twice in a quarter, and not all replicas at once.
        wait = max(SWEEP_SECONDS / 2, idle / 8) * random.uniform(0.7, 1.0)  # noqa: S311
        heapq.heappush(self._due, (self._clock() + wait, next(self._serial), claim.key, claim.uid))
