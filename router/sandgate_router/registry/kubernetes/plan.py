"""What a claim says as an object of the cluster, and how that is read back. Pure.

The API server is the only memory: whatever a later request to any replica has to know, the
ports, the caller, the spans, stands in annotations of the claim. A claim made with a key has
a name that follows from it, so that every replica finds it again.
"""

import hashlib
import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sandgate_router.names import Label, Port
from sandgate_router.registry.base import ClaimRequest
from sandgate_router.registry.kubernetes.objects import ClaimObject, PoolObject, parse_time

PREFIX = "sandgate.dev/"
EXPIRES_AT = PREFIX + "lease-expires-at"
LEASE_SECONDS = PREFIX + "lease-seconds"
IDLE_SECONDS = PREFIX + "idle-seconds"
MAX_AGE_SECONDS = PREFIX + "max-age-seconds"
"""On pools: the greatest age of a claim. The other two spans may stand there as well."""
CALLER = PREFIX + "caller"
HASH = PREFIX + "idempotency-hash"
PORTS = PREFIX + "ports"
REQUESTED_AT = "agents.x-k8s.io/client-first-requested-at"
CREATED_BY_LABEL = "agents.x-k8s.io/created-by"
CREATED_BY = "sandgate"
TRACE_CONTEXT = "opentelemetry.io/trace-context"

DEFAULT_LEASE_SECONDS = 3600.0
DEFAULT_IDLE_SECONDS = 600.0
DEFAULT_MAX_AGE_SECONDS = 86400.0
"""Where a pool does not say: the same as those of local pools."""

FOREVER = datetime(9999, 12, 31, tzinfo=UTC)
"""The end of a claim without one, as other clients make them."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_RESERVED = ("kubernetes.io", "k8s.io", "agents.x-k8s.io", "sandgate.dev")


@dataclass(frozen=True, slots=True)
class Spans:
    """How long claims of a pool live."""

    lease: float = DEFAULT_LEASE_SECONDS
    idle: float = DEFAULT_IDLE_SECONDS
    max_age: float = DEFAULT_MAX_AGE_SECONDS


@dataclass(frozen=True, slots=True)
class Plan:
    """A claim that is to be made."""

    namespace: Label
    name: Label
    body: Mapping[str, Any]
    hash: str
    """Tells this request, however often it is sent, from any other that has its name."""
    is_keyed: bool
    has_own_name: bool
    """Whether the caller chose the name."""


def spans_of(pool: PoolObject | None) -> Spans:
    """Return a pool's spans."""
    if pool is None:
        return Spans()
    return Spans(
        _seconds(pool.annotations, LEASE_SECONDS) or DEFAULT_LEASE_SECONDS,
        _seconds(pool.annotations, IDLE_SECONDS) or DEFAULT_IDLE_SECONDS,
        _seconds(pool.annotations, MAX_AGE_SECONDS) or DEFAULT_MAX_AGE_SECONDS,
    )


def build_plan(request: ClaimRequest, pool: PoolObject, *, version: str, now: datetime) -> Plan:
    """Return the claim that a request asks for, in this version of the API."""
    spans = spans_of(pool)
    lease = spans.lease if request.lease_seconds is None else request.lease_seconds
    idle = spans.idle if request.idle_seconds is None else request.idle_seconds
    ends = now + timedelta(seconds=min(lease, spans.max_age))
    digest = _digest(request)
    annotations = {
        REQUESTED_AT: now.isoformat(),
        EXPIRES_AT: format_instant(ends),
        LEASE_SECONDS: _text(lease),
        IDLE_SECONDS: _text(idle),
        HASH: digest,
    }
    if request.caller is not None:
        annotations[CALLER] = request.caller
    if request.ports is not None:
        annotations[PORTS] = ",".join(map(str, request.ports))
    if request.traceparent is not None and _TRACEPARENT.fullmatch(request.traceparent):
        annotations[TRACE_CONTEXT] = json.dumps({"traceparent": request.traceparent})
    name = request.name or _name(request)
    shutdown = min(ends, now + timedelta(seconds=idle))
    body = {
        "apiVersion": f"extensions.agents.x-k8s.io/{version}",
        "kind": "SandboxClaim",
        "metadata": {
            "name": name,
            "labels": {**request.labels, CREATED_BY_LABEL: CREATED_BY},
            "annotations": annotations,
        },
        "spec": {
            **_pool_reference(pool, version),
            "lifecycle": {"shutdownTime": format_second(shutdown), "shutdownPolicy": "Delete"},
        },
    }
    return Plan(
        namespace=request.namespace,
        name=name,
        body=body,
        hash=digest,
        is_keyed=request.key is not None,
        has_own_name=request.name is not None,
    )


