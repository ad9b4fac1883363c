"""Follows one command from its request to its exit, over as many connections as it takes.

The command is sent once. What may be sent again is only the request to read its events, behind
the last one that came. So the outcome is one of three: its `exit` event, an error that says
that it never ran, or OutcomeUnknown; never an invented exit code.
"""

from collections.abc import Callable

from sandgate._wire.event_stream import Event, EventDecoder, EventTooLarge
from sandgate._wire.feed import Patience, is_passing
from sandgate._wire.flow import Flow
from sandgate._wire.lease import Lease
from sandgate._wire.message import Call
from sandgate._wire.process_answers import parse_event
from sandgate._wire.processes import LINGER_SECONDS, Processes, Spec
from sandgate.errors import (
    EventsGone,
    GatewayUnreachable,
    OutcomeUnknown,
    SandgateError,
    Unauthenticated,
    UnexpectedAnswer,
)
from sandgate.types import CommandEvent, Exit, Started

LATE_SECONDS = 30.0
"""How long after its timeout a command's exit may come: SIGTERM, 2 s of grace, SIGKILL, and a
busy machine. Then the sandbox is asked to end it, and nobody knows what it did."""


class Following:
    """One command that is watched."""

    def __init__(
        self,
        lease: Lease,
        *,
        clock: Callable[[], float],
        spec: Spec | None = None,
        key: str = "",
        id_: str | None = None,
        after: int = 0,
        kills: bool = True,
    ) -> None:
        """Start what `spec` says, or follow the process `id_` from behind the event `after`.

        `kills`: whether the command is to end when its stream is abandoned.
        """
        self._lease = lease
        self._clock = clock
        self._spec = spec
        self._key = key
        self._kills = kills
        self._patience = Patience(LINGER_SECONDS, clock=clock)
        self._decoder = EventDecoder()
        self._token: str | None = None
        self._renewed = False
        self._given_up = False
        self._resumable = True
        self._overdue = _deadline(spec, clock())
        self.id = id_
        """The process's id; None until it is told."""
        self.after = after
        """The last event that came."""
        self._places: list[int] = []
        self.gap = False
        """Whether events were dropped before they could be read."""
        self.finished = False

    @property
    def begun(self) -> bool:
        """Whether its id came, or it was never to be killed."""
        return self.id is not None or self.finished or not self._resumable

    def open(self) -> Call[None]:
        """Return the request that starts the command, or later the one that reads on."""
        self._decoder = EventDecoder()
        route = self._lease.route()
        self._token = route.token
        calls = Processes(route)
        if self.id is not None:
            return calls.follow(self.id, after=self.after)
        assert self._spec is not None
        return calls.run(self._spec, key=self._key)

    def receive(self, data: bytes) -> list[CommandEvent]:
        """Return what these bytes tell; raise OutcomeUnknown when they tell nothing readable."""
        told: list[CommandEvent] = []
        self._places = []
        self._patience.succeeded()
        self._renewed = False
        try:
            for event in self._decoder.feed(data):
                taken = [] if self.finished else self._take(event)
                told += taken
                self._places += [self.after] * len(taken)
        except (EventTooLarge, UnexpectedAnswer, ValueError) as error:
            if not self.finished:
                raise self._unknown(f"its event stream cannot be read ({error})") from error
        if not self.finished and self._clock() > self._overdue:
            raise self._unknown("it did not end in time after its timeout")
        return told

    def take_place(self) -> int:
        """Return the place of the next event that `receive` returned last, as it is passed on.

        `after` is ahead of it: whoever stops within what came at once has not seen the rest.
        """
        return self._places.pop(0)

    def end(self) -> None:
        """Tell that the stream ended; raise unless the command had."""
        if not self.finished:
            raise GatewayUnreachable(
                "the command's event stream ended without its exit code", reached="yes"
            )

    def recover(self, error: SandgateError) -> Flow[None]:
        """Prepare to read on behind the last event, or raise what the loss means."""
        if self.finished:
            return
        if isinstance(error, Unauthenticated) and not self._renewed:
            # No sandbox has seen the request, so the command may still be sent.
            self._renewed = True
            yield from self._lease.after_401(error, self._token)
            return
        if self.id is None or not self._resumable:
            raise self._before_the_first(error)
        if isinstance(error, EventsGone) and error.first_id > self.after + 1:
            self.after = error.first_id - 1
            self.gap = True
            return
        pause = self._patience.next_pause() if is_passing(error) and not self._given_up else None
        if pause is None:
            if type(error) is OutcomeUnknown:
                raise error
            raise self._unknown(str(error), reached=error.reached) from error
        yield pause

    def abandon(self) -> Flow[None]:
        """Have the command killed; raises what the sandbox or the way to it says."""
        if self._kills and self.id is not None and not self.finished:
            id_ = self.id
            yield from self._lease.authorized(lambda route: Processes(route).kill(id_))

    def _take(self, event: Event) -> list[CommandEvent]:
        parsed = parse_event(event)
        number = int(event.id) if event.id is not None and event.id.isdecimal() else None
        if number is None:
            self._resumable = False  # nobody could say where to go on
        elif number <= self.after:
            return []  # it came before
        else:
            self.after = number
        if isinstance(parsed, Started) and self.id is None:
            self.id = parsed.id
        elif isinstance(parsed, Exit):
            self.finished = True
            if self.gap and not parsed.truncated:
                parsed = Exit(
                    parsed.exit_code, parsed.signal, parsed.reason, parsed.duration, truncated=True
                )
        return [] if parsed is None else [parsed]

    def _before_the_first(self, error: SandgateError) -> SandgateError:
        """Return what an error means for a command of which no event can be asked for again."""
        if not isinstance(error, GatewayUnreachable) or error.reached == "no":
            return error
        unknown = self._unknown(str(error), reached=error.reached)
        unknown.__cause__ = error
        return unknown

    def _unknown(self, why: str, *, reached: str = "yes") -> OutcomeUnknown:
        self._given_up = True
        return OutcomeUnknown(
            f"{why.rstrip('.')}; the command may have run",
            reached="unknown" if reached == "unknown" and self.id is None else "yes",
        )


def _deadline(spec: Spec | None, now: float) -> float:
    if spec is None or spec.timeout is None:
        return float("inf")
    return now + spec.timeout + LATE_SECONDS
