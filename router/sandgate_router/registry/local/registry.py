"""The local registry: pools kept full, claims and their leases, the table of endpoints.

Only claimed sandboxes are in the table. Every change of it is one synchronous step; what
takes time, starting and ending sandboxes, runs in tasks that `close()` awaits.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sandgate_router.config import BadConfig, Config
from sandgate_router.errors import ClaimExists, Draining, PoolExhausted, PoolNotFound
from sandgate_router.names import Label
from sandgate_router.registry.base import (
    Claim,
    ClaimRequest,
    Endpoint,
    Launch,
    PoolStatus,
)
from sandgate_router.registry.local.folder import RunFolder, sweep_dead
from sandgate_router.registry.local.isolated import IsolatedStarter
from sandgate_router.registry.local.member import Member, Starter, random_label
from sandgate_router.registry.local.plain import PlainStarter
from sandgate_router.registry.local.pool import Pool
from sandgate_router.registry.local.pools import (
    DEFAULT_POOLS,
    LocalIsolation,
    PoolSpec,
    load_pools,
)
from sandgate_router.registry.local.stock import Starters, Stock
from sandgate_router.target import Target

log = logging.getLogger(__name__)

Key = tuple[Label, Label]
"""A namespace and a name in it."""


@dataclass(slots=True, eq=False)
class _Held:
    """A claim with what it holds."""

    claim: Claim
    pool: Pool
    member: Member
    expiry: asyncio.TimerHandle
    ending: asyncio.Task[None] | None = None


def build_local_registry(config: Config, *, descriptors: int | None = None) -> "LocalRegistry":
    """Return the registry that the settings describe; raise BadConfig for its pools file."""
    pools = DEFAULT_POOLS if config.pools is None else load_pools(config.pools)
    isolation: LocalIsolation = "none" if config.isolation == "none" else "bubblewrap"
    return LocalRegistry(pools, isolation=isolation, descriptors=descriptors)


class LocalRegistry:
    """Warm pools of sandboxes on this machine."""

    def __init__(
        self,
        pools: Sequence[PoolSpec] = DEFAULT_POOLS,
        *,
        isolation: LocalIsolation = "bubblewrap",
        starters: Starters | None = None,
        descriptors: int | None = None,
    ) -> None:
        """Take the pools' settings; nothing is started.

        `descriptors` is the soft limit on open files of each process in a sandbox; None leaves
        them the gateway's own.

        Raises:
            BadConfig: a pool asks for less isolation than the gateway.
        """
        if isolation == "bubblewrap" and (
            loose := [s.name for s in pools if s.isolation == "none"]
        ):
            raise BadConfig(
                [f"pool {name}: isolation none needs the flag --isolation none" for name in loose]
            )
        self._pools = {
            (spec.namespace, spec.name): Pool(spec, isolation=spec.isolation or isolation)
            for spec in sorted(pools, key=lambda spec: (spec.namespace, spec.name))
        }
        self._starters: dict[LocalIsolation, Starter] = dict(starters or {})
        self._folder: RunFolder | None = None
        self._table: dict[Key, Member] = {}
        self._claims: dict[Key, _Held] = {}
        self._names_under_way: set[Key] = set()
        self._subscribers: list[Callable[[Endpoint], None]] = []
        self._stock = Stock(self._starters, died=self._died)
        self._descriptors = descriptors
        self._closing = False

    def endpoint(self, target: Target) -> Endpoint | None:
        """Return the endpoint of a claimed sandbox, from memory.

        Raises:
            NotAllowedHere: the sandbox is not isolated and the port is none of its own.
        """
        member = self._table.get((target.namespace, target.sandbox))
        if member is None:
            return None
        endpoint, made_room = member.endpoints.get(target.port)
        if made_room is not None:
            self._announce_gone(made_room)
        return endpoint

    async def find(self, target: Target) -> Endpoint | None:  # noqa: ARG002
        """Return None: the table is complete."""
        return None

    def subscribe(self, gone: Callable[[Endpoint], None]) -> None:
        """Have `gone` called for each endpoint that leaves the table."""
        self._subscribers.append(gone)

    async def start(self) -> None:
        """Check that sandboxes can be started, and begin to fill the pools.

        Raises:
            IsolationUnavailable: they cannot be isolated here.
        """
        if not self._starters:
            for path in await asyncio.to_thread(sweep_dead):
                log.info("registry.swept", extra={"folder": str(path)})
            self._folder = folder = RunFolder.create()
            for pool in self._pools.values():
                isolated = pool.isolation == "bubblewrap"
                kind = IsolatedStarter if isolated else PlainStarter
                self._starters.setdefault(
                    "bubblewrap" if isolated else "none",
                    kind(folder, descriptors=self._descriptors),
                )
        try:
            for starter in self._starters.values():
                await starter.open()
        except BaseException:
            await self.close()
            raise
        if idle := [pool.spec.name for pool in self._pools.values() if pool.spec.idle_seconds]:
            log.warning(
                "idle_seconds has no effect in this version (set for %s): a claim ends by its"
                " release or its lease.",
                ", ".join(idle),
            )
        for pool in self._pools.values():
            self._stock.refill(pool)

    async def close(self) -> None:
        """End every sandbox, and remove what was made on disk."""
        self._closing = True
        for key in list(self._claims):
            self._drop(key)
        for pool in self._pools.values():
            for member in pool.dismiss():
                self._stock.end(pool, member)
        await self._stock.close()
        for starter in self._starters.values():
            starter.close()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.close)
            self._folder = None

    async def claim(self, request: ClaimRequest) -> Claim:
        """Take a ready member, or wait in line for one.

        Raises:
            PoolNotFound, PoolExhausted, ClaimExists, Draining.
        """
        if self._closing:
            raise Draining
        pool = self._pools.get((request.namespace, Label(request.pool)))
        if pool is None:
            raise PoolNotFound
        key = (request.namespace, request.name or Label(f"c-{random_label()}"))
        if key in self._claims or key in self._names_under_way:
            raise ClaimExists
        self._names_under_way.add(key)
        begun = time.perf_counter()
        try:
            member, launch = await self._take(pool, request)
        finally:
            self._names_under_way.discard(key)
        return self._bind(key, request, pool, member, launch, begun=begun)

    async def release(self, namespace: Label, name: Label) -> None:
        """End a claim and its sandbox; return once both are gone."""
        if (ending := self._drop((namespace, name))) is not None:
            # Shielded: a caller that leaves does not stop the end.
            await asyncio.shield(ending)

    def claims(self) -> list[Claim]:
        """Return the live claims, oldest first."""
        return [held.claim for held in self._claims.values()]

    def pools(self) -> list[PoolStatus]:
        """Return the pools as they stand, by namespace and name."""
        return [pool.status() for pool in self._pools.values()]

    async def _take(self, pool: Pool, request: ClaimRequest) -> tuple[Member, Launch]:
        if (member := pool.take()) is not None:
            self._stock.refill(pool)
            return member, "warm"
        # `cold` waits in the same line: whoever waits has a sandbox started for the line.
        launch: Launch = "cold" if request.on_empty == "cold" else "warm"
        deadline = time.monotonic() + request.wait_seconds
        while request.on_empty != "fail":
            waiter = pool.join()
            self._stock.refill(pool)
            member = await pool.wait(waiter, timeout=deadline - time.monotonic())
            if member is None:
                break
            if member.alive:
                return member, launch
        if self._closing:
            raise Draining
        detail = PoolExhausted.detail
        if pool.last_error is not None:
            detail += f" The last start failed: {pool.last_error}"
        raise PoolExhausted(detail, retry_after=pool.retry_after())

    def _bind(
        self,
        key: Key,
        request: ClaimRequest,
        pool: Pool,
        member: Member,
        launch: Launch,
        *,
        begun: float,
    ) -> Claim:
        lease = request.lease_seconds or pool.spec.lease_seconds
        lease = min(lease, pool.spec.max_age_seconds)
        now = datetime.now(UTC)
        namespace, name = key
        claim = Claim(
            name=name,
            namespace=namespace,
            pool=pool.spec.name,
            sandbox=member.id,
            uid=member.uid,
            launch=launch,
            isolation=pool.isolation,
            state="ready",
            created_at=now,
            expires_at=now + timedelta(seconds=lease),
            labels=dict(request.labels),
            timings={"wait": round((time.perf_counter() - begun) * 1000, 3)},
        )
        expiry = asyncio.get_running_loop().call_later(lease, self._drop, key)
        self._claims[key] = _Held(claim, pool, member, expiry)
        self._table[namespace, member.id] = member
        return claim

    def _drop(self, key: Key) -> asyncio.Task[None] | None:
        """End a claim, by release, expiry or close; return the task that ends its sandbox."""
        held = self._claims.pop(key, None)
        if held is None:
            return None
        held.expiry.cancel()
        if held.ending is None:
            self._end_held(held)
        held.claim.state = "ended"
        return held.ending

    def _end_held(self, held: _Held) -> None:
        # First out of the table, so that nothing is sent to a sandbox that is dying.
        self._table.pop((held.claim.namespace, held.member.id), None)
        for endpoint in held.member.endpoints:
            self._announce_gone(endpoint)
        held.pool.claimed -= 1
        held.ending = self._stock.end(held.pool, held.member)

    def _died(self, pool: Pool, member: Member, reason: str) -> None:
        held = next((held for held in self._claims.values() if held.member is member), None)
        log.warning("registry.died", extra={"sandbox": member.id, "reason": reason})
        if held is not None:
            held.claim.state, held.claim.reason = "failed", reason
            self._end_held(held)
            return
        if member in pool.ready:
            pool.ready.remove(member)
            self._stock.pause(pool, reason)
        else:  # handed over to a claim that has not woken up yet, and will find it dead
            pool.claimed -= 1
        self._stock.end(pool, member)

    def _announce_gone(self, endpoint: Endpoint) -> None:
        for gone in self._subscribers:
            gone(endpoint)
