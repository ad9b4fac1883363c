"""One pool's state: who stands ready, who waits, how many may be started. No I/O.

Taking a member and handing one over are single synchronous steps, so two claims never hold
the same one. Ready members and waiting claims never exist at the same time.
"""

import asyncio
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Literal, NamedTuple

from sandgate_router.registry.base import Isolation, PoolStatus
from sandgate_router.registry.local.member import Member
from sandgate_router.registry.local.pools import PoolSpec, Recipe
from sandgate_router.registry.local.refill import RefillRate

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
"""Pauses between starts that fail double from the first to the longest."""


class Start(NamedTuple):
    """What was wanted when a start began."""

    recipe: Recipe
    shrinks: int


class Pool:
    """A pool as it stands. Its owner starts and ends members, and says so here."""

    def __init__(
        self,
        spec: PoolSpec,
        *,
        isolation: Isolation,
        changed: Callable[["Pool"], None] = lambda _: None,
    ) -> None:
        self.spec = spec
        self.isolation = isolation
        self.warm, self.max = spec.warm, spec.max
        self.removed = False
        """Whether the pools file no longer lists it: it only waits for its claims to end."""
        self.ready: deque[Member] = deque()
        self.starting = 0
        self.last_turn = 0
        """When a start of it had its turn the last time; kept by its owner."""
        self.claimed = 0
        self.ending = 0
        self.paused = False
        self.last_error: str | None = None
        self.rate = RefillRate()
        self._changed = changed
        self.handed = set[Member]()
        """Members given to a waiting claim that has not woken up yet; counted as claimed."""
        self._waiters: OrderedDict[asyncio.Future[Member], None] = OrderedDict()
        self._failures = 0
        self._shrinks = 0
        self._pause_seconds = 0.0
        self._served = 0
        self._served_at_once = 0

    def __repr__(self) -> str:
        return (
            f"<Pool {self.spec.namespace}/{self.spec.name} {len(self.ready)} ready,"
            f" {self.starting} starting, {self.claimed} claimed, {self.ending} ending,"
            f" {self.waiting} waiting>"
        )

    @property
    def waiting(self) -> int:
        """Claims that wait for a member."""
        return len(self._waiters)

    @property
    def size(self) -> int:
        """Sandboxes that use the machine now."""
        return len(self.ready) + self.starting + self.claimed + self.ending

    @property
    def recipe(self) -> Recipe:
        """What its members are made from now."""
        return self.spec.recipe(self.isolation)

    def wanted(self) -> int:
        """Return how many members are to be started now."""
        if self.paused or self.removed:
            return 0
        missing = self.warm + self.waiting - len(self.ready) - self.starting
        return max(0, min(missing, self.max - self.size))

    def take(self) -> Member | None:
        """Hand over the member that has been ready the longest, if there is one.

        One that has died stays until its owner hears of it and says so.
        """
        member = next((member for member in self.ready if member.alive), None)
        if member is None:
            return None
        self.ready.remove(member)
        self.claimed += 1
        self._served += 1
        self._served_at_once += 1
        self._changed(self)
        return member

    def join(self, *, first: bool = False) -> asyncio.Future[Member]:
        """Take a place at the end of the line, or the first one; `wait()` on it next."""
        waiter: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        self._waiters.move_to_end(waiter, last=not first)
        self._changed(self)
        return waiter

    async def wait(self, waiter: asyncio.Future[Member], *, timeout: float) -> Member | None:
        """Wait in line for a member; return None when none came in time.

        A member that was handed over in the moment in which the caller left goes on to the
        next in line: no claim was made of it. None it is, too, when the member died between:
        then `waiter` is done, and was not cancelled.
        """
        try:
            await asyncio.wait([waiter], timeout=max(0.0, timeout))
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and self._pick_up(waiter.result()):
                self.claimed -= 1
                self.offer(waiter.result())
            raise
        finally:
            if not waiter.done():
                waiter.cancel()
                self._waiters.pop(waiter, None)
                self._changed(self)
        if waiter.cancelled() or not self._pick_up(waiter.result()):
            return None
        self._served += 1
        return waiter.result()

    def begin_start(self) -> Start:
        """Count a member that is being started; return what `started()` wants to know."""
        self.starting += 1
        self._changed(self)
        return Start(self.recipe, self._shrinks)

    def end_start(self) -> None:
        """Stop counting it: it is ready, or it failed."""
        self.starting -= 1
        self._changed(self)

    def started(self, member: Member, start: Start, *, seconds: float) -> bool:
        """Take in a member that has become ready; refuse one that is wanted no more."""
        if self.removed or start.recipe != self.recipe or self.size >= self.max:
            return False
        # More than `warm` may stand ready when those who waited for them left: who was too
        # impatient finds one at the next try. But not when fewer are wanted by now.
        full = not self._waiters and len(self.ready) >= self.warm
        if full and start.shrinks != self._shrinks:
            return False
        self._failures = 0
        self.last_error = None
        self.rate.started(seconds)
        self.offer(member)
        return True

    def offer(self, member: Member) -> None:
        """Give a member to the first in line, or let it stand ready."""
        self.rate.offered(asyncio.get_running_loop().time())
        self._changed(self)
        if not self._waiters:
            self.ready.append(member)
            return
        waiter, _ = self._waiters.popitem(last=False)
        # Counted here, not when the waiter wakes up: in between no place is free.
        self.claimed += 1
        self.handed.add(member)
        waiter.set_result(member)

    def let_go(self) -> None:
        """Stop counting a claimed member."""
        self.claimed -= 1
        self._changed(self)

    def lose(self, member: Member) -> Literal["ready", "handed"] | None:
        """Stop counting a member that died; return where it was, None if it was let go before."""
        if self._pick_up(member):
            self.let_go()
            return "handed"
        if member not in self.ready:
            return None
        self.ready.remove(member)
        self._changed(self)
        return "ready"

    def failed(self, reason: str) -> float | None:
        """Note a start that failed; return how long to pause, or None in a pause."""
        self.last_error = reason
        self._changed(self)
        if self.paused:
            return None
        self.paused = True
        self._failures += 1
        # Capped as an exponent: after a night of failures 2**n is no float any more.
        doubled = FIRST_PAUSE_SECONDS * 2 ** min(self._failures - 1, 8)
        self._pause_seconds = float(min(LONGEST_PAUSE_SECONDS, doubled))
        return self._pause_seconds

    def resize(self, *, warm: int, max_members: int) -> list[Member]:
        """Set the sizes; return the ready members that are too many, the newest first."""
        self._shrinks += warm < self.warm
        self.warm, self.max = warm, max_members
        self._changed(self)
        surplus = max(len(self.ready) - warm, self.size - max_members)
        return [self.ready.pop() for _ in range(min(max(0, surplus), len(self.ready)))]

    def change(self, spec: PoolSpec, *, isolation: Isolation) -> list[Member]:
        """Take new settings; return the ready members that they make stale or too many."""
        before, self.removed = self.recipe, False
        self.spec, self.isolation = spec, isolation
        if self.recipe == before:
            return self.resize(warm=spec.warm, max_members=spec.max)
        # What failed under the old settings says nothing about the new ones.
        self.paused, self._failures, self.last_error = False, 0, None
        stale = list(self.ready)
        self.ready.clear()
        return stale + self.resize(warm=spec.warm, max_members=spec.max)

    def remove(self) -> list[Member]:
        """Serve nobody any more; return the ready members."""
        self.removed = True
        self.warm = self.max = 0
        return self.dismiss()

    def dismiss(self) -> list[Member]:
        """Send all who wait away and return the members that no claim holds."""
        for waiter in self._waiters:
            waiter.cancel()
        self._waiters.clear()
        members = [*self.ready, *self.handed]
        self.claimed -= len(self.handed)
        self.ready.clear()
        self.handed.clear()
        self._changed(self)
        return members

    def retry_after(self, *, slots: int) -> int:
        """Return in how many whole seconds a member may be had, at the rate of refill."""
        room = self.size < self.max or self.starting > 0
        seconds = self.rate.wait(place=self.waiting + 1, slots=slots, room=room)
        if self.paused:
            seconds = max(seconds, self._pause_seconds)
        # Spread out, so that all who are refused now do not come back in one moment.
        return math.ceil(seconds * random.uniform(1, 1.5))  # noqa: S311 - no secret

    def status(self) -> PoolStatus:
        """Return the pool as it stands."""
        return PoolStatus(
            name=self.spec.name,
            namespace=self.spec.namespace,
            warm=self.warm,
            max=self.max,
            ready=len(self.ready),
            claimed=self.claimed,
            waiting=self.waiting,
            hit_rate=self._served_at_once / self._served if self._served else None,
            isolation=self.isolation,
            last_error=self.last_error,
            starting=self.starting,
        )

    def _pick_up(self, member: Member) -> bool:
        """Take a member off those handed over; tell whether it was there: it died if not."""
        if member not in self.handed:
            return False
        self.handed.discard(member)
        return True
