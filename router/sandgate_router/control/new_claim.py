"""What the bodies of `POST /v1/claims` and of a renewal may say.

Pure: a decoded JSON value in, a checked one out. Every message starts with the member that
is wrong and says what is allowed there.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from sandgate_router.control.bodies import parse_struct, quoted
from sandgate_router.control.labels import (
    KEY_GRAMMAR,
    PREFIX_GRAMMAR,
    RESERVED_PREFIXES,
    VALUE_GRAMMAR,
    has_name,
    has_prefix,
    is_reserved,
    is_value,
)
from sandgate_router.errors import InvalidRequest
from sandgate_router.names import DEFAULT_NAMESPACE, Label, Port, parse_label, parse_port
from sandgate_router.registry.base import ClaimRequest

MAX_LEASE_SECONDS = 7 * 24 * 3600.0
"""Longest lease. What was forgotten ends."""

MAX_WAIT_SECONDS = 300.0
"""Longest wait for a member. Load balancers in front of us end a silent request after 60 to
600 s; a caller who can wait longer asks again."""

MAX_LABELS = 64
"""Labels of one claim: each claim is kept in memory and shown in lists of up to 1,000."""

MAX_PORTS = 64
"""Ports of one claim: each of its tokens lists them, and travels in a head."""


class NewClaim(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The members of the body and their types; `parse_new_claim` checks their values."""

    pool: str
    namespace: str = DEFAULT_NAMESPACE
    name: str | None = None
    lease_seconds: float | None = None
    idle_seconds: float | None = None
    labels: dict[str, str] = {}  # msgspec copies the default
    ports: list[int] | None = None
    wait_seconds: float = 30.0
    on_empty: Literal["wait", "fail", "cold"] = "wait"


class Renewal(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The members of the body of a renewal."""

    lease_seconds: float | None = None


def parse_new_claim(body: object, *, caller: str | None = None) -> ClaimRequest:
    """Return what a caller wants; raise InvalidRequest."""
    new = parse_struct(body, NewClaim)
    return ClaimRequest(
        pool=_label("pool", new.pool),
        namespace=_label("namespace", new.namespace),
        name=None if new.name is None else _label("name", new.name),
        lease_seconds=_span("lease_seconds", new.lease_seconds),
        idle_seconds=_span("idle_seconds", new.idle_seconds),
        ports=None if new.ports is None else _ports(new.ports),
        caller=caller,
        labels=_labels(new.labels),
        wait_seconds=_wait(new.wait_seconds),
        on_empty=new.on_empty,
    )


def parse_renewal(body: object) -> float | None:
    """Return the lease that the caller wants, None for the one it had; raise InvalidRequest."""
    return _span("lease_seconds", parse_struct(body, Renewal).lease_seconds)


def _label(member: str, text: str) -> Label:
    try:
        return parse_label(text.encode())  # fails on a lone surrogate, too
    except ValueError as error:
        raise InvalidRequest(
            f"{member} {quoted(text)} is not a label (a-z, 0-9 and inner hyphens, at most 63)"
        ) from error


def _span(member: str, seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds <= MAX_LEASE_SECONDS:
        raise InvalidRequest(
            f"{member} {seconds!r} is not a number of seconds above 0, at most"
            f" {MAX_LEASE_SECONDS:.0f}"
        )
    return seconds


def _ports(ports: Sequence[int]) -> tuple[Port, ...]:
    if not 1 <= len(ports) <= MAX_PORTS:
        raise InvalidRequest(f"ports has {len(ports)} members, 1 to {MAX_PORTS} are allowed")
    if len(set(ports)) < len(ports):
        raise InvalidRequest("ports names a port twice")
    return tuple(sorted(_port(port) for port in ports))


def _port(number: int) -> Port:
    try:
        return parse_port(b"%d" % number)
    except ValueError as error:
        raise InvalidRequest(f"ports member {number!r} is not a port (1-65535)") from error


def _wait(seconds: float) -> float:
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise InvalidRequest(
            f"wait_seconds {seconds!r} is not a number of seconds from 0 to {MAX_WAIT_SECONDS:.0f}"
        )
    return seconds


def _labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    if len(labels) > MAX_LABELS:
        raise InvalidRequest(f"labels has {len(labels)} members, at most {MAX_LABELS} are allowed")
    for key, value in labels.items():
        _check_key(key)
        if not is_value(value):
            raise InvalidRequest(f"labels value {quoted(value)} is not {VALUE_GRAMMAR}")
    return labels


def _check_key(key: str) -> None:
    if not has_name(key):
        raise InvalidRequest(f"labels key {quoted(key)} is not {KEY_GRAMMAR}")
    if not has_prefix(key):
        raise InvalidRequest(f"labels key {quoted(key)} has a prefix that is no {PREFIX_GRAMMAR}")
    if is_reserved(key):
        raise InvalidRequest(
            f"labels key {quoted(key)} has a reserved prefix; these and names below them may not"
            f" be set: {', '.join(RESERVED_PREFIXES)}"
        )
