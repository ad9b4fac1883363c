"""One pool's state: who stands ready, who waits, how many may be started. No I/O.

Taking a member and handing one over are single synchronous steps, so two claims never hold
the same one. Ready members and waiting claims never exist at the same time.
"""

import asyncio
import math
from collections import deque

from sandgate_router.registry.base import Isolation, PoolStatus
from sandgate_router.registry.local.member import Member
from sandgate_router.registry.local.pools import PoolSpec

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
"""Pauses between starts that fail double from the first to the longest."""

_SMOOTHING = 0.3
_FIRST_GUESS_SECONDS = 0.5


class Pool:
    """A pool as it stands. Its owner starts and ends members, and says so here."""

    def __init__(self, spec: PoolSpec, *, isolation: Isolation) -> None:
        self.spec = spec
        self.isolation = isolation
        self.ready: deque[Member] = deque()
        self.starting = 0
        self.claimed = 0
        self.ending = 0
        self.paused = False
        self.last_error: str | None = None
        self._waiters: deque[asyncio.Future[Member]] = deque()
        self._failures = 0
        self._served = 0
        self._served_at_once = 0
        self._start_seconds = _FIRST_GUESS_SECONDS

    def __repr__(self) -> str:
        return (
            f"<Pool {self.spec.namespace}/{self.spec.name} {len(self.ready)} ready,"
            f" {self.starting} starting, {self.claimed} claimed, {self.ending} ending,"
            f" {self.waiting} waiting>"
        )

    @property
    def waiting(self) -> int:
        """Claims that wait for a member; those whose caller left do not count."""
        return sum(not waiter.done() for waiter in self._waiters)

    @property
    def size(self) -> int:
        """Sandboxes that use the machine now."""
        return len(self.ready) + self.starting + self.claimed + self.ending

    def wanted(self) -> int:
        """Return how many members are to be started now."""
        if self.paused:
            return 0
        missing = self.spec.warm + self.waiting - len(self.ready) - self.starting
        return max(0, min(missing, self.spec.max - self.size))

    def take(self) -> Member | None:
        """Hand over the member that has been ready the longest, if there is one."""
        if not self.ready:
            return None
        self.claimed += 1
        self._served += 1
        self._served_at_once += 1
        return self.ready.popleft()

    def join(self) -> asyncio.Future[Member]:
        """Take a place at the end of the line; `wait()` on it next."""
        waiter: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    async def wait(self, waiter: asyncio.Future[Member], *, timeout: float) -> Member | None:
        """Wait in line for a member; return None when none came in time.

        A member that was handed over in the moment in which the caller left goes on to the
        next in line: no claim was made of it. It may have died since it was handed over.
        """
        try:
            await asyncio.wait([waiter], timeout=max(0.0, timeout))
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result().alive:
                self.claimed -= 1
                self.offer(waiter.result())
            raise
        finally:
            if not waiter.done():
                waiter.cancel()
                self._waiters.remove(waiter)
        if waiter.cancelled():
            return None
        self._served += 1
        return waiter.result()

    def started(self, member: Member, *, seconds: float) -> None:
        """Take in a member that has become ready."""
        self._failures = 0
        self.last_error = None
        self._start_seconds += _SMOOTHING * (seconds - self._start_seconds)
        self.offer(member)

    def offer(self, member: Member) -> None:
        """Give a member to the first in line, or let it stand ready."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                # Counted here, not when the waiter wakes up: in between no place is free.
                self.claimed += 1
                waiter.set_result(member)
                return
        self.ready.append(member)

    def failed(self, reason: str) -> float | None:
        """Note a start that failed; return how long to pause, or None in a pause."""
        self.last_error = reason
        if self.paused:
            return None
        self.paused = True
        self._failures += 1
        # Capped as an exponent: after a night of failures 2**n is no float any more.
        return float(
            min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self._failures - 1, 8))
        )

    def dismiss(self) -> list[Member]:
        """Send all who wait away and return the members that were ready."""
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()
        members = list(self.ready)
        self.ready.clear()
        return members

    def retry_after(self) -> int:
        """Return after how many seconds a member may be had, by how long starts take."""
        return max(1, math.ceil((self.waiting + 1) * self._start_seconds))

    def status(self) -> PoolStatus:
        """Return the pool as it stands."""
        return PoolStatus(
            name=self.spec.name,
            namespace=self.spec.namespace,
            warm=self.spec.warm,
            max=self.spec.max,
            ready=len(self.ready),
            claimed=self.claimed,
            waiting=self.waiting,
            hit_rate=self._served_at_once / self._served if self._served else None,
            isolation=self.isolation,
            last_error=self.last_error,
        )
