"""The controller: keeps pools warm, has claims adopt members, ends what is over.

One loop that looks at everything that changed, as the real one does: nothing is told to it
but through the store. It writes as the real one was seen to: a claim gets annotations, then
its sandbox's name, addresses and readiness in one update of its status.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from support.fake_kube.errors import ApiError
from support.fake_kube.kinds import CLAIMS, PODS, POOLS, SANDBOXES, TEMPLATES, Kind
from support.fake_kube.objects import (
    CLAIM_UID_LABEL,
    LAUNCH_LABEL,
    NAME_HASH_LABEL,
    SANDBOX_NAME_ANNOTATION,
    WARM_LABEL,
    condition,
    fnv1a,
    owned_by,
    sandbox,
)
from support.fake_kube.store import Change, Key, Obj, Store, format_time

TICK_SECONDS = 0.02
"""How often times are compared with the clock."""


class Controller:
    """Adopts, creates and ends sandboxes."""

    def __init__(self, store: Store) -> None:
        self.capacity: int | None = None
        """Sandboxes that may exist at once, as a quota on pods has it; None has no limit."""
        self.ready_seconds = 0.0
        """How long a new sandbox takes to be ready."""
        self.adopt_seconds = 0.0
        """How long it takes to answer a claim."""
        self.paused = False
        self.next_address: Callable[[], str] = _count_addresses()
        self._store = store
        self._changed = asyncio.Event()
        self._timers: set[asyncio.TimerHandle] = set()
        self._starting: set[str] = set()
        """Sandboxes, by UID, that are about to be ready."""
        self._ends: dict[Key, datetime] = {}
        """When claims end."""
        self._owned: dict[str, dict[tuple[Kind, Key], None]] = {}
        """What belongs to an owner, by its UID."""
        self._orphaned: list[str] = []
        """UIDs of owners that are gone."""
        self._dirty_sandboxes: dict[Key, None] = {}
        self._dirty_claims: dict[Key, None] = {}
        store.on_change(self._note)

    async def run(self) -> None:
        """Do all that is to be done, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._changed.wait()
            if not self._changed.is_set() and not self._is_due():
                continue
            self._changed.clear()
            if self.paused:
                continue
            if self.adopt_seconds:
                await asyncio.sleep(self.adopt_seconds)
            self.reconcile()

    def reconcile(self) -> None:
        """Bring everything one round further."""
        for step in (self._end, self._collect, self._sandboxes, self._claims, self._pools):
            step()

    def living(self) -> int:
        """Return how many sandboxes have not failed."""
        return sum(_reason(item) != "PodFailed" for item in self._store.items(SANDBOXES))

    def fail(self, namespace: str, name: str, message: str) -> None:
        """Have a sandbox's pod fail."""
        self._set_status(
            SANDBOXES,
            namespace,
            name,
            conditions=[
                condition("Ready", "False", "PodFailed", message),
                condition("Finished", "True", "PodFailed", message),
            ],
        )

    def _note(self, kind: Kind, change: Change) -> None:
        """Remember what a change has left to do."""
        item, key = change.item, _key(change.item)
        for owner in item["metadata"].get("ownerReferences") or ():
            self._owned.setdefault(owner["uid"], {})[kind, key] = None
        if change.type == "DELETED" and kind in {CLAIMS, POOLS, SANDBOXES}:
            self._orphaned.append(item["metadata"]["uid"])
        if kind is SANDBOXES:
            self._dirty_sandboxes[key] = None
            for owner in item["metadata"].get("ownerReferences") or ():
                if owner["kind"] == "SandboxClaim":
                    self._dirty_claims[key[0], owner["name"]] = None
        elif kind is CLAIMS:
            self._ends.pop(key, None)
            ends = _end(item)
            if change.type != "DELETED":
                self._dirty_claims[key] = None
                if ends is not None:
                    self._ends[key] = ends
        elif kind in {POOLS, TEMPLATES}:
            self._dirty_claims |= dict.fromkeys(_key(c) for c in self._store.items(CLAIMS))
        self._changed.set()

    def _is_due(self) -> bool:
        now = datetime.now(UTC)
        return any(ends <= now for ends in self._ends.values())

    def _end(self) -> None:
        """Delete the claims whose time is over."""
        now = datetime.now(UTC)
        for key in [key for key, ends in self._ends.items() if ends <= now]:
            self._store.delete(CLAIMS, *key)

    def _collect(self) -> None:
        """Delete what an owner left behind."""
        while self._orphaned:
            owner = self._orphaned.pop()
            for kind, key in list(self._owned.pop(owner, {})):
                item = self._store.find(kind, *key)
                if item is not None and owner in _owners(item):
                    self._store.delete(kind, *key)

    def _sandboxes(self) -> None:
        dirty, self._dirty_sandboxes = list(self._dirty_sandboxes), {}
        for key in dirty:
            item = self._store.find(SANDBOXES, *key)
            if item is None:
                continue
            suspended = item["spec"]["operatingMode"] == "Suspended"
            status = item.get("status") or {}
            if suspended and (status.get("podIPs") or "conditions" not in status):
                self._suspend(item)
            elif not suspended and not status.get("podIPs") and not _reason(item).startswith("Pod"):
                self._start(item)

    def _start(self, item: Obj) -> None:
        uid = item["metadata"]["uid"]
        if uid in self._starting:
            return
        self._starting.add(uid)
        if not self.ready_seconds:
            self._become_ready(item)
            return
        key = _key(item)
        self._set_status(
            SANDBOXES, *key, conditions=[condition("Ready", "False", "DependenciesNotReady")]
        )
        loop = asyncio.get_running_loop()
        loop.call_later(self.ready_seconds, self._become_ready, item)

    def _become_ready(self, item: Obj) -> None:
        namespace, name = _key(item)
        self._starting.discard(item["metadata"]["uid"])
        current = self._store.find(SANDBOXES, namespace, name)
        if current is None or current["metadata"]["uid"] != item["metadata"]["uid"]:
            return
        address = self.next_address()
        pod = {
            "metadata": {
                "name": name,
                "labels": {NAME_HASH_LABEL: fnv1a(name)},
                "ownerReferences": [owned_by(current)],
            },
            "spec": current["spec"]["podTemplate"]["spec"],
        }
        with contextlib.suppress(ApiError):
            self._store.create(PODS, namespace, pod)
        self._set_status(PODS, namespace, name, phase="Running", podIP=address)
        self._set_status(
            SANDBOXES,
            namespace,
            name,
            podIPs=[address],
            conditions=[
                condition("Ready", "True", "DependenciesReady"),
                condition("Suspended", "False", "NotSuspended"),
            ],
        )

    def _suspend(self, item: Obj) -> None:
        namespace, name = _key(item)
        with contextlib.suppress(ApiError):
            self._store.delete(PODS, namespace, name)
        self._set_status(
            SANDBOXES,
            namespace,
            name,
            podIPs=None,
            conditions=[
                condition("Ready", "False", "SandboxSuspended"),
                condition("Suspended", "True", "PodTerminated"),
            ],
        )

    def _claims(self) -> None:
        dirty, self._dirty_claims = list(self._dirty_claims), {}
        found = (self._store.find(CLAIMS, *key) for key in dirty)
        for claim in sorted((c for c in found if c is not None), key=self._arrival):
            self._claim(claim)
            if not (claim.get("status") or {}).get("sandbox"):
                self._dirty_claims[_key(claim)] = None  # until it has one

    def _arrival(self, claim: Obj) -> int:
        observed = (claim["metadata"].get("annotations") or {}).get("fake/arrival")
        return int(observed or claim["metadata"]["resourceVersion"])

    def _claim(self, claim: Obj) -> None:
        namespace, _ = _key(claim)
        annotations = claim["metadata"].get("annotations") or {}
        if "fake/arrival" not in annotations:
            marks = {
                "fake/arrival": claim["metadata"]["resourceVersion"],
                "agents.x-k8s.io/controller-first-observed-at": format_time(datetime.now(UTC)),
            }
            claim = self._annotate(CLAIMS, claim, marks)
        bound = self._bound(claim)
        if bound is not None:
            self._mirror(claim, bound)
            return
        if SANDBOX_NAME_ANNOTATION in annotations:
            self._refuse(claim, "SandboxMissing", "the sandbox is gone")
            return
        pool = self._store.find(POOLS, namespace, claim["spec"]["warmPoolRef"]["name"])
        if pool is None:
            self._refuse(claim, "WarmPoolNotFound", "the warm pool does not exist")
            return
        wanted = self._store.find(TEMPLATES, namespace, pool["spec"]["sandboxTemplateRef"]["name"])
        if wanted is None:
            self._refuse(claim, "TemplateNotFound", "the template does not exist")
            return
        member = self._ready_member(pool)
        if member is not None:
            self._adopt(claim, member)
        elif self._members(pool) or not self._has_room():
            self._refuse(claim, "SandboxNotReady", "no member is ready")
        else:
            self._create(claim, pool, wanted)

    def _bound(self, claim: Obj) -> Obj | None:
        named = (claim["metadata"].get("annotations") or {}).get(SANDBOX_NAME_ANNOTATION)
        name = named or claim["metadata"]["name"]
        found = self._store.find(SANDBOXES, claim["metadata"]["namespace"], name)
        if found is None:
            return None
        return found if claim["metadata"]["uid"] in _owners(found) else None

    def _adopt(self, claim: Obj, member: Obj) -> None:
        claim = self._annotate(CLAIMS, claim, {SANDBOX_NAME_ANNOTATION: member["metadata"]["name"]})
        labels = dict(member["metadata"]["labels"])
        labels.pop(WARM_LABEL)
        labels |= {CLAIM_UID_LABEL: claim["metadata"]["uid"], LAUNCH_LABEL: "warm"}
        metadata = member["metadata"] | {"labels": labels, "ownerReferences": [owned_by(claim)]}
        for owner in _owners(member):
            self._owned.get(owner, {}).pop((SANDBOXES, _key(member)), None)
        adopted = self._store.replace(SANDBOXES, *_key(member), member | {"metadata": metadata})
        self._mirror(claim, adopted)

    def _create(self, claim: Obj, pool: Obj, wanted: Obj) -> None:
        del pool
        namespace, name = _key(claim)
        item = sandbox(
            name, labels={CLAIM_UID_LABEL: claim["metadata"]["uid"], LAUNCH_LABEL: "cold"}
        )
        item["spec"]["podTemplate"] = wanted["spec"]["podTemplate"]
        item["metadata"]["ownerReferences"] = [owned_by(claim)]
        self._store.create(SANDBOXES, namespace, item)

    def _mirror(self, claim: Obj, bound: Obj) -> None:
        status = bound.get("status") or {}
        found = {"name": bound["metadata"]["name"]}
        if status.get("podIPs"):
            found["podIPs"] = status["podIPs"]
        kinds = {"Ready", "Finished"}
        conditions = [row for row in status.get("conditions") or [] if row["type"] in kinds]
        self._set_status(CLAIMS, *_key(claim), sandbox=found, conditions=conditions)

    def _refuse(self, claim: Obj, reason: str, message: str) -> None:
        if _reason(claim) != reason:
            rows = [condition("Ready", "False", reason, message)]
            self._set_status(CLAIMS, *_key(claim), conditions=rows)

    def _pools(self) -> None:
        for pool in self._store.items(POOLS):
            namespace, name = _key(pool)
            members = self._members(pool)
            for _ in range(pool["spec"]["replicas"] - len(members)):
                if not self._has_room():
                    break
                self._grow(pool)
            for surplus in members[pool["spec"]["replicas"] :]:
                self._store.delete(SANDBOXES, *_key(surplus))
            members = self._members(pool)
            ready = sum(_reason(member) == "DependenciesReady" for member in members)
            self._set_status(
                POOLS,
                namespace,
                name,
                replicas=len(members),
                readyReplicas=ready,
                observedGeneration=pool["metadata"]["generation"],
            )

    def _grow(self, pool: Obj) -> None:
        namespace, name = _key(pool)
        wanted = self._store.find(TEMPLATES, namespace, pool["spec"]["sandboxTemplateRef"]["name"])
        if wanted is None:
            return
        item = sandbox("", labels={WARM_LABEL: fnv1a(name)})
        item["spec"]["podTemplate"] = wanted["spec"]["podTemplate"]
        item["metadata"] |= {"generateName": f"{name}-", "ownerReferences": [owned_by(pool)]}
        self._store.create(SANDBOXES, namespace, item)

    def _members(self, pool: Obj) -> list[Obj]:
        owner = pool["metadata"]["uid"]
        owned = self._owned.get(owner, {})
        found = (self._store.find(SANDBOXES, *key) for kind, key in owned if kind is SANDBOXES)
        members = [item for item in found if item is not None and owner in _owners(item)]
        return sorted(members, key=lambda item: item["metadata"]["creationTimestamp"])

    def _ready_member(self, pool: Obj) -> Obj | None:
        ready = (m for m in self._members(pool) if _reason(m) == "DependenciesReady")
        return next(ready, None)

    def _has_room(self) -> bool:
        return self.capacity is None or self.living() < self.capacity

    def _annotate(self, kind: Kind, item: Obj, annotations: dict[str, str]) -> Obj:
        kept = item["metadata"].get("annotations") or {}
        metadata = item["metadata"] | {"annotations": kept | annotations}
        return self._store.replace(kind, *_key(item), item | {"metadata": metadata})

    def _set_status(self, kind: Kind, namespace: str, name: str, **members: Any) -> None:
        item = self._store.find(kind, namespace, name)
        if item is None:
            return
        before = item.get("status") or {}
        status = {k: v for k, v in (before | members).items() if v is not None}
        if _without_times(status) != _without_times(before):
            self._store.replace(kind, namespace, name, item | {"status": status}, status=True)


def _key(item: Obj) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _reason(item: Obj) -> str:
    rows = (item.get("status") or {}).get("conditions") or []
    return next((row["reason"] for row in rows if row["type"] == "Ready"), "")


def _owners(item: Obj) -> list[str]:
    return [owner["uid"] for owner in item["metadata"].get("ownerReferences") or ()]


def _end(claim: Obj) -> datetime | None:
    """Return when a claim is deleted, if ever."""
    lifecycle = claim["spec"].get("lifecycle") or {}
    ends = lifecycle.get("shutdownTime")
    if ends is None or lifecycle.get("shutdownPolicy", "Retain") == "Retain":
        return None
    return datetime.fromisoformat(ends)


def _without_times(status: dict[str, Any]) -> dict[str, Any]:
    rows = status.get("conditions") or []
    bare = [{k: v for k, v in row.items() if k != "lastTransitionTime"} for row in rows]
    return status | {"conditions": bare}


def _count_addresses() -> Callable[[], str]:
    """Return what gives every pod an address of loopback's 127.1.0.0/16 and on."""
    numbers = itertools.count(1)

    def following() -> str:
        number = next(numbers)
        return f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"

    return following
