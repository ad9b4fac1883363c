"""What the control API's answers say of claims, pools and events."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sandgate._wire.event_stream import Event
from sandgate._wire.members import (
    Members,
    integer,
    number,
    optional_integer,
    optional_number,
    optional_text,
    optional_time,
    parse_json,
    parse_list,
    parse_members,
    text,
)
from sandgate._wire.message import Reply
from sandgate.types import Claim, GatewayEvent, PoolStatus

DEFAULT_PORT = 8888
"""Where the server inside a sandbox listens, unless the claim says otherwise."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A claim with its token, as it was made or renewed."""

    claim: Claim
    life: float | None
    """Seconds that lease and token are both still good for, by the gateway's clock alone; None
    where neither ends."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the claims, and the cursor of those that follow."""

    claims: list[Claim] = field(default_factory=list)
    cursor: str | None = None


def parse_claim(reply: Reply) -> Claim:
    """Return the claim that an answer describes."""
    return read_claim(parse_members(parse_json(reply)))


def parse_grant(reply: Reply) -> Grant:
    """Return the claim that an answer describes, and how long it is good for."""
    claim = parse_claim(reply)
    ends = [end for end in (claim.expires_at, claim.token_expires_at) if end is not None]
    return Grant(claim, _life(min(ends), _date(reply)) if ends else None)


def parse_page(reply: Reply) -> Page:
    """Return a page of claims."""
    members = parse_members(parse_json(reply))
    claims = [read_claim(parse_members(claim)) for claim in parse_list(members.get("claims"))]
    return Page(claims, optional_text(members, "next_cursor"))


def parse_pools(reply: Reply) -> list[PoolStatus]:
    """Return the pools that an answer lists."""
    members = parse_members(parse_json(reply))
    return [read_pool(parse_members(pool)) for pool in parse_list(members.get("pools"))]


def parse_gateway_event(event: Event) -> GatewayEvent | None:
    """Return what an event tells; None for one without content, which only moves the place."""
    if event.type == "stream.reset":
        return GatewayEvent("stream.reset")
    members = parse_members(json.loads(event.data))
    claim, status = members.get("claim"), members.get("status")
    return GatewayEvent(
        kind=text(members, "kind", default=event.type),
        at=optional_time(members, "at"),
        namespace=text(members, "namespace", default=""),
        pool=text(members, "pool", default=""),
        reason=optional_text(members, "reason"),
        claim=None if claim is None else read_claim(parse_members(claim)),
        status=None if status is None else read_pool(parse_members(status)),
    )


def read_claim(members: Members) -> Claim:
    """Return the claim that these members describe."""
    timings, labels = members.get("timings"), members.get("labels")
    return Claim(
        name=text(members, "claim"),
        namespace=text(members, "namespace"),
        sandbox=text(members, "sandbox"),
        port=integer(members, "port", default=DEFAULT_PORT),
        isolation=text(members, "isolation", default="unknown"),
        state=text(members, "state", default="ready"),
        reason=optional_text(members, "reason"),
        pool=text(members, "pool", default=""),
        uid=optional_text(members, "uid"),
        launch=text(members, "launch", default=""),
        expires_at=optional_time(members, "expires_at"),
        token=optional_text(members, "token"),
        token_expires_at=optional_time(members, "token_expires_at"),
        created_at=optional_time(members, "created_at"),
        labels=_read_texts(labels) if isinstance(labels, dict) else {},
        timings=_read_timings(timings) if isinstance(timings, dict) else {},
    )


def read_pool(members: Members) -> PoolStatus:
    """Return the pool that these members describe."""
    return PoolStatus(
        name=text(members, "name"),
        namespace=text(members, "namespace"),
        warm=integer(members, "warm", default=0),
        max=optional_integer(members, "max"),
        ready=integer(members, "ready", default=0),
        claimed=integer(members, "claimed", default=0),
        waiting=integer(members, "waiting", default=0),
        hit_rate=optional_number(members, "hit_rate"),
        isolation=text(members, "isolation", default="unknown"),
        last_error=optional_text(members, "last_error"),
    )


def _read_timings(members: Members) -> Mapping[str, float]:
    return {name: number(members, name) for name in members}


def _read_texts(members: Members) -> Mapping[str, str]:
    return {name: text(members, name) for name in members}


def _date(reply: Reply) -> datetime | None:
    from email.utils import parsedate_to_datetime  # it brings half of the standard library

    try:
        return parsedate_to_datetime(reply.field("date") or "").astimezone(UTC)
    except ValueError:
        return None


def _life(end: datetime, date: datetime | None) -> float:
    """Return the seconds until `end`; a second less, since Date leaves fractions away."""
    if date is None:
        return max(0.0, (end - datetime.now(UTC)).total_seconds())
    left = (end - date).total_seconds()
    return max(left - 1, left / 4, 0.0)
