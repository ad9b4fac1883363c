"""The claims of the cluster as one shared watch tells them, and who waits for a change.

Every replica sees all claims, whoever made them. What happened to one follows from two states
in a row, so each replica tells the same events, its own claims included.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec

from sandgate_router.names import Label
from sandgate_router.registry.base import Claim, ClaimState, Event, EventKind
from sandgate_router.registry.kubernetes.objects import (
    BadObject,
    ClaimObject,
    Key,
    parse_claim,
)
from sandgate_router.registry.kubernetes.outcome import judge
from sandgate_router.registry.kubernetes.plan import (
    CALLER,
    created_of,
    expiry_of,
    idle_of,
    own_labels,
    ports_of,
)
from sandgate_router.registry.kubernetes.table import Entry, SandboxTable

EARLY = timedelta(seconds=1)
"""Clocks differ: a claim that is gone so shortly before its end has ended by it."""

log = logging.getLogger("sandgate.registry")


@dataclass(slots=True, eq=False)
class Held:
    """A claim as it is known."""

    claim: ClaimObject
    told_ready: bool = False
    told_failed: bool = False


class ClaimTable:
    """The claims of one cluster."""

    def __init__(self, sandboxes: SandboxTable) -> None:
        """Know none; look up in `sandboxes` what they hold."""
        self._sandboxes = sandboxes
        self._held: dict[Key, Held] = {}
        self._ended: dict[str, None] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._listeners: list[Callable[[Event], None]] = []
        self._ends: list[Callable[[ClaimObject], None]] = []
        self._learned: list[Callable[[ClaimObject], None]] = []
        self._is_listed = set[str]()
        sandboxes.on_change(self._sandbox_changed)

    def __len__(self) -> int:
        return len(self._held)

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Have `listener` called for each event."""
        self._listeners.append(listener)

    def on_end(self, listener: Callable[[ClaimObject], None]) -> None:
        """Have `listener` called for each claim that has ended."""
        self._ends.append(listener)

    def on_learn(self, listener: Callable[[ClaimObject], None]) -> None:
        """Have `listener` called for each claim that has become known or changed."""
        self._learned.append(listener)

    def tell(self, event: Event) -> None:
        """Tell an event to those who listen."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("registry.listener_failed")

    def get(self, key: Key) -> ClaimObject | None:
        """Return a claim as it is known."""
        held = self._held.get(key)
        return None if held is None else held.claim

    def claims(self) -> list[Claim]:
        """Return the live claims, oldest first."""
        live = (held.claim for held in self._held.values() if not held.claim.is_ending)
        return sorted((self.build(claim) for claim in live), key=lambda c: (c.created_at, c.name))

    def count(self) -> tuple[Counter[Key], Counter[Key]]:
        """Return how many claims of each pool hold a sandbox, and how many wait for one."""
        holding, waiting = Counter[Key](), Counter[Key]()
        for held in self._held.values():
            claim = held.claim
            counter = waiting if judge(claim) == "pending" else holding
            counter[claim.key[0], Label(claim.pool)] += 1
        return holding, waiting

    def build(self, claim: ClaimObject, *, ended: bool = False) -> Claim:
        """Return a claim as everyone outside knows it."""
        entry = self._entry(claim)
        return Claim(
            name=claim.key[1],
            namespace=claim.key[0],
            pool=claim.pool,
            sandbox=Label(claim.sandbox),
            uid="" if entry is None else entry.uid,
            launch="warm" if entry is None else entry.launch,
            isolation="unknown",
            state="ended" if ended else _state(claim, entry),
            created_at=created_of(claim),
            expires_at=expiry_of(claim),
            labels=own_labels(claim),
            ports=ports_of(claim),
            idle_seconds=idle_of(claim),
            caller=claim.annotations.get(CALLER),
            reason=_reason(claim) if judge(claim) == "failed" else None,
        )

    def signal(self, uid: str) -> "asyncio.Future[None]":
        """Return what is done once a claim of this UID, or its sandbox, changes from now on."""
        future = self._waiting.get(uid)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._waiting[uid] = future
        return future

    def wake_all(self) -> None:
        """Have everyone who waits look again."""
        for uid in list(self._waiting):
            self._wake(uid)

    def is_ended(self, uid: str) -> bool:
        """Tell whether a claim of this UID is known to be gone."""
        return uid in self._ended

    def apply(self, kind: str, item: msgspec.Raw) -> None:
        """Take an event of the watch."""
        try:
            claim = parse_claim(item)
        except BadObject as error:
            log.warning("kube.bad_object", extra={"reason": str(error)})
            return
        if kind == "DELETED":
            self.forget(claim.key, claim.uid)
        else:
            self.learn(claim)

    def replace(self, items: list[bytes], *, version: str, namespace: str) -> None:
        """Take a whole list: what is not in it, and not newer than it, has ended."""
        first = namespace not in self._is_listed
        self._is_listed.add(namespace)
        listed = set[str]()
        for item in items:
            try:
                claim = parse_claim(item)
            except BadObject as error:
                log.warning("kube.bad_object", extra={"reason": str(error)})
                continue
            listed.add(claim.uid)
            # What was there before us is no news.
            self.learn(claim, silently=first)
        newest = int(version) if version.isdecimal() else 0
        for held in list(self._held.values()):
            claim = held.claim
            if claim.uid in listed or claim.version > newest > 0:
                continue
            if namespace in {"", claim.key[0]}:
                self.forget(claim.key, claim.uid)

    def learn(self, claim: ClaimObject, *, silently: bool = False) -> None:
        """Take a claim as it stood in its version."""
        if claim.uid in self._ended:
            return
        held = self._held.get(claim.key)
        if held is not None and held.claim.uid != claim.uid:
            if claim.version < held.claim.version:
                return
            self.forget(held.claim.key, held.claim.uid)
            held = None
        if held is None:
            held = self._held[claim.key] = Held(claim)
            before = None
        elif claim.version < held.claim.version:
            return
        else:
            before, held.claim = held.claim, claim
        if silently:
            state = judge(claim)
            held.told_ready, held.told_failed = state != "pending", state == "failed"
        else:
            self._tell_changes(held, before)
        if claim.is_ending:
            self._end(claim)
        for listener in self._learned:
            listener(claim)
        self._wake(claim.uid)

    def forget(self, key: Key, uid: str) -> None:
        """Take the end of a claim."""
        self._ended[uid] = None
        if len(self._ended) > 20_000:
            self._ended.pop(next(iter(self._ended)))
        held = self._held.get(key)
        if held is not None and held.claim.uid == uid:
            del self._held[key]
            self._end(held.claim)
            if held.told_ready:
                kind, reason = _end_of(held.claim)
                self._tell(kind, self.build(held.claim, ended=True), reason)
        self._wake(uid)

    def _end(self, claim: ClaimObject) -> None:
        for listener in self._ends:
            listener(claim)

    def _tell_changes(self, held: Held, before: ClaimObject | None) -> None:
        claim, state = held.claim, judge(held.claim)
        if state == "ready" and not held.told_ready and self._entry(claim) is not None:
            held.told_ready = True
            self._tell("claim.created", self.build(claim))
        if held.told_ready and before is not None and expiry_of(before) != expiry_of(claim):
            self._tell("claim.renewed", self.build(claim))
        if held.told_ready and state == "failed" and not held.told_failed:
            held.told_failed = True
            self._tell("claim.failed", self.build(claim), _reason(claim))

    def _sandbox_changed(self, entry: Entry) -> None:
        if not entry.claim:
            return
        held = self._held.get((entry.key[0], Label(entry.claim_name)))
        if held is not None and held.claim.uid == entry.claim:
            self._tell_changes(held, None)
            self._wake(entry.claim)

    def _entry(self, claim: ClaimObject) -> Entry | None:
        return self._sandboxes.of_claim(claim.uid)

    def _wake(self, uid: str) -> None:
        future = self._waiting.pop(uid, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _tell(self, kind: EventKind, claim: Claim, reason: str | None = None) -> None:
        now = datetime.now(UTC)
        self.tell(
            Event(kind, now, claim.namespace, claim.pool, claim=replace(claim), reason=reason)
        )


def _state(claim: ClaimObject, entry: Entry | None) -> ClaimState:
    if claim.is_ending:
        return "ended"
    if entry is not None and entry.standing == "suspended":
        return "suspended"
    return judge(claim)


def _reason(claim: ClaimObject) -> str:
    return f"{claim.reason}: {claim.message}" if claim.message else claim.reason


def _end_of(claim: ClaimObject) -> tuple[EventKind, str]:
    """Return what ended a claim that is gone, and why."""
    ends = claim.shutdown_at
    if ends is None or datetime.now(UTC) < ends - EARLY:
        return "claim.released", "released"
    return "claim.expired", "lease" if expiry_of(claim) <= ends else "idle"
