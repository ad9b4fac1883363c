"""What the body of `POST /v1/claims` may say.

Pure: a decoded JSON value in, a `ClaimRequest` out. Every message starts with the member that
is wrong and says what is allowed there.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from sandgate_router.control.bodies import parse_struct, quoted
from sandgate_router.errors import InvalidRequest
from sandgate_router.names import DEFAULT_NAMESPACE, Label, parse_label
from sandgate_router.registry.base import ClaimRequest

MAX_LEASE_SECONDS = 7 * 24 * 3600.0
"""Longest lease. What was forgotten ends."""

MAX_WAIT_SECONDS = 300.0
"""Longest wait for a member. Load balancers in front of us end a silent request after 60 to
600 s; a caller who can wait longer asks again."""

MAX_LABELS = 64
"""Labels of one claim: each claim is kept in memory and shown in lists of up to 1,000."""

RESERVED_PREFIXES = ("kubernetes.io", "k8s.io", "agents.x-k8s.io", "sandgate.dev")
"""Label prefixes, with everything below them, that controllers act on: a caller who could set
one might pass for a controller."""

_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_MAX_DNS_NAME = 253

_NOT_YET = ("idle_seconds", "ports")
"""Members that are planned. Both restrict what a claim may do, so they are never overlooked."""


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


def parse_new_claim(body: object) -> ClaimRequest:
    """Return what the caller wants; raise InvalidRequest."""
    new = parse_struct(body, NewClaim)
    for member in _NOT_YET:
        if getattr(new, member) is not None:
            raise InvalidRequest(f"{member} is not available in this version; leave it out")
    return ClaimRequest(
        pool=_label("pool", new.pool),
        namespace=_label("namespace", new.namespace),
        name=None if new.name is None else _label("name", new.name),
        lease_seconds=_lease(new.lease_seconds),
        labels=_labels(new.labels),
        wait_seconds=_wait(new.wait_seconds),
        on_empty=new.on_empty,
    )


def _label(member: str, text: str) -> Label:
    try:
        return parse_label(text.encode())  # fails on a lone surrogate, too
    except ValueError as error:
        raise InvalidRequest(
            f"{member} {quoted(text)} is not a label (a-z, 0-9 and inner hyphens, at most 63)"
        ) from error


def _lease(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds <= MAX_LEASE_SECONDS:
        raise InvalidRequest(
            f"lease_seconds {seconds!r} is not a number of seconds above 0, at most"
            f" {MAX_LEASE_SECONDS:.0f}"
        )
    return seconds


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
        if value and _LABEL_NAME.fullmatch(value) is None:
            raise InvalidRequest(
                f"labels value {quoted(value)} is not empty or at most 63 of A-Z a-z 0-9 - _ .,"
                " beginning and ending with a letter or digit"
            )
    return labels


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if _LABEL_NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"labels key {quoted(key)} is not [PREFIX/]NAME with a NAME of 1 to 63 of"
            " A-Z a-z 0-9 - _ ., beginning and ending with a letter or digit"
        )
    if slash and (len(prefix) > _MAX_DNS_NAME or _DNS_NAME.fullmatch(prefix) is None):
        raise InvalidRequest(
            f"labels key {quoted(key)} has a prefix that is no lower-case DNS name of at most"
            f" {_MAX_DNS_NAME}"
        )
    if any(prefix == taken or prefix.endswith("." + taken) for taken in RESERVED_PREFIXES):
        raise InvalidRequest(
            f"labels key {quoted(key)} has a reserved prefix; these and names below them may not"
            f" be set: {', '.join(RESERVED_PREFIXES)}"
        )
