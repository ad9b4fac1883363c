"""What is read of the objects of a cluster: bytes in, checked values out. Pure.

Only the members that matter are decoded, and nothing of an object is kept but these values:
a Sandbox holds a whole pod's description, of which there may be tens of thousands.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeVar

import msgspec

from sandgate_router.names import Label, parse_label
from sandgate_router.registry.base import Launch

WARM_LABEL = "agents.x-k8s.io/warm-pool-sandbox"
"""On members of a pool that no claim holds; removed when one does."""

LAUNCH_LABEL = "agents.x-k8s.io/launch-type"
CLAIM_KIND = "SandboxClaim"

Key = tuple[Label, Label]
"""A namespace and a name in it."""

Standing = Literal["ready", "starting", "suspended", "ended", "unclaimed", "prohibited"]
"""What may be done with a sandbox; only one that is `ready` is dialled."""


Found = TypeVar("Found")


class BadObject(ValueError):
    """An object that cannot be what it is said to be."""


class _Owner(msgspec.Struct, rename="camel"):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class _PodSpec(msgspec.Struct, rename="camel"):
    host_network: bool | None = None


class _PodTemplate(msgspec.Struct, rename="camel"):
    spec: _PodSpec | None = None


class _SandboxSpec(msgspec.Struct, rename="camel"):
    pod_template: _PodTemplate | None = None
    operating_mode: str = "Running"
    replicas: int | None = None
    """0 is what `v1alpha1` has for `Suspended`."""


class _SandboxStatus(msgspec.Struct, rename="camel"):
    pod_ips: list[str] | None = msgspec.field(name="podIPs", default=None)
    conditions: list[_Condition] | None = None


class _Sandbox(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    spec: _SandboxSpec | None = None
    status: _SandboxStatus | None = None


class _Named(msgspec.Struct, rename="camel"):
    name: str = ""


class _Lifecycle(msgspec.Struct, rename="camel"):
    shutdown_time: str | None = None


class _ClaimSpec(msgspec.Struct, rename="camel"):
    warm_pool_ref: _Named | None = None
    warmpool: str = ""
    lifecycle: _Lifecycle | None = None


class _ClaimStatus(msgspec.Struct, rename="camel"):
    sandbox: _Named | None = None
    conditions: list[_Condition] | None = None


class _Claim(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    spec: _ClaimSpec | None = None
    status: _ClaimStatus | None = None


class _PoolSpec(msgspec.Struct, rename="camel"):
    replicas: int | None = None
    sandbox_template_ref: _Named | None = None


class _PoolStatus(msgspec.Struct, rename="camel"):
    ready_replicas: int = 0
    observed_generation: int | None = None


class _Pool(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    spec: _PoolSpec | None = None
    status: _PoolStatus | None = None


_SANDBOXES = msgspec.json.Decoder(_Sandbox)
_CLAIMS = msgspec.json.Decoder(_Claim)
_POOLS = msgspec.json.Decoder(_Pool)


@dataclass(frozen=True, slots=True)
class SandboxObject:
    """A Sandbox as it stands in one version."""

    key: Key
    uid: str
    version: int
    standing: Standing
    reason: str
    """The API's word for why it is not ready; empty when it is."""
    addresses: tuple[str, ...]
    claim: str
    """The UID of the claim that holds it; empty for none."""
    claim_name: str
    launch: Launch


@dataclass(frozen=True, slots=True)
class ClaimObject:
    """A SandboxClaim as it stands in one version."""

    key: Key
    uid: str
    version: int
    pool: str
    sandbox: str
    """The name of its sandbox; empty until it has one."""
    is_ready: bool
    reason: str
    message: str
    is_finished: bool
    """Whether its sandbox has ended by itself."""
    is_ending: bool
    created_at: datetime
    shutdown_at: datetime | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PoolObject:
    """A SandboxWarmPool as it stands in one version."""

    key: Key
    uid: str
    version: int
    replicas: int
    ready: int
    template: str
    annotations: Mapping[str, str]


