"""How much may go on at once. Pure: counts in, refusals out.

Two things are scarce: the patience of one sandbox, which must not become everybody's, and
descriptors. Nothing queues here: who comes too late is told so at once, and when to come back.
"""

import resource
from collections import OrderedDict
from typing import Generic, TypeVar

from sandgate_router.errors import TooManyRequests

RETRY_SECONDS = 1
"""Retry-After where too much is under way: most exchanges are shorter."""

Sandbox = tuple[str, str]
"""Namespace and id."""

_Connection = TypeVar("_Connection")


class InFlight:
    """Exchanges and tunnels of each sandbox, as long as they last.

    Counted by the name that is asked for and before anything is looked up, so that known and
    unknown sandboxes answer alike. Both calls together take 0.3 µs.
    """

    __slots__ = ("_counts", "_limit")

    def __init__(self, limit: int) -> None:
        """Let `limit` of one sandbox be under way at once; 0 has no limit."""
        self._counts: dict[Sandbox, int] = {}
        self._limit = limit

    def __repr__(self) -> str:
        return f"<InFlight {sum(self._counts.values())} of {len(self._counts)} sandboxes>"

    def __len__(self) -> int:
        return sum(self._counts.values())

    def enter(self, sandbox: Sandbox) -> None:
        """Count one more; raise TooManyRequests above the limit."""
        count = self._counts.get(sandbox, 0)
        if count >= self._limit > 0:
            raise TooManyRequests(
                f"Too many requests to this sandbox are under way (limit: {self._limit}).",
                retry_after=RETRY_SECONDS,
            )
        self._counts[sandbox] = count + 1

    def leave(self, sandbox: Sandbox) -> None:
        """Count one less."""
        count = self._counts[sandbox] - 1
        if count:
            self._counts[sandbox] = count
        else:
            del self._counts[sandbox]


class IdleQueue(Generic[_Connection]):
    """Client connections that wait for their next request, the longest idle one first."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        # A dict would do, but finding its first key passes over all that were deleted before.
        self._queue: OrderedDict[_Connection, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, connection: _Connection) -> None:
        """Put a connection that was busy behind all others."""
        self._queue[connection] = None

    def discard(self, connection: _Connection) -> None:
        """Take a connection out, if it is here."""
        self._queue.pop(connection, None)

    def take_oldest(self) -> _Connection | None:
        """Take out the one that has been idle for longest; None when all are busy."""
        return self._queue.popitem(last=False)[0] if self._queue else None


def connection_limit(wanted: int) -> int:
    """Return how many client connections there may be.

    Args:
        wanted: 0 takes all that the descriptors allow.

    An exchange needs a second descriptor for its sandbox, so it is at most half of them.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted or _UNLIMITED_DESCRIPTORS // 2
    most = max(soft // 2 - 1, 1)
    return min(wanted, most) if wanted else most


_UNLIMITED_DESCRIPTORS = 1_048_576
"""What Linux takes for unlimited (fs.nr_open), unless it is told otherwise."""
