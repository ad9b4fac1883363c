"""What a process has told, kept within bounds for those who watch it and those who come back.

Events have ids from 1. The log keeps the newest; whoever asks for one that is gone is told which
is the first that is left. What makes room, and what waits:

- While somebody watches, nothing is dropped that he has not been given. A watcher that falls
  behind makes the process wait (`flow(False)`): of several the slowest one decides.
- While nobody does, the oldest events make room for the new ones. Output that nobody was ever
  given is counted.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sandgate_runtime.errors import OutOfWindow
from sandgate_runtime.processes.ending import Stream

HIGH_BYTES = 256 * 1024
LOW_BYTES = 64 * 1024
"""Wait above the one, go on below the other: far enough apart not to switch at each piece."""

OVERHEAD_BYTES = 160
"""What an event takes besides its content: a command that writes single bytes makes many."""


class Event(NamedTuple):
    """Something that happened to a process."""

    id: int
    name: str
    content: bytes
    """Output, for `stdout` and `stderr`."""
    members: dict[str, object] | None
    """What all other events carry."""
    offset: int
    """Bytes of output before this event."""
    cost: int
    """Bytes that it and all events before it take."""


class EventLog:
    """The events of one process."""

    def __init__(self, *, capacity: int, flow: Callable[[bool], None] | None = None) -> None:
        self.flow: Callable[[bool], None] = flow or (lambda _: None)
        """Called with False when the process must wait, with True when it may go on."""
        self.dropped: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        """Bytes that nobody was given."""
        self.finished = False
        self._capacity = capacity
        self._events: deque[Event] = deque()
        self._last_id = 0
        self._offset = 0
        self._cost = 0
        self._forgotten_cost = 0
        self._given_id = 0
        self._watchers: set[Watcher] = set()
        self._flowing = True

    def __repr__(self) -> str:
        state = "finished" if self.finished else "flowing" if self._flowing else "waiting"
        return f"<EventLog {self.first_id}..{self.last_id} {len(self._watchers)} watch, {state}>"

    @property
    def first_id(self) -> int:
        """The first event that is kept."""
        return self._last_id - len(self._events) + 1

    @property
    def last_id(self) -> int:
        """The newest event; 0 before the first."""
        return self._last_id

    @property
    def size(self) -> int:
        """Bytes that the log takes."""
        return self._cost - self._forgotten_cost

    @property
    def output_size(self) -> int:
        """Bytes of output so far, kept or not."""
        return self._offset

    def add_output(self, stream: Stream, content: bytes) -> None:
        """Add a piece of output."""
        self._append(stream, content, None)
        self._trim()

    def add(self, name: str, members: dict[str, object]) -> None:
        """Add an event of another kind."""
        self._append(name, b"", members)

    def finish(self) -> None:
        """Say that no event follows."""
        self.finished = True
        for watcher in self._watchers:
            watcher.wake()

    def watch(self, *, after: int = 0) -> "Watcher":
        """Return the events behind number `after`, to be closed; raise OutOfWindow."""
        if not self.first_id - 1 <= after <= self._last_id:
            raise OutOfWindow(
                f"event {after + 1} is not kept; the first that is left is {self.first_id}",
                first_id=self.first_id,
            )
        return self._add_watcher(after)

    def watch_offset(self, offset: int) -> "Watcher":
        """Return the events from a byte of the output on, or from the first that is kept."""
        after = self.first_id - 1
        for event in self._events:
            if event.offset + len(event.content) > offset:
                break
            after = event.id
        return self._add_watcher(after)

    def event_after(self, event_id: int) -> Event | None:
        """Return the next event, None if there is none yet."""
        index = event_id + 1 - self.first_id
        return self._events[index] if 0 <= index < len(self._events) else None

    def cost_through(self, event_id: int) -> int:
        """Return the bytes that all events up to this one have taken."""
        following = self.event_after(event_id)
        if following is None:
            return self._cost
        return following.cost - len(following.content) - OVERHEAD_BYTES

    def offset_after(self, event_id: int) -> int:
        """Return the bytes of output that all events up to this one had."""
        following = self.event_after(event_id)
        return self._offset if following is None else following.offset

    def gave(self, event: Event) -> None:
        """Remember that a watcher was given this event, and all before it."""
        self._given_id = max(self._given_id, event.id)
        self._balance()

    def forget(self, watcher: "Watcher") -> None:
        """Take a watcher off."""
        self._watchers.discard(watcher)
        self._balance()
        if not self.finished:  # the count has been told by then
            self._trim()

    def _add_watcher(self, after: int) -> "Watcher":
        watcher = Watcher(self, after)
        self._watchers.add(watcher)
        self._balance()
        return watcher

    def _append(self, name: str, content: bytes, members: dict[str, object] | None) -> None:
        self._last_id += 1
        self._cost += len(content) + OVERHEAD_BYTES
        event = Event(self._last_id, name, content, members, self._offset, self._cost)
        self._events.append(event)
        self._offset += len(content)
        for watcher in self._watchers:
            watcher.wake()
        self._balance()

    def _trim(self) -> None:
        needed = min((watcher.last_id for watcher in self._watchers), default=self._last_id)
        # The newest stays whatever its size: a log that has begun is never empty.
        while self.size > self._capacity and len(self._events) > 1:
            event = self._events[0]
            if event.id > needed:
                return
            self._events.popleft()
            self._forgotten_cost = event.cost
            if event.id > self._given_id and event.name in self.dropped:
                self.dropped["stdout" if event.name == "stdout" else "stderr"] += len(event.content)

    def _balance(self) -> None:
        behind = max((self._cost - watcher.cost for watcher in self._watchers), default=0)
        if self._flowing and behind > HIGH_BYTES:
            self._flowing = False
            self.flow(False)
        elif not self._flowing and behind < LOW_BYTES:
            self._flowing = True
            self.flow(True)


class Watcher:
    """One reader's place in a log."""

    def __init__(self, log: EventLog, after: int) -> None:
        self._log = log
        self._changed = asyncio.Event()
        self.last_id = after
        """The last event that the reader was given."""
        self.cost = log.cost_through(after)
        """Bytes that the log has taken up to there."""

    def wake(self) -> None:
        """Say that there is something new."""
        self._changed.set()

    async def get(self) -> Event | None:
        """Return the next event, or None after the last."""
        while (event := self._log.event_after(self.last_id)) is None:
            if self._log.finished:
                return None
            self._changed.clear()
            await self._changed.wait()
        self.last_id, self.cost = event.id, event.cost
        self._log.gave(event)
        return event

    def close(self) -> None:
        """Watch no more."""
        self._log.forget(self)