def parse_sandbox(content: bytes | msgspec.Raw) -> SandboxObject:
    """Return a Sandbox; raise BadObject."""
    found = _decode(_SANDBOXES, content)
    metadata, status = found.metadata, found.status or _SandboxStatus()
    labels = metadata.labels or {}
    owner = next((o for o in metadata.owner_references or () if o.kind == CLAIM_KIND), _Owner())
    standing, reason = _stand(found, status)
    return SandboxObject(
        key=_key(metadata),
        uid=metadata.uid,
        version=_version(metadata),
        standing=standing,
        # A handful of words for tens of thousands of objects.
        reason=sys.intern(reason),
        addresses=tuple(status.pod_ips or ()),
        claim=owner.uid,
        claim_name=owner.name,
        launch="cold" if labels.get(LAUNCH_LABEL) == "cold" else "warm",
    )


def parse_claim(content: bytes | msgspec.Raw) -> ClaimObject:
    """Return a SandboxClaim; raise BadObject."""
    found = _decode(_CLAIMS, content)
    metadata, spec = found.metadata, found.spec or _ClaimSpec()
    status = found.status or _ClaimStatus()
    ready = _condition(status.conditions, "Ready")
    finished = _condition(status.conditions, "Finished")
    told = finished if finished.status == "True" else ready
    lifecycle = spec.lifecycle or _Lifecycle()
    return ClaimObject(
        key=_key(metadata),
        uid=metadata.uid,
        version=_version(metadata),
        pool=spec.warm_pool_ref.name if spec.warm_pool_ref is not None else spec.warmpool,
        sandbox="" if status.sandbox is None else status.sandbox.name,
        is_ready=ready.status == "True",
        reason=told.reason,
        message=told.message,
        is_finished=finished.status == "True",
        is_ending=metadata.deletion_timestamp is not None,
        created_at=parse_time(metadata.creation_timestamp) or datetime.now(UTC),
        shutdown_at=parse_time(lifecycle.shutdown_time),
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
    )


def parse_pool(content: bytes | msgspec.Raw) -> PoolObject:
    """Return a SandboxWarmPool; raise BadObject."""
    found = _decode(_POOLS, content)
    metadata, spec = found.metadata, found.spec or _PoolSpec()
    status = found.status or _PoolStatus()
    template = spec.sandbox_template_ref or _Named()
    return PoolObject(
        key=_key(metadata),
        uid=metadata.uid,
        version=_version(metadata),
        replicas=1 if spec.replicas is None else spec.replicas,
        ready=status.ready_replicas,
        template=template.name,
        annotations=metadata.annotations or {},
    )


def parse_time(text: str | None) -> datetime | None:
    """Return an instant of the API (RFC 3339); None for none, and for what is none."""
    try:
        return None if not text else datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None


def _stand(found: _Sandbox, status: _SandboxStatus) -> tuple[Standing, str]:
    spec = found.spec or _SandboxSpec()
    ready = _condition(status.conditions, "Ready")
    if found.metadata.deletion_timestamp is not None:
        return "ended", "Deleting"
    finished = _condition(status.conditions, "Finished")
    if finished.status == "True" or ready.reason == "SandboxExpired":
        return "ended", finished.reason or ready.reason
    if WARM_LABEL in (found.metadata.labels or {}):
        return "unclaimed", ""
    if spec.operating_mode == "Suspended" or spec.replicas == 0:
        return "suspended", "SandboxSuspended"
    template = spec.pod_template or _PodTemplate()
    if template.spec is not None and template.spec.host_network:
        # Its address is the node's, where the kubelet and node ports listen.
        return "prohibited", "HostNetwork"
    if ready.status == "True" and status.pod_ips:
        return "ready", ""
    return "starting", ready.reason or "DependenciesNotReady"


def _condition(conditions: list[_Condition] | None, kind: str) -> _Condition:
    for condition in conditions or ():
        if condition.type == kind:
            return condition
    return _Condition(kind)


def _key(metadata: _Metadata) -> Key:
    try:
        return parse_label(metadata.namespace.encode()), parse_label(metadata.name.encode())
    except ValueError as error:
        raise BadObject(f"{metadata.namespace}/{metadata.name} is no pair of labels") from error


def _version(metadata: _Metadata) -> int:
    # Numbers that grow: etcd's are, and since 1.35 the API promises it.
    text = metadata.resource_version
    return int(text) if text.isascii() and text.isdecimal() else 0


def _decode(decoder: "msgspec.json.Decoder[Found]", content: bytes | msgspec.Raw) -> Found:
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadObject(str(error)) from error
