"""The local registry: pools kept full, and claims made of their members.

Every change of state is one synchronous step; what takes time, starting and ending sandboxes,
runs in tasks that `close()` awaits.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence

from sandgate_router.config import Config
from sandgate_router.errors import (
    ClaimNotFound,
    Draining,
    PoolExhausted,
    PoolNotFound,
)
from sandgate_router.names import Label
from sandgate_router.registry.base import (
    Claim,
    ClaimRequest,
    Endpoint,
    Event,
    Launch,
    PoolStatus,
    RegistryHealth,
    Traffic,
)
from sandgate_router.registry.local.announce import Announcer
from sandgate_router.registry.local.fleet import Fleet
from sandgate_router.registry.local.idle import IdleSweep
from sandgate_router.registry.local.leases import Leases, boot_time
from sandgate_router.registry.local.member import Member, random_label
from sandgate_router.registry.local.pool import Pool
from sandgate_router.registry.local.pools import (
    DEFAULT_POOLS,
    LocalIsolation,
    PoolsFile,
    PoolSpec,
)
from sandgate_router.registry.local.starters import OpenStarters
from sandgate_router.registry.local.stock import Starters
from sandgate_router.registry.local.watched_file import WatchedPools
from sandgate_router.target import Target

log = logging.getLogger(__name__)


def build_local_registry(config: Config, *, descriptors: int | None = None) -> "LocalRegistry":
    """Return the registry that the settings describe; raise BadConfig for its pools file."""
    watched = None if config.pools is None else WatchedPools(config.pools)
    return LocalRegistry(
        PoolsFile(DEFAULT_POOLS) if watched is None else watched.load(),
        isolation="none" if config.isolation == "none" else "bubblewrap",
        descriptors=descriptors,
        watched=watched,
        host_network=config.callers is not None,
    )


class LocalRegistry:
    """Warm pools of sandboxes on this machine."""

    keeps_keys = False

    def __init__(
        self,
        pools: Sequence[PoolSpec] | PoolsFile = DEFAULT_POOLS,
        *,
        isolation: LocalIsolation = "bubblewrap",
        starters: Starters | None = None,
        descriptors: int | None = None,
        watched: WatchedPools | None = None,
        host_network: bool = False,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        """Take the pools' settings; nothing is started.

        `descriptors` is the soft limit on open files of each process in a sandbox; None leaves
        them the gateway's own. Pools and quotas follow the file that is `watched`. Where
        `host_network` is set, pools may give it to isolated sandboxes. Leases end by `clock`.

        Raises:
            BadConfig: a pool asks for less isolation than the gateway, or for a network that
                it may not have.
        """
        settings = pools if isinstance(pools, PoolsFile) else PoolsFile(tuple(pools))
        self._watched = watched
        self._announcer = Announcer()
        self._starters = OpenStarters(starters, descriptors=descriptors)
        self._fleet = Fleet(
            settings,
            isolation=isolation,
            starters=self._starters,
            announcer=self._announcer,
            died=self._died,
            host_network=host_network,
        )
        self._stock = self._fleet.stock
        self._leases = Leases(self._announcer, end=self._stock.end, clock=clock)
        self._idle = IdleSweep(
            end=lambda lease: self._leases.drop(lease, "claim.expired", reason="idle")
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    def endpoint(self, target: Target) -> Endpoint | None:
        """Return the endpoint of a claimed sandbox, from memory.

        Raises:
            NotAllowedHere: the claim does not have the port, or the sandbox cannot serve it.
        """
        return self._leases.endpoint(target)

    async def find(self, target: Target) -> Endpoint | None:  # noqa: ARG002
        """Return None: the table is complete."""
        return None

    def subscribe(self, gone: Callable[[Endpoint], None]) -> None:
        """Have `gone` called for each endpoint that leaves the table."""
        self._announcer.on_gone(gone)

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Have `listener` called for each event, in the order in which they happen."""
        self._announcer.on_event(listener)

    def watch(self, traffic: Traffic) -> None:
        """Learn from `traffic` which claims are idle; without it none ever is."""
        self._idle.traffic = traffic

    def health(self) -> RegistryHealth:
        """Say that all is well: everything is known here, since it all began here."""
        return RegistryHealth()

    async def start(self) -> None:
        """Check that sandboxes can be started, and begin to fill the pools.

        Raises:
            IsolationUnavailable: they cannot be isolated here.
        """
        try:
            await self._fleet.start()
        except BaseException:
            await self.close()
            raise
        self._keep(self._leases.run())
        self._keep(self._idle.run())
        if self._watched is not None:
            self._keep(self._watched.run(self._fleet.apply))

    async def close(self) -> None:
        """End every sandbox, and remove what was made on disk."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lease in list(self._leases):
            self._leases.drop(lease, "claim.released", reason="shutdown")
        await self._fleet.close()
        self._announcer.close()
        await self._starters.close()

    async def claim(self, request: ClaimRequest) -> Claim:
        """Take a ready member, or wait in line for one.

        Raises:
            PoolNotFound, PoolExhausted, ClaimExists, QuotaExceeded, Draining.
        """
        if self._closing:
            raise Draining
        pool = self._fleet.find(request.namespace, request.pool)
        key = (request.namespace, request.name or Label(f"c-{random_label()}"))
        begun = time.perf_counter()
        with self._leases.reserve(key, quota=self._fleet.settings.quota(request.namespace)):
            member, launch = await self._take(pool, request)
            lease = self._leases.add(key, request, pool, member, launch)
        lease.claim.timings = {"wait": round((time.perf_counter() - begun) * 1000, 3)}
        self._idle.add(lease)
        self._announcer.claim("claim.created", lease.claim)
        return lease.claim

    async def find_claim(self, namespace: Label, name: Label) -> Claim | None:
        """Return a live claim."""
        lease = self._leases.get((namespace, name))
        return None if lease is None else lease.claim

    async def renew(
        self, namespace: Label, name: Label, lease_seconds: float | None, *, uid: str | None = None
    ) -> Claim:
        """Have a live claim end so long from now, never beyond its pool's greatest age.

        None takes the lease that it was made with, and never makes it end earlier. A claim that
        failed is returned as it is: there is nothing left to keep.

        Raises:
            ClaimNotFound.
        """
        lease = self._leases.get((namespace, name))
        if lease is None or uid not in {None, lease.claim.uid}:
            raise ClaimNotFound
        if lease.is_live:
            self._leases.extend(lease, lease_seconds)
            self._announcer.claim("claim.renewed", lease.claim)
        return lease.claim

    async def release(self, namespace: Label, name: Label, *, uid: str | None = None) -> None:
        """End a claim and its sandbox; return once both are gone."""
        lease = self._leases.get((namespace, name))
        if lease is not None and uid in {None, lease.claim.uid}:
            ending = self._leases.drop(lease, "claim.released", reason="released")
            # Shielded: a caller that leaves does not stop the end.
            await asyncio.shield(ending)

    def claims(self) -> list[Claim]:
        """Return the live claims, oldest first."""
        return [lease.claim for lease in self._leases]

    def pools(self) -> list[PoolStatus]:
        """Return the pools as they stand, by namespace and name."""
        return self._fleet.status()

    async def resize(
        self, namespace: Label, pool: str, *, warm: int | None, max_members: int | None
    ) -> PoolStatus:
        """Set how many members stand ready, and how many there may be; None leaves as it is.

        Claimed members are left alone, also where there are more than `max_members` now.

        Raises:
            PoolNotFound, InvalidRequest.
        """
        return self._fleet.resize(namespace, pool, warm=warm, max_members=max_members)

    async def _take(self, pool: Pool, request: ClaimRequest) -> tuple[Member, Launch]:
        if (member := pool.take()) is not None:
            self._stock.refill()
            return member, "warm"
        # `cold` waits in the same line: whoever waits has a sandbox started for the line.
        launch: Launch = "cold" if request.on_empty == "cold" else "warm"
        deadline = time.monotonic() + request.wait_seconds
        lost = False
        while request.on_empty != "fail" and not self._closing and not pool.removed:
            # One whose member died in the moment of its claim has waited long enough.
            waiter = pool.join(first=lost)
            self._stock.refill()
            member = await pool.wait(waiter, timeout=deadline - time.monotonic())
            if member is not None:
                return member, launch
            lost = waiter.done() and not waiter.cancelled()
            if not lost:
                break
        if self._closing:
            raise Draining
        if pool.removed:
            raise PoolNotFound
        detail = PoolExhausted.detail
        if pool.last_error is not None:
            detail += f" The last start failed: {pool.last_error}"
        raise PoolExhausted(detail, retry_after=pool.retry_after(slots=self._stock.slots))

    def _died(self, pool: Pool, member: Member, reason: str) -> None:
        log.warning("registry.died", extra={"sandbox": member.id, "reason": reason})
        if self._leases.fail(pool, member, reason):
            return
        where = pool.lose(member)
        if where == "ready":
            self._stock.pause(pool, reason)
        if where is not None:
            self._stock.end(pool, member)

    def _keep(self, work: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
