"""Typed access to the members of a JSON answer.

An answer of another shape is not this API's: UnexpectedAnswer says what was found where.
Members that are not asked for are ignored, so a newer gateway may add some.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from sandgate._wire.message import Reply
from sandgate.errors import UnexpectedAnswer

Members = Mapping[str, object]


def parse_json(reply: Reply) -> object:
    """Return the JSON value of an answer."""
    try:
        value: object = json.loads(reply.body)
    except ValueError as error:
        raise UnexpectedAnswer(
            f"the answer {reply.status} is no JSON: {excerpt(reply.body)}",
            status=reply.status,
            reached="unknown",
        ) from error
    return value


def parse_members(value: object) -> Members:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise UnexpectedAnswer(f"{value!r:.100} is no JSON object", reached="unknown")
    return value


def parse_list(value: object) -> list[object]:
    """Return a JSON array."""
    if not isinstance(value, list):
        raise UnexpectedAnswer(f"{value!r:.100} is no JSON array", reached="unknown")
    return value


def text(members: Members, name: str, *, default: str | None = None) -> str:
    """Return a string member; without a default it must be there."""
    value = members.get(name, default)
    if not isinstance(value, str):
        raise _wrong(members, name, "a string")
    return value


def optional_text(members: Members, name: str) -> str | None:
    """Return a string member, None where it is null or absent."""
    return None if members.get(name) is None else text(members, name)


def integer(members: Members, name: str, *, default: int | None = None) -> int:
    """Return an integer member; without a default it must be there."""
    value = members.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(members, name, "an integer")
    return value


def optional_integer(members: Members, name: str) -> int | None:
    """Return an integer member, None where it is null or absent."""
    return None if members.get(name) is None else integer(members, name)


def number(members: Members, name: str, *, default: float | None = None) -> float:
    """Return a number member; without a default it must be there."""
    value = members.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(members, name, "a number")
    return float(value)


def optional_number(members: Members, name: str) -> float | None:
    """Return a number member, None where it is null or absent."""
    return None if members.get(name) is None else number(members, name)


def optional_time(members: Members, name: str) -> datetime | None:
    """Return an RFC 3339 time as an aware datetime in UTC, None where null or absent."""
    value = optional_text(members, name)
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except ValueError as error:
        raise _wrong(members, name, "an RFC 3339 time") from error


def excerpt(body: bytes) -> str:
    """Return the beginning of an answer, quoted, for a message of one line."""
    return repr(body[:120].decode(errors="replace")) if body else "it is empty"


def _wrong(members: Members, name: str, wanted: str) -> UnexpectedAnswer:
    found = f"{members[name]!r:.60}" if name in members else "absent"
    return UnexpectedAnswer(f"member {name!r} is {found}, not {wanted}", reached="unknown")
