"""Live claims, what each holds, and the table of endpoints.

Every change is one synchronous step. A sandbox is in the table exactly while its claim is
`ready`; when it leaves, listeners hear of it before anything is done to the sandbox.

The time that a laptop sleeps counts for a lease. It does not for the event loop's timers, so
these end a lease on the moment while the machine is awake, and a look at all of them each second
ends those that are over without their timer knowing.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sandgate_router.errors import ClaimExists, NotAllowedHere, QuotaExceeded
from sandgate_router.names import Label, Port
from sandgate_router.registry.base import Claim, ClaimRequest, Endpoint, EventKind, Launch
from sandgate_router.registry.local.announce import Announcer
from sandgate_router.registry.local.member import Member
from sandgate_router.registry.local.pool import Pool
from sandgate_router.target import Target

LOOK_SECONDS = 1.0
"""How often all leases are looked at: 10,000 of them take half a millisecond."""

Key = tuple[Label, Label]
"""A namespace and a name in it."""


def boot_time() -> float:
    """Return the seconds since the machine started, its sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True, eq=False)
class Lease:
    """A claim with what it holds; times are those of the leases' clock."""

    claim: Claim
    pool: Pool
    member: Member
    seconds: float
    """The lease that it was made with."""
    born: float
    ends_by: float
    """When it ends at the latest, however often it is renewed."""
    ends: float = 0.0
    """When it ends unless it is renewed."""
    expiry: asyncio.TimerHandle | None = None
    ending: asyncio.Task[None] | None = None

    @property
    def key(self) -> Key:
        """The claim's name."""
        return self.claim.namespace, self.claim.name

    @property
    def is_live(self) -> bool:
        """Whether its sandbox can be used."""
        return self.claim.state == "ready"


