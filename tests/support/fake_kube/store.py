"""What the API server keeps: objects, their versions, and the history that watches read.

An object is never changed in place: each write stores another one. So the history, watches
and whoever listens may hold on to what they were given.
"""

import copy
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from support.fake_kube.errors import (
    already_exists,
    bad_request,
    conflict,
    expired,
    invalid,
    not_found,
)
from support.fake_kube.kinds import STORED, Kind
from support.fake_kube.schema import apply_schema

Obj = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""

HISTORY = 5000
"""Changes of a kind that are remembered; older versions have expired."""


@dataclass(frozen=True, slots=True)
class Change:
    """One step of an object's history."""

    version: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    item: Obj
    before: Obj | None


class Store:
    """All objects."""

    def __init__(self) -> None:
        self.version = 1000
        self._items: dict[Kind, dict[Key, Obj]] = {kind: {} for kind in STORED}
        self._history: dict[Kind, list[Change]] = {kind: [] for kind in STORED}
        self._oldest = dict.fromkeys(STORED, self.version)
        self._listeners: list[Callable[[Kind, Change], None]] = []

    def on_change(self, listener: Callable[[Kind, Change], None]) -> Callable[[], None]:
        """Have `listener` called for each change; return what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def items(self, kind: Kind, namespace: str = "") -> list[Obj]:
        """Return the objects of a kind, by namespace and name."""
        found = self._items[kind]
        return [found[key] for key in sorted(found) if namespace in {"", key[0]}]

    def get(self, kind: Kind, namespace: str, name: str) -> Obj:
        item = self._items[kind].get((namespace, name))
        if item is None:
            raise not_found(kind, name)
        return item

    def find(self, kind: Kind, namespace: str, name: str) -> Obj | None:
        return self._items[kind].get((namespace, name))

    def since(self, kind: Kind, version: int) -> list[Change]:
        """Return what happened after a version; raise 410 when that is forgotten."""
        if version < self._oldest[kind]:
            raise expired(version, self._oldest[kind])
        return [change for change in self._history[kind] if change.version > version]

    def forget_history(self) -> None:
        """Have every version but the newest be too old."""
        self.version += 1
        for kind in STORED:
            self._history[kind].clear()
            self._oldest[kind] = self.version

    def create(self, kind: Kind, namespace: str, item: Obj) -> Obj:
        """Store a new object; its status is left out where that is a resource of its own."""
        metadata = dict(item.get("metadata") or {})
        name = metadata.get("name") or self._generate(metadata.pop("generateName", ""))
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        if metadata.get("namespace") not in {None, "", namespace}:
            raise bad_request("the namespace of the object does not match the namespace of the URL")
        metadata |= {
            "name": name,
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "creationTimestamp": format_time(datetime.now(UTC)),
        }
        metadata.pop("deletionTimestamp", None)
        if kind.namespaced:
            metadata["namespace"] = namespace
        stored: Obj = {"apiVersion": kind.api_version(kind.versions[0]), "kind": kind.kind}
        stored |= {k: v for k, v in item.items() if k not in {*stored, "metadata"}}
        if kind.status:
            stored.pop("status", None)
        stored["metadata"] = metadata
        stored = self._checked(kind, stored)
        if (namespace, name) in self._items[kind]:
            raise already_exists(kind, name)
        return self._put(kind, (namespace, name), stored, None)

    def replace(
        self, kind: Kind, namespace: str, name: str, item: Obj, *, status: bool = False
    ) -> Obj:
        """Store another state of an object: all but its status, or its status alone."""
        before = self.get(kind, namespace, name)
        self._check_generation(kind, before, item.get("metadata") or {})
        if status:
            stored = dict(before)
            stored.pop("status", None)
            if "status" in item:
                stored["status"] = copy.deepcopy(item["status"])
        else:
            stored = copy.deepcopy(item)
            if kind.status:
                stored.pop("status", None)
                if "status" in before:
                    stored["status"] = before["status"]
        stored["metadata"] = self._next_metadata(before, stored["metadata"])
        stored |= {"apiVersion": before["apiVersion"], "kind": before["kind"]}
        stored = self._checked(kind, stored)
        if stored == before:
            return before  # what changes nothing makes no new version
        if stored.get("spec") != before.get("spec"):
            stored["metadata"] = stored["metadata"] | {
                "generation": before["metadata"]["generation"] + 1
            }
        if self._may_end(stored):
            return self._remove(kind, (namespace, name), stored, before)
        return self._put(kind, (namespace, name), stored, before)

    def delete(self, kind: Kind, namespace: str, name: str, options: Obj | None = None) -> Obj:
        """Delete an object, or mark it where finalizers hold it."""
        before = self.get(kind, namespace, name)
        wanted = (options or {}).get("preconditions") or {}
        for member in ("uid", "resourceVersion"):
            if wanted.get(member) not in {None, before["metadata"][member]}:
                found = before["metadata"][member]
                raise conflict(
                    kind,
                    name,
                    f"Precondition failed: {member} in precondition: {wanted[member]},"
                    f" {member} in object meta: {found}",
                )
        if before["metadata"].get("finalizers"):
            now = format_time(datetime.now(UTC))
            marked = before["metadata"] | {"deletionTimestamp": now}
            if "deletionTimestamp" in before["metadata"]:
                return before
            return self._put(kind, (namespace, name), before | {"metadata": marked}, before)
        return self._remove(kind, (namespace, name), before, before)

    def _generate(self, prefix: str) -> str:
        if not prefix:
            raise bad_request("name or generateName is required")
        return prefix + uuid.uuid4().hex[:10]  # enough that none comes twice

    def _check_generation(self, kind: Kind, before: Obj, metadata: Obj) -> None:
        name = before["metadata"]["name"]
        if metadata.get("resourceVersion") not in {
            None,
            "",
            before["metadata"]["resourceVersion"],
        }:
            raise conflict(kind, name)
        if metadata.get("uid") not in {None, before["metadata"]["uid"]}:
            raise conflict(
                kind,
                name,
                f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta:"
                f" {before['metadata']['uid']}",
            )

    def _next_metadata(self, before: Obj, wanted: Obj) -> Obj:
        kept = before["metadata"]
        metadata = dict(wanted)
        for member in ("name", "namespace", "uid", "creationTimestamp", "generation"):
            if member in kept:
                metadata[member] = kept[member]
        metadata["resourceVersion"] = kept["resourceVersion"]
        if "deletionTimestamp" in kept:
            metadata["deletionTimestamp"] = kept["deletionTimestamp"]
        else:
            metadata.pop("deletionTimestamp", None)
        return {key: value for key, value in metadata.items() if value is not None}

    def _checked(self, kind: Kind, item: Obj) -> Obj:
        stored, faults = apply_schema(kind.schema, item)
        if faults:
            raise invalid(kind, item["metadata"]["name"], faults)
        return stored

    def _may_end(self, item: Obj) -> bool:
        metadata = item["metadata"]
        return "deletionTimestamp" in metadata and not metadata.get("finalizers")

    def _put(self, kind: Kind, key: Key, item: Obj, before: Obj | None) -> Obj:
        stored = self._numbered(item)
        self._items[kind][key] = stored
        self._tell(kind, Change(self.version, "MODIFIED" if before else "ADDED", stored, before))
        return stored

    def _remove(self, kind: Kind, key: Key, item: Obj, before: Obj) -> Obj:
        del self._items[kind][key]
        stored = self._numbered(item)
        self._tell(kind, Change(self.version, "DELETED", stored, before))
        return stored

    def _numbered(self, item: Obj) -> Obj:
        self.version += 1
        return item | {"metadata": item["metadata"] | {"resourceVersion": str(self.version)}}

    def _tell(self, kind: Kind, change: Change) -> None:
        history = self._history[kind]
        history.append(change)
        if len(history) > HISTORY:
            self._oldest[kind] = history[HISTORY // 2].version
            del history[: HISTORY // 2 + 1]
        for listener in list(self._listeners):
            listener(kind, change)


def format_time(instant: datetime) -> str:
    """Return a time as the API writes it, to the second."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
