"""The promises that every registry keeps, and the values that pass over its boundary.

A registry knows pools, claims and endpoints. The relay asks it one thing on the hot path,
`endpoint()`, which answers from memory. All else may take its time.

Promises:

* A claim takes its member in one step: no two claims ever hold the same sandbox.
* A sandbox that was claimed is destroyed at its end and never handed out again.
* The endpoint leaves the table, and `gone` is called, before the sandbox dies, so that no
  request is ever sent to a dying or recycled address.
* `release` is idempotent: releasing twice, or what never was, succeeds and changes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from sandgate_router.names import DEFAULT_PORT, Label, Port
from sandgate_router.target import Target

Isolation = Literal["bubblewrap", "none", "unknown"]
ClaimState = Literal["pending", "ready", "suspended", "failed", "ended"]
EventKind = Literal[
    "claim.created",
    "claim.renewed",
    "claim.released",
    "claim.expired",
    "claim.failed",
    "pool.changed",
]
Launch = Literal["warm", "cold"]
OnEmpty = Literal["wait", "fail", "cold"]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Endpoint:
    """Where one port of one generation of a sandbox is dialled.

    Compared by identity: a registry keeps one object per port and generation, and the
    connection pool keys on it, so a recycled address never meets an old connection.
    """

    uid: str | None
    """The sandbox's UID; None where the registry knows none."""
    name: str
    """`namespace/id`, as sent to the runtime in X-Sandbox-Expect-Name."""
    host: str = ""
    """An IP address to dial by TCP; empty for a unix socket."""
    port: int = 0
    path: str = ""
    """A unix socket's path; empty for TCP."""
    relay_port: int | None = None
    """Behind `path` stands a relay: ask it for this port first (2 bytes, big-endian)."""
    last_end: float | None = None
    """When the relay last ended an exchange or a dial, on its clock; all else never changes."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a caller wants: a member of a pool, under a lease."""

    pool: str
    namespace: Label
    name: Label | None = None
    """The claim's name; None has one generated."""
    lease_seconds: float | None = None
    """None takes the pool's."""
    idle_seconds: float | None = None
    """Ends the claim after so long without traffic or a running command; None takes the pool's."""
    ports: tuple[Port, ...] | None = None
    """The ports that may be reached, ascending; None restricts nothing."""
    caller: str | None = None
    """Who claims, by the name in the caller file; None where callers have no names."""
    labels: Mapping[str, str] = field(default_factory=dict)
    wait_seconds: float = 30.0
    on_empty: OnEmpty = "wait"
    key: str | None = None
    """The caller's Idempotency-Key; used by registries that find claims by it themselves."""
    traceparent: str | None = field(default=None, compare=False)
    """The trace that the request belongs to (W3C Trace Context)."""


@dataclass(slots=True)
class Claim:
    """A lease on a sandbox."""

    name: Label
    namespace: Label
    pool: str
    sandbox: Label
    """The sandbox's id, as sent in X-Sandbox-ID."""
    uid: str
    launch: Launch
    isolation: Isolation
    state: ClaimState
    created_at: datetime
    expires_at: datetime
    labels: Mapping[str, str]
    port: Port = DEFAULT_PORT
    ports: tuple[Port, ...] | None = None
    idle_seconds: float | None = None
    caller: str | None = None
    """Who made the claim; its rights over it are decided in front of the registry."""
    reason: str | None = None
    """Why the claim failed; None while it has not."""
    timings: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Milliseconds of each stage of the claim."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool as it stands."""

    name: str
    namespace: Label
    warm: int
    """Members that are to stand ready."""
    max: int | None
    """Members at most, claimed ones and ones being started included; None where nobody knows."""
    ready: int
    claimed: int
    waiting: int
    hit_rate: float | None
    """Share of claims that a ready member served at once; None before the first."""
    isolation: Isolation
    last_error: str | None
    starting: int = field(default=0, compare=False)
    """Members that are being started, as far as the registry knows; no change that is told."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a claim or a pool, as it stands afterwards."""

    kind: EventKind
    at: datetime
    namespace: Label
    pool: str
    claim: Claim | None = None
    """A copy; None where the event is a pool's."""
    status: PoolStatus | None = None
    """None where the event is a claim's."""
    reason: str | None = None
    """Why, for those who watch: `lease`, `idle`, `released`, `shutdown`, or what a sandbox died
    of."""


@dataclass(frozen=True, slots=True)
class RegistryHealth:
    """Whether a registry knows what it has to know."""

    is_ready: bool = True
    """Whether everything was learned once. What is known stays true, so it never goes back."""
    fault: str | None = None
    """What keeps news away, in words for an operator; None while nothing does."""


class Traffic(Protocol):
    """What the relay knows of the use of endpoints; asked before an idle claim ends."""

    def is_busy(self, endpoint: Endpoint) -> bool:
        """Tell whether an exchange or a tunnel with this endpoint is under way."""

    def last_end(self, endpoint: Endpoint) -> float | None:
        """Return when the last one ended, on the clock of the event loop; None before the first."""


class Registry(Protocol):
    """What knows pools, claims and endpoints."""

    @property
    def keeps_keys(self) -> bool:
        """Whether `claim` finds the claim of a request's key by itself, on every replica."""

    def endpoint(self, target: Target) -> Endpoint | None:
        """Return the live endpoint of `target` from memory, or None.

        Raise NotAllowedHere for a port that this kind never serves.
        """

    async def find(self, target: Target) -> Endpoint | None:
        """Ask once more after a miss, within a second; None when there is none.

        A registry that knows why there is none raises the GatewayError that says it.
        """

    def subscribe(self, gone: Callable[[Endpoint], None]) -> None:
        """Have `gone` called for each endpoint that leaves the table."""

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Have `listener` called for each event, in the order in which they happen."""

    def watch(self, traffic: Traffic) -> None:
        """Learn from `traffic` which claims are idle; without it none ever is."""

    def health(self) -> RegistryHealth:
        """Return whether it knows what it has to know."""

    async def start(self) -> None:
        """Begin to fill the pools; raise when the registry can never work here."""

    async def close(self) -> None:
        """End every sandbox that this registry started; one of a cluster starts none."""

    async def claim(self, request: ClaimRequest) -> Claim:
        """Take a ready member.

        Raise PoolNotFound, PoolExhausted, ClaimExists, or QuotaExceeded.
        """

    async def find_claim(self, namespace: Label, name: Label) -> Claim | None:
        """Return a live claim, whichever replica has made it; None when there is none."""

    async def renew(
        self, namespace: Label, name: Label, lease_seconds: float | None, *, uid: str | None = None
    ) -> Claim:
        """Have a live claim end so long from now, never beyond its pool's greatest age.

        None takes the lease that it was made with, and never makes it end earlier than it
        would. A claim that failed is returned as it is.
        Raise ClaimNotFound, also when its sandbox is not the one with this UID.
        """

    async def release(self, namespace: Label, name: Label, *, uid: str | None = None) -> None:
        """End a claim and its sandbox, unless that is another than the one with this UID."""

    def claims(self) -> list[Claim]:
        """Return the live claims, oldest first."""

    def pools(self) -> list[PoolStatus]:
        """Return the pools as they stand, by namespace and name."""

    async def resize(
        self, namespace: Label, pool: str, *, warm: int | None, max_members: int | None
    ) -> PoolStatus:
        """Set how many members stand ready, and how many there may be; None leaves as it is.

        Raise PoolNotFound, InvalidRequest, or NotImplementedHere.
        """