class Leases:
    """All leases of one registry."""

    def __init__(
        self,
        announcer: Announcer,
        *,
        end: Callable[[Pool, Member], asyncio.Task[None]],
        clock: Callable[[], float] = boot_time,
    ) -> None:
        """Take what hears of changes, and what ends a sandbox."""
        self._announcer = announcer
        self._end = end
        self._clock = clock
        self._by_name: dict[Key, Lease] = {}
        self._by_sandbox: dict[Key, Lease] = {}
        self._under_way = set[Key]()
        self._held = Counter[Label]()

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, key: Key) -> Lease | None:
        """Return the lease of this name."""
        return self._by_name.get(key)

    def endpoint(self, target: Target) -> Endpoint | None:
        """Return the endpoint of a claimed sandbox.

        Raises:
            NotAllowedHere: the claim does not have the port, or the sandbox cannot serve it.
        """
        lease = self._by_sandbox.get((target.namespace, target.sandbox))
        if lease is None:
            return None
        ports = lease.claim.ports
        if ports is not None and target.port not in ports:
            raise NotAllowedHere(_outside(target.port, ports))
        endpoint, made_room = lease.member.endpoints.get(target.port)
        if made_room is not None:
            self._announcer.gone(made_room)
        return endpoint

    @contextlib.contextmanager
    def reserve(self, key: Key, *, quota: int | None) -> Iterator[None]:
        """Keep a name and a place within the quota while a claim is being made.

        Raises:
            ClaimExists, QuotaExceeded.
        """
        namespace, _ = key
        if key in self._by_name or key in self._under_way:
            raise ClaimExists
        # Whoever waits counts as well, or two who wait for the last place would both get one.
        if quota is not None and self._held[namespace] >= quota:
            raise QuotaExceeded(
                f"The namespace {namespace} holds as many claims as it may ({quota});"
                " release one and try again."
            )
        self._under_way.add(key)
        self._held[namespace] += 1
        try:
            yield
        finally:
            self._under_way.discard(key)
            if key not in self._by_name:
                self._forget_one(namespace)

    def add(
        self, key: Key, request: ClaimRequest, pool: Pool, member: Member, launch: Launch
    ) -> Lease:
        """Make a claim of a member that no other claim holds."""
        spec, born, now = pool.spec, self._clock(), datetime.now(UTC)
        idle = request.idle_seconds if request.idle_seconds is not None else spec.idle_seconds
        namespace, name = key
        claim = Claim(
            name=name,
            namespace=namespace,
            pool=spec.name,
            sandbox=member.id,
            uid=member.uid,
            launch=launch,
            isolation=pool.isolation,
            state="ready",
            created_at=now,
            expires_at=now,
            labels=dict(request.labels),
            ports=request.ports,
            idle_seconds=idle,
            caller=request.caller,
        )
        seconds = spec.lease_seconds if request.lease_seconds is None else request.lease_seconds
        lease = Lease(claim, pool, member, seconds, born, born + spec.max_age_seconds)
        self._by_name[key] = self._by_sandbox[namespace, member.id] = lease
        self._set_end(lease, seconds, now=born, wall=now)
        return lease

    def extend(self, lease: Lease, seconds: float | None) -> None:
        """Have a lease end so long from now, but never beyond its greatest age.

        None takes the lease that the claim was made with, unless it ends later as it is: who
        wants no more than a new token must not cut short what somebody else has prolonged.
        """
        now = self._clock()
        if seconds is not None or now + lease.seconds > lease.ends:
            wanted = lease.seconds if seconds is None else seconds
            self._set_end(lease, wanted, now=now, wall=datetime.now(UTC))

    def drop(self, lease: Lease, kind: EventKind, *, reason: str) -> asyncio.Task[None]:
        """End a claim that has not ended; return the task that ends its sandbox."""
        del self._by_name[lease.key]
        self._forget_one(lease.claim.namespace)
        if lease.expiry is not None:
            lease.expiry.cancel()
        ending = self._end_sandbox(lease) if lease.ending is None else lease.ending
        lease.claim.state = "ended"
        self._announcer.claim(kind, lease.claim, reason=reason)
        return ending

    def fail(self, pool: Pool, member: Member, reason: str) -> bool:
        """Note that a member died; tell whether a claim held it.

        The claim stays listed, with the reason, until its lease ends or it is released.
        """
        lease = self._by_sandbox.get((pool.spec.namespace, member.id))
        if lease is None:
            return False
        lease.claim.state, lease.claim.reason = "failed", reason
        self._end_sandbox(lease)
        self._announcer.claim("claim.failed", lease.claim, reason=reason)
        return True

    async def run(self) -> None:
        """End for ever those that are over while their timer has slept."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.end_overdue()

    def end_overdue(self) -> None:
        """End every lease that is over."""
        now = self._clock()
        for lease in [lease for lease in self._by_name.values() if lease.ends <= now]:
            self._expire(lease)

    def _set_end(self, lease: Lease, seconds: float, *, now: float, wall: datetime) -> None:
        left = max(0.0, min(seconds, lease.ends_by - now))
        lease.ends = now + left
        if lease.expiry is not None:
            lease.expiry.cancel()
        lease.expiry = asyncio.get_running_loop().call_later(left, self._expire, lease)
        # The wall clock may be set while a claim lives; the age that is shown never is too great.
        greatest = lease.claim.created_at + timedelta(seconds=lease.ends_by - lease.born)
        lease.claim.expires_at = min(wall + timedelta(seconds=left), greatest)

    def _expire(self, lease: Lease) -> None:
        self.drop(lease, "claim.expired", reason="lease")

    def _end_sandbox(self, lease: Lease) -> asyncio.Task[None]:
        # First out of the table, so that nothing is sent to a sandbox that is dying.
        del self._by_sandbox[lease.claim.namespace, lease.member.id]
        for endpoint in lease.member.endpoints:
            self._announcer.gone(endpoint)
        lease.pool.let_go()
        lease.ending = self._end(lease.pool, lease.member)
        return lease.ending

    def _forget_one(self, namespace: Label) -> None:
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]


def _outside(port: Port, ports: tuple[Port, ...]) -> str:
    listed = ", ".join(map(str, ports)) or "none"
    return f"Port {port} is not one that the claim may reach ({listed})."
