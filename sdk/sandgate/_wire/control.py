"""The control API: claims, pools and events (`/v1/...`, without routing fields)."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urlencode

from sandgate._wire.claims import (
    Grant,
    Page,
    parse_claim,
    parse_grant,
    parse_page,
    parse_pools,
)
from sandgate._wire.message import CALL_GAP, Call, Reply, Request, base_fields, nothing
from sandgate._wire.refusals import parse_refusal
from sandgate.types import Claim, PoolStatus

T = TypeVar("T")

DEFAULT_WAIT = 30.0
"""Seconds that the gateway waits for a member where a claim does not say."""

PAGE_CLAIMS = 1000
"""As many as the gateway gives at once."""


@dataclass(frozen=True, slots=True)
class Control:
    """Builds calls of the control API for one caller."""

    token: str | None = field(default=None, repr=False)

    def claim(self, body: Mapping[str, object], *, key: str) -> Call[Grant]:
        """Claim a sandbox; the same `key` gives the same claim, however often it is sent.

        Raises:
            ValueError: a number of seconds is none that can be waited for.
        """
        for name in ("lease_seconds", "idle_seconds", "wait_seconds"):
            _check_seconds(name, body.get(name))
        wait = body.get("wait_seconds")
        waiting = float(wait) if isinstance(wait, int | float) else DEFAULT_WAIT
        return self._call(
            "POST",
            "/v1/claims",
            parse_grant,
            fields=[("idempotency-key", key)],
            content=body,
            gap=waiting + CALL_GAP,
        )

    def read(self, name: str, *, namespace: str) -> Call[Claim]:
        """Read a claim; its token is told only to the one who made it."""
        return self._call("GET", claim_target(name, namespace=namespace), parse_claim)

    def list_claims(
        self,
        *,
        namespace: str | None = None,
        pool: str | None = None,
        label_selector: str | None = None,
        cursor: str | None = None,
    ) -> Call[Page]:
        """List live claims, oldest first, from a page's cursor on."""
        wanted = {
            "namespace": namespace,
            "pool": pool,
            "label_selector": label_selector,
            "limit": str(PAGE_CLAIMS),
            "cursor": cursor,
        }
        query = urlencode({name: value for name, value in wanted.items() if value is not None})
        return self._call("GET", f"/v1/claims?{query}", parse_page)

    def renew(
        self,
        name: str,
        *,
        namespace: str,
        uid: str | None = None,
        lease_seconds: float | None = None,
        capability: str | None = None,
    ) -> Call[Grant]:
        """Begin the claim's lease anew, and have a token of it for its later life.

        `uid` is the one generation that is meant, and no later claim of that name; `capability`
        is the claim's own token, where no caller's is at hand.
        """
        _check_seconds("lease_seconds", lease_seconds)
        return self._call(
            "POST",
            f"{claim_target(name, namespace=namespace)}/renew{_only(uid)}",
            parse_grant,
            content={} if lease_seconds is None else {"lease_seconds": lease_seconds},
            capability=capability,
        )

    def release(
        self,
        name: str,
        *,
        namespace: str,
        uid: str | None = None,
        capability: str | None = None,
    ) -> Call[None]:
        """End a claim and its sandbox; one that is gone already is a success too.

        With a `uid`, a later claim of that name is left alone.
        """
        target = f"{claim_target(name, namespace=namespace)}{_only(uid)}"
        return self._call("DELETE", target, nothing, capability=capability)

    def pools(self) -> Call[list[PoolStatus]]:
        """List the pools."""
        return self._call("GET", "/v1/pools", parse_pools)

    def events(self, *, after: str | None) -> Call[None]:
        """Follow what happens, from now on or behind an event; the answer is a stream."""
        fields = [] if after is None else [("last-event-id", after)]
        return self._call("GET", "/v1/events", nothing, accept="text/event-stream", fields=fields)

    def _call(
        self,
        method: str,
        target: str,
        parse: Callable[[Reply], T],
        *,
        accept: str = "application/json",
        fields: list[tuple[str, str]] | None = None,
        content: Mapping[str, object] | None = None,
        gap: float = CALL_GAP,
        capability: str | None = None,
    ) -> Call[T]:
        def decode(reply: Reply) -> T:
            if not 200 <= reply.status < 300:
                raise parse_refusal(reply, method=method)
            return parse(reply)

        all_fields = base_fields(accept=accept)
        if content is not None:
            all_fields.append(("content-type", "application/json"))
        all_fields += fields or []
        if capability is not None:
            all_fields.append(("x-sandbox-token", capability))
        elif self.token is not None:
            all_fields.append(("authorization", f"Bearer {self.token}"))
        body = b"" if content is None else json.dumps(content).encode()
        return Call(Request(method, target, all_fields, body, gap), decode)


def build_claim(
    pool: str,
    *,
    namespace: str,
    name: str | None,
    lease_seconds: float | None,
    idle_seconds: float | None,
    labels: Mapping[str, str] | None,
    ports: list[int] | None,
    wait_seconds: float | None,
    on_empty: str | None,
) -> dict[str, object]:
    """Return the body of a claim; what is None is left to the gateway and the pool."""
    members: dict[str, object] = {
        "pool": pool,
        "namespace": namespace,
        "name": name,
        "lease_seconds": lease_seconds,
        "idle_seconds": idle_seconds,
        "labels": None if labels is None else dict(labels),
        "ports": ports,
        "wait_seconds": wait_seconds,
        "on_empty": on_empty,
    }
    return {key: value for key, value in members.items() if value is not None}


def claim_target(name: str, *, namespace: str) -> str:
    """Return the path of a claim; odd names are encoded, for the gateway to refuse."""
    return f"/v1/claims/{quote(namespace, safe='')}/{quote(name, safe='')}"


def _only(uid: str | None) -> str:
    return f"?{urlencode({'uid': uid})}" if uid else ""


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} {value!r} is not a finite number of seconds")
