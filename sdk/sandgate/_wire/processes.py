"""Commands: `POST /v1/processes`, and the event stream that answers it.

A stream that ends without its `exit` event means *unknown*: never success, never an invented
exit code, and never a second try, since the command may have run.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast, get_args

from sandgate._wire.event_stream import Event, EventDecoder, EventTooLarge
from sandgate._wire.members import Members, number, optional_integer, optional_text, text
from sandgate._wire.message import Call, Reply, Request, base_fields
from sandgate._wire.refusals import parse_refusal
from sandgate._wire.route import Route
from sandgate.errors import GatewayUnreachable, OutcomeUnknown, UnexpectedAnswer
from sandgate.types import CommandEvent, Exit, Output, Reason, Started

EVENT_GAP = 60.0
"""Seconds without a byte after which an event stream is lost: a quiet one carries a comment
every 15, so four in a row are missing."""

Command = str | Sequence[str]
"""A line for the shell, or the words of an argument vector."""


def build_run(
    command: Command,
    *,
    route: Route,
    key: str,
    timeout: float | None,
    cwd: str | None,
    env: Mapping[str, str],
) -> Call[None]:
    """Start a command and watch it; raise ValueError or TypeError for one that is none.

    The answer is a stream: `decode` is for one that is no success, and raises.
    """
    members = _parse_command(command)
    if timeout is not None:
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout {timeout!r} is not a finite number of seconds above 0")
        members["timeout"] = timeout
    if cwd is not None:
        members["cwd"] = cwd
    if env:
        members["env"] = dict(env)
    # No X-Sandbox-Timeout: the comments on the stream keep it alive for as long as it takes.
    fields = [
        *base_fields(accept="text/event-stream"),
        ("content-type", "application/json"),
        ("idempotency-key", key),
        *route.fields(),
    ]
    request = Request("POST", "/v1/processes", fields, json.dumps(members).encode(), EVENT_GAP)
    return Call(request, _refuse)


@dataclass(slots=True)
class CommandStream:
    """Decodes the event stream of one command."""

    finished: bool = False
    """Whether the `exit` event came; whatever happens to the connection then does not matter."""
    _decoder: EventDecoder = field(default_factory=EventDecoder)

    def receive(self, data: bytes) -> list[CommandEvent]:
        """Return what these bytes tell; raise OutcomeUnknown when they tell nothing readable."""
        events: list[CommandEvent] = []
        try:
            for event in self._decoder.feed(data):
                if not self.finished and (parsed := parse_event(event)) is not None:
                    events.append(parsed)
                    self.finished = isinstance(parsed, Exit)
        except (EventTooLarge, UnexpectedAnswer, ValueError) as error:
            raise OutcomeUnknown(
                f"the command's event stream cannot be read ({error}); it may have run",
                reached="yes",
            ) from error
        return events

    def lost(self, error: GatewayUnreachable) -> None:
        """Decide what a lost connection means: nothing after the exit, else an error raised."""
        if self.finished:
            return
        if error.reached == "no":
            raise error
        raise OutcomeUnknown(
            f"{error.detail}; the command may have run", reached=error.reached
        ) from error

    def end(self) -> None:
        """Tell that the stream ended; raise OutcomeUnknown unless the command had."""
        if not self.finished:
            raise OutcomeUnknown(
                "the command's event stream ended without its exit code; it may have run",
                reached="yes",
            )


def parse_event(event: Event) -> CommandEvent | None:
    """Return what an event tells, None for one of a kind unknown here; raise ValueError."""
    if event.type not in {"started", "stdout", "stderr", "exit"}:
        return None
    members = json.loads(event.data)
    if not isinstance(members, dict):
        raise UnexpectedAnswer(f"event {event.type!r} carries no JSON object")
    match event.type:
        case "started":
            return Started(optional_text(members, "id"), optional_integer(members, "pid"))
        case "stdout":
            return Output("stdout", _parse_data(members))
        case "stderr":
            return Output("stderr", _parse_data(members))
        case _:
            return _parse_exit(members)


def _refuse(reply: Reply) -> None:
    raise parse_refusal(reply, method="POST")


def _parse_command(command: Command) -> dict[str, object]:
    if isinstance(command, str):
        return {"shell": command}
    argv = list(command)
    if not argv:
        raise ValueError("command is empty: it has no program to run")
    # Bytes are a sequence of integers, and would else arrive as such.
    if not all(isinstance(word, str) for word in argv):
        raise TypeError(f"command {command!r:.60} is neither a string nor a sequence of strings")
    return {"argv": argv}


def _parse_data(members: Members) -> bytes:
    try:
        return base64.b64decode(text(members, "data"), validate=True)
    except binascii.Error as error:
        raise UnexpectedAnswer("output is not base64") from error


def _parse_exit(members: Members) -> Exit:
    signal = optional_integer(members, "signal")
    exit_code = optional_integer(members, "exit_code")
    if exit_code is None:
        if signal is None:
            raise UnexpectedAnswer("event 'exit' has neither an exit code nor a signal")
        exit_code = 128 + signal
    reason = text(members, "reason", default="exited")
    if reason not in get_args(Reason):
        raise UnexpectedAnswer(f"event 'exit' has the reason {reason!r}, which is unknown")
    return Exit(
        exit_code=exit_code,
        signal=signal,
        reason=cast(Reason, reason),
        duration=number(members, "duration", default=0.0),
        truncated=_parse_truncated(members.get("truncated")),
    )


def _parse_truncated(value: object) -> bool:
    # The bytes dropped of each stream; a plain boolean is the form of the older routes.
    return any(value.values()) if isinstance(value, dict) else bool(value)
