"""What happened to claims and pools, kept for a while: the memory behind `GET /v1/events`.

Ids increase, also over a restart: they begin at the time of the start in microseconds, so the
id of another gateway, or of one that ended, is never taken for one of ours. Streams read from
here at their own pace and hold nothing themselves; one that falls behind further than this
reaches is told so.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sandgate_router.registry.base import Event

MAX_EVENTS = 8192
"""Events that are kept, at 1 KiB each: 10 s of 300 claims a second, made and released."""


class Numbered(NamedTuple):
    """An event and its id."""

    number: int
    event: Event


class EventRing:
    """The last events, and a way to wait for the next."""

    def __init__(self, *, now: Callable[[], float] = time.time, capacity: int = MAX_EVENTS) -> None:
        """Begin empty; `now` gives Unix seconds, and is asked once."""
        self._events: deque[Numbered] = deque(maxlen=capacity)
        self._start = self._last = int(now() * 1e6)
        self._changed = asyncio.Event()
        self.closed = False

    def __repr__(self) -> str:
        return f"<EventRing {len(self._events)} events{', closed' if self.closed else ''}>"

    @property
    def last(self) -> int:
        """The id of the last event; before the first one, where ids begin."""
        return self._last

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next event, and when the ring closes; take it before looking."""
        return self._changed

    def add(self, event: Event) -> None:
        """Keep an event, and wake all who wait."""
        self._last += 1
        self._events.append(Numbered(self._last, event))
        self._wake()

    def close(self) -> None:
        """Have all streams end: the gateway stops."""
        self.closed = True
        self._wake()

    def reaches(self, number: int) -> bool:
        """Tell whether everything behind this id is still known."""
        oldest = self._events[0].number - 1 if self._events else self._last
        return oldest <= number <= self._last

    def after(self, number: int, *, limit: int) -> list[Numbered]:
        """Return what came behind an id that is reached, the oldest first."""
        skipped = number + 1 - self._events[0].number if self._events else 0
        return list(itertools.islice(self._events, skipped, skipped + limit))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
