"""What clients ask first: which groups, versions and resources there are."""

from typing import Any

from support.fake_kube.kinds import EVERY, REVIEWS, SANDBOX_VERSIONS, Kind

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def describe(path: str, served: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the document at a path of discovery; None for any other path."""
    parts = path.strip("/").split("/")
    if parts in (["version"], ["healthz"], ["livez"], ["readyz"]):
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0", "platform": "linux/amd64"}
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["api", "v1"]:
        return _resources("", "v1")
    if parts == ["apis"]:
        groups = sorted({kind.group for kind in EVERY if kind.group})
        listed = [_group(group, served) for group in groups]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    if parts[0] == "apis" and len(parts) == 2 and any(k.group == parts[1] for k in EVERY):
        return {"kind": "APIGroup", "apiVersion": "v1"} | _group(parts[1], served)
    if parts[0] == "apis" and len(parts) == 3 and _serves(parts[1], parts[2], served):
        return _resources(parts[1], parts[2])
    return None


def _versions(kind: Kind, served: tuple[str, ...]) -> tuple[str, ...]:
    return served if kind.versions == SANDBOX_VERSIONS else kind.versions


def _serves(group: str, version: str, served: tuple[str, ...]) -> bool:
    return any(k.group == group and version in _versions(k, served) for k in EVERY)


def _group(group: str, served: tuple[str, ...]) -> dict[str, Any]:
    versions = _versions(next(kind for kind in EVERY if kind.group == group), served)
    rows = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": rows, "preferredVersion": rows[0]}


def _resources(group: str, version: str) -> dict[str, Any]:
    rows = []
    for kind in EVERY:
        if kind.group != group or version not in kind.versions:
            continue
        row = {
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": ["create"] if kind in REVIEWS else _VERBS,
            "shortNames": [],
        }
        rows.append(row)
        if kind.status:
            rows.append(
                row | {"name": f"{kind.plural}/status", "verbs": ["get", "patch", "update"]}
            )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": rows,
    }
