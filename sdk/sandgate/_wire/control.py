"""The control API: claim, read, release, list pools (`/v1/...`, without routing fields)."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote

from sandgate._wire.members import (
    Members,
    integer,
    number,
    optional_number,
    optional_text,
    optional_time,
    parse_json,
    parse_list,
    parse_members,
    text,
)
from sandgate._wire.message import CALL_GAP, Call, Reply, Request, base_fields, nothing
from sandgate._wire.refusals import parse_refusal
from sandgate.types import Claim, PoolStatus

T = TypeVar("T")

DEFAULT_PORT = 8888
"""Where the server inside a sandbox listens, unless the claim says otherwise."""

DEFAULT_WAIT = 30.0
"""Seconds that the gateway waits for a member where a claim does not say."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewed claim has anew."""

    expires_at: datetime | None
    token: str | None = field(repr=False)
    """None where the gateway asks for none."""


@dataclass(frozen=True, slots=True)
class Control:
    """Builds calls of the control API for one caller."""

    token: str | None = field(default=None, repr=False)

    def claim(self, body: Mapping[str, object], *, key: str) -> Call[Claim]:
        """Claim a sandbox; the same `key` gives the same claim, however often it is sent.

        Raises:
            ValueError: a number of seconds is none that can be waited for.
        """
        for name in ("lease_seconds", "wait_seconds"):
            value = body.get(name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} {value!r} is not a finite number of seconds")
        wait = body.get("wait_seconds")
        waiting = float(wait) if isinstance(wait, int | float) else DEFAULT_WAIT
        return self._call(
            "POST",
            "/v1/claims",
            parse_claim,
            fields=[("content-type", "application/json"), ("idempotency-key", key)],
            body=json.dumps(body).encode(),
            gap=waiting + CALL_GAP,
        )

    def read(self, name: str, *, namespace: str) -> Call[Claim]:
        """Read a claim; its token is told only to the one who made it."""
        return self._call("GET", claim_target(name, namespace=namespace), parse_claim)

    def renew(self, name: str, *, namespace: str) -> Call[Renewal]:
        """Begin the claim's lease anew, and have a token of it for its later life."""
        return self._call(
            "POST",
            f"{claim_target(name, namespace=namespace)}/renew",
            parse_renewal,
            fields=[("content-type", "application/json")],
            body=b"{}",
        )

    def release(self, name: str, *, namespace: str) -> Call[None]:
        """End a claim and its sandbox; one that is gone already is a success too."""
        return self._call("DELETE", claim_target(name, namespace=namespace), nothing)

    def pools(self) -> Call[list[PoolStatus]]:
        """List the pools."""
        return self._call("GET", "/v1/pools", parse_pools)

    def _call(
        self,
        method: str,
        target: str,
        parse: Callable[[Reply], T],
        *,
        fields: list[tuple[str, str]] | None = None,
        body: bytes = b"",
        gap: float = CALL_GAP,
    ) -> Call[T]:
        def decode(reply: Reply) -> T:
            if not 200 <= reply.status < 300:
                raise parse_refusal(reply, method=method)
            return parse(reply)

        all_fields = base_fields() + (fields or [])
        if self.token is not None:
            all_fields.append(("authorization", f"Bearer {self.token}"))
        return Call(Request(method, target, all_fields, body, gap), decode)


def build_claim(
    pool: str,
    *,
    namespace: str,
    name: str | None,
    lease_seconds: float | None,
    labels: Mapping[str, str] | None,
    wait_seconds: float | None,
    on_empty: str | None,
) -> dict[str, object]:
    """Return the body of a claim; what is None is left to the gateway and the pool."""
    members: dict[str, object] = {
        "pool": pool,
        "namespace": namespace,
        "name": name,
        "lease_seconds": lease_seconds,
        "labels": None if labels is None else dict(labels),
        "wait_seconds": wait_seconds,
        "on_empty": on_empty,
    }
    return {key: value for key, value in members.items() if value is not None}


def claim_target(name: str, *, namespace: str) -> str:
    """Return the path of a claim; odd names are encoded, for the gateway to refuse."""
    return f"/v1/claims/{quote(namespace, safe='')}/{quote(name, safe='')}"


def parse_claim(reply: Reply) -> Claim:
    """Return the claim that an answer describes."""
    members = parse_members(parse_json(reply))
    timings = members.get("timings")
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
        timings=_parse_timings(timings) if isinstance(timings, dict) else {},
    )


def parse_renewal(reply: Reply) -> Renewal:
    """Return what an answer to a renewal says anew."""
    members = parse_members(parse_json(reply))
    return Renewal(optional_time(members, "expires_at"), optional_text(members, "token"))


def parse_pools(reply: Reply) -> list[PoolStatus]:
    """Return the pools that an answer lists."""
    members = parse_members(parse_json(reply))
    return [_parse_pool(parse_members(pool)) for pool in parse_list(members.get("pools"))]


def _parse_pool(members: Members) -> PoolStatus:
    return PoolStatus(
        name=text(members, "name"),
        namespace=text(members, "namespace"),
        warm=integer(members, "warm", default=0),
        max=integer(members, "max", default=0),
        ready=integer(members, "ready", default=0),
        claimed=integer(members, "claimed", default=0),
        waiting=integer(members, "waiting", default=0),
        hit_rate=optional_number(members, "hit_rate"),
        isolation=text(members, "isolation", default="unknown"),
        last_error=optional_text(members, "last_error"),
    )


def _parse_timings(members: Members) -> dict[str, float]:
    return {name: number(members, name) for name in members}
