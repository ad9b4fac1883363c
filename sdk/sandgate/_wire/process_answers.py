"""What the answers and events of `/v1/processes` say of a command."""

import base64
import binascii
import json
from typing import cast, get_args

from sandgate._wire.event_stream import Event
from sandgate._wire.members import (
    Members,
    integer,
    number,
    optional_integer,
    optional_text,
    optional_time,
    parse_json,
    parse_list,
    parse_members,
    text,
)
from sandgate._wire.message import Reply
from sandgate.errors import UnexpectedAnswer
from sandgate.types import (
    CommandEvent,
    Exit,
    Output,
    ProcessInfo,
    Reason,
    Started,
    Written,
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


def parse_process(reply: Reply) -> ProcessInfo:
    """Return the process that an answer describes."""
    return _read_process(parse_members(parse_json(reply)))


def parse_processes(reply: Reply) -> list[ProcessInfo]:
    """Return the processes that an answer lists."""
    members = parse_members(parse_json(reply))
    return [_read_process(parse_members(one)) for one in parse_list(members.get("processes"))]


def parse_written(reply: Reply) -> Written:
    """Return what became of the input."""
    members = parse_members(parse_json(reply))
    is_open = members.get("open")
    if not isinstance(is_open, bool):
        raise UnexpectedAnswer(f"member 'open' is {is_open!r:.60}, not a boolean", reached="yes")
    return Written(integer(members, "written"), is_open)


def _read_process(members: Members) -> ProcessInfo:
    exit_ = members.get("exit")
    return ProcessInfo(
        id=text(members, "id"),
        pid=optional_integer(members, "pid"),
        running=text(members, "state") == "running",
        argv=tuple(str(word) for word in parse_list(members.get("argv", []))),
        started_at=optional_time(members, "started_at"),
        exit=None if exit_ is None else _parse_exit(parse_members(exit_)),
    )


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
