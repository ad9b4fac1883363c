"""What an event stream has to know of itself to go on after its connection is lost.

A feed says which request opens the stream now, takes the bytes of the answer, and decides what
an error means: wait and open it again behind the last event, or give up. It sends nothing.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sandgate._wire.event_stream import Event, EventDecoder, EventTooLarge
from sandgate._wire.flow import Flow, Pause
from sandgate._wire.message import Call
from sandgate.errors import (
    GatewayFault,
    GatewayUnreachable,
    OutcomeUnknown,
    RequestTimedOut,
    SandboxUnreachable,
    SandgateError,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnexpectedAnswer,
)

E = TypeVar("E")

PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between two tries to open a stream again; the last one is repeated."""

_PASSING: tuple[type[SandgateError], ...] = (
    GatewayUnreachable,
    GatewayFault,
    OutcomeUnknown,
    RequestTimedOut,
    SandboxUnreachable,
    TooManyRequests,
    Unavailable,
)
"""What may be over a moment later, where asking again is only reading."""

_PROXY_STATUSES = frozenset({500, 502, 503, 504})
"""What a balancer before the gateway answers while that is started again."""


class Feed(Protocol[E]):
    """An event stream as a shell drives it."""

    @property
    def finished(self) -> bool:
        """Whether all has come; whatever happens to the connection then does not matter."""

    @property
    def begun(self) -> bool:
        """Whether `abandon` knows what there is to end."""

    def open(self) -> Call[None]:
        """Return the request that opens the stream; a success is answered by it."""

    def receive(self, data: bytes) -> list[E]:
        """Return what these bytes tell."""

    def end(self) -> None:
        """Tell that the stream ended; raise where more had to come."""

    def recover(self, error: SandgateError) -> Flow[None]:
        """Prepare to open it again, or raise what the loss means."""

    def abandon(self) -> Flow[None]:
        """End what the stream belongs to, since nobody will read on."""


def is_passing(error: SandgateError) -> bool:
    """Return whether a read that failed so may succeed a moment later."""
    if isinstance(error, UnexpectedAnswer):
        return error.status in _PROXY_STATUSES
    return isinstance(error, _PASSING)


class Patience:
    """How often a stream was opened in vain, and for how long since it was first lost.

    Not since its last byte: a connection that is silently gone takes longer to be noticed.
    """

    def __init__(self, seconds: float, *, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._tries = 0
        self._lost: float | None = None

    def succeeded(self) -> None:
        """Count anew: a byte came."""
        self._tries = 0
        self._lost = None

    def next_pause(self) -> Pause | None:
        """Return how long to wait before the next try; None when it is enough."""
        now = self._clock()
        self._lost = now if self._lost is None else self._lost
        if now - self._lost > self._seconds:
            return None
        pause = Pause(PAUSES[min(self._tries, len(PAUSES) - 1)])
        self._tries += 1
        return pause


class EventFeed(Generic[E]):
    """A stream of which each reader only sees what comes: nothing is lost with it.

    `open_behind` builds the request for an event's id. Where the stream ends by itself it is
    opened again, too, unless it is `finite`. `after_401` has another token made.
    """

    def __init__(
        self,
        open_behind: Callable[[str | None], Call[None]],
        parse: Callable[[Event], E | None],
        *,
        patience: float,
        clock: Callable[[], float],
        finite: bool = False,
        after_401: Callable[[SandgateError], Flow[None]] | None = None,
    ) -> None:
        self._open_behind = open_behind
        self._parse = parse
        self._patience = Patience(patience, clock=clock)
        self._finite = finite
        self._after_401 = after_401
        self._renewed = False
        self._decoder = EventDecoder()
        self._last: str | None = None
        self.begun = True
        self.finished = False

    def open(self) -> Call[None]:
        """Return the request that opens the stream behind what has come."""
        self._decoder = EventDecoder()
        return self._open_behind(self._last)

    def receive(self, data: bytes) -> list[E]:
        """Return what these bytes tell; raise UnexpectedAnswer for what cannot be read."""
        self._patience.succeeded()
        self._renewed = False
        told: list[E] = []
        try:
            for event in self._decoder.feed(data):
                parsed = self._parse(event)
                self._last = event.id
                if parsed is not None:
                    told.append(parsed)
        except (EventTooLarge, ValueError) as error:
            raise UnexpectedAnswer(f"the event stream cannot be read ({error})") from error
        # An id without data moves the place, and is no event.
        self._last = self._decoder.last_id or self._last
        return told

    def end(self) -> None:
        """Take the end as a loss, which `recover` decides on."""
        if self._finite:
            self.finished = True
            return
        raise GatewayUnreachable("the event stream ended", reached="unknown", retry_safe=True)

    def recover(self, error: SandgateError) -> Flow[None]:
        """Wait before the next try, or raise the error."""
        if isinstance(error, Unauthenticated) and self._after_401 and not self._renewed:
            self._renewed = True
            yield from self._after_401(error)
            return
        pause = self._patience.next_pause() if is_passing(error) else None
        if pause is None:
            raise error
        yield pause

    def abandon(self) -> Flow[None]:
        """Leave everything as it is."""
        yield from ()