def own_labels(claim: ClaimObject) -> dict[str, str]:
    """Return the labels that a caller gave."""
    return {key: value for key, value in claim.labels.items() if not _is_reserved(key)}


def ports_of(claim: ClaimObject) -> tuple[Port, ...] | None:
    """Return the ports that may be reached; None restricts nothing."""
    text = claim.annotations.get(PORTS)
    if text is None:
        return None
    # What cannot be read restricts to nothing: it was meant to restrict.
    return tuple(Port(int(port)) for port in text.split(",") if port.isdecimal())


def expiry_of(claim: ClaimObject) -> datetime:
    """Return the end of the lease."""
    told = parse_time(claim.annotations.get(EXPIRES_AT))
    return told or claim.shutdown_at or FOREVER


def idle_of(claim: ClaimObject) -> float | None:
    """Return how long a claim may be idle; None is for ever."""
    return _seconds(claim.annotations, IDLE_SECONDS)


def lease_of(claim: ClaimObject, spans: Spans) -> float:
    """Return the lease that a claim was made with."""
    return _seconds(claim.annotations, LEASE_SECONDS) or spans.lease


def created_of(claim: ClaimObject) -> datetime:
    """Return when a claim was asked for, to the millisecond where its maker said so."""
    told = parse_time(claim.annotations.get(REQUESTED_AT))
    # Another's clock may be wrong; the API knows the second.
    if told is not None and abs((told - claim.created_at).total_seconds()) < 60:
        return told
    return claim.created_at


def build_renewal(
    claim: ClaimObject, lease_seconds: float | None, spans: Spans, *, now: datetime
) -> Mapping[str, Any]:
    """Return the patch that has a lease end so long from now, within its greatest age."""
    seconds = lease_of(claim, spans) if lease_seconds is None else lease_seconds
    oldest = created_of(claim) + timedelta(seconds=spans.max_age)
    ends = now + timedelta(seconds=seconds)
    if lease_seconds is None:
        ends = max(ends, expiry_of(claim))
    ends = min(ends, oldest)
    shutdown, idle = ends, idle_of(claim)
    if idle is not None:
        # Renewing is no use. Only where the lease was to end it first, its last use is unknown.
        before = claim.shutdown_at
        until = now + timedelta(seconds=idle)
        if before is not None and before < expiry_of(claim).replace(microsecond=0):
            until = before
        shutdown = min(ends, until)
    return build_move(claim, shutdown, expires_at=ends)


def build_move(
    claim: ClaimObject, shutdown: datetime, *, expires_at: datetime | None = None
) -> Mapping[str, Any]:
    """Return the patch that moves a claim's end, unless the claim has changed meanwhile."""
    metadata: dict[str, Any] = {"resourceVersion": str(claim.version), "uid": claim.uid}
    if expires_at is not None:
        metadata["annotations"] = {EXPIRES_AT: format_instant(expires_at)}
    lifecycle = {"shutdownTime": format_second(shutdown), "shutdownPolicy": "Delete"}
    return {"metadata": metadata, "spec": {"lifecycle": lifecycle}}


def format_instant(instant: datetime) -> str:
    """Return an instant to the millisecond, for annotations."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def format_second(instant: datetime) -> str:
    """Return an instant as the API has it, to the second, and never too early."""
    whole = datetime.fromtimestamp(math.ceil(instant.timestamp()), UTC)
    return whole.strftime("%Y-%m-%dT%H:%M:%SZ")


def _name(request: ClaimRequest) -> Label:
    if request.key is None:
        return Label(f"c-{secrets.token_hex(10)}")
    place = "\0".join((request.caller or "", request.namespace, request.key))
    return Label(f"c-{hashlib.sha256(place.encode()).hexdigest()[:20]}")


def _digest(request: ClaimRequest) -> str:
    if request.key is None:
        return secrets.token_hex(16)
    # All but how long one waits: who asks again has less time left.
    members = [
        request.key,
        request.caller,
        request.pool,
        request.namespace,
        request.name,
        request.lease_seconds,
        request.idle_seconds,
        request.ports,
        sorted(request.labels.items()),
        request.on_empty,
    ]
    return hashlib.sha256(json.dumps(members).encode()).hexdigest()[:32]


def _pool_reference(pool: PoolObject, version: str) -> dict[str, Any]:
    if version == "v1alpha1":
        return {"sandboxTemplateRef": {"name": pool.template}, "warmpool": pool.key[1]}
    return {"warmPoolRef": {"name": pool.key[1]}}


def _seconds(annotations: Mapping[str, str], key: str) -> float | None:
    text = annotations.get(key, "")
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return None
    return float(text) or None


def _text(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def _is_reserved(key: str) -> bool:
    prefix = key.rpartition("/")[0]
    return any(prefix == taken or prefix.endswith("." + taken) for taken in _RESERVED)
