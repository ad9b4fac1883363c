"""Objects as tests and the controller write them."""

from datetime import UTC, datetime
from typing import Any

from support.fake_kube.store import Obj, format_time

WARM_LABEL = "agents.x-k8s.io/warm-pool-sandbox"
CLAIM_UID_LABEL = "agents.x-k8s.io/claim-uid"
LAUNCH_LABEL = "agents.x-k8s.io/launch-type"
NAME_HASH_LABEL = "agents.x-k8s.io/sandbox-name-hash"
SANDBOX_NAME_ANNOTATION = "agents.x-k8s.io/sandbox-name"
POD_SPEC: dict[str, Any] = {"containers": [{"name": "runtime", "image": "runtime"}]}


def template(name: str = "python", **pod_spec: Any) -> Obj:
    return {
        "metadata": {"name": name},
        "spec": {"podTemplate": {"spec": POD_SPEC | pod_spec}},
    }


def warm_pool(name: str = "python", *, replicas: int = 1, template: str = "python") -> Obj:
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": template}},
    }


def claim(name: str, *, pool: str = "python", **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"warmPoolRef": {"name": pool}} | spec}


def sandbox(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> Obj:
    metadata: dict[str, Any] = {"name": name}
    if labels:
        metadata["labels"] = labels
    return {"metadata": metadata, "spec": {"podTemplate": {"spec": POD_SPEC}} | spec}


def owned_by(owner: Obj) -> dict[str, Any]:
    """Return the reference that makes an object end with its owner."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": format_time(datetime.now(UTC)),
    }


def fnv1a(text: str) -> str:
    """Return FNV-1a of 32 bits as 8 hex digits: the hash in names' labels."""
    number = 0x811C9DC5
    for byte in text.encode():
        number = ((number ^ byte) * 0x01000193) & 0xFFFFFFFF
    return f"{number:08x}"
