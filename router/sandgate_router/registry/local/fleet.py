"""All pools of one registry, as the settings and resizing have made them.

New settings are compared with the old ones: members that they make stale end at once, claimed
ones are left alone, and a pool that is not listed any more waits for its claims to end.
"""

from collections.abc import Callable, Sequence

from sandgate_router.config import BadConfig
from sandgate_router.errors import InvalidRequest, PoolNotFound
from sandgate_router.names import Label
from sandgate_router.registry.base import PoolStatus
from sandgate_router.registry.local.announce import Announcer
from sandgate_router.registry.local.member import Member
from sandgate_router.registry.local.pool import Pool
from sandgate_router.registry.local.pools import LocalIsolation, PoolsFile, PoolSpec
from sandgate_router.registry.local.starters import OpenStarters
from sandgate_router.registry.local.stock import Stock


class Fleet:
    """The pools, and the stock that keeps them full."""

    def __init__(
        self,
        settings: PoolsFile,
        *,
        isolation: LocalIsolation,
        starters: OpenStarters,
        announcer: Announcer,
        died: Callable[[Pool, Member, str], None],
        host_network: bool,
    ) -> None:
        """Take the settings; nothing is started.

        Raises:
            BadConfig: a pool asks for less isolation than the gateway, or for a network that
                it may not have.
        """
        self._isolation: LocalIsolation = isolation
        self._host_network = host_network
        self._check(settings)
        self.settings = settings
        self._starters = starters
        self._announcer = announcer
        self._pools: dict[tuple[Label, str], Pool] = {}
        for spec in settings.pools:
            self._add(spec)
        self.stock = Stock(starters.open_ones, pools=self._pools.values, died=died)

    async def start(self) -> None:
        """Begin to fill the pools; raise IsolationUnavailable when that can never work here."""
        await self._starters.open(self._kinds(self.settings))
        self.stock.refill()

    async def close(self) -> None:
        """End every member that no claim holds, and wait for those that a claim held."""
        for pool in self._pools.values():
            self._end_all(pool, pool.dismiss())
        await self.stock.close()

    def find(self, namespace: Label, name: str) -> Pool:
        """Return a pool; raise PoolNotFound."""
        pool = self._pools.get((namespace, name))
        if pool is None or pool.removed:
            raise PoolNotFound
        return pool

    def status(self) -> list[PoolStatus]:
        """Return the pools as they stand, by namespace and name."""
        return [pool.status() for _, pool in sorted(self._pools.items()) if not pool.removed]

    def resize(
        self, namespace: Label, name: str, *, warm: int | None, max_members: int | None
    ) -> PoolStatus:
        """Set a pool's sizes; None leaves as it is.

        Raises:
            PoolNotFound, InvalidRequest.
        """
        pool = self.find(namespace, name)
        warm = pool.warm if warm is None else warm
        most = pool.max if max_members is None else max_members
        if most < 1:
            raise InvalidRequest(f"max {most} is not at least 1")
        if not 0 <= warm <= most:
            raise InvalidRequest(f"warm {warm} is not between 0 and max ({most})")
        self._end_all(pool, pool.resize(warm=warm, max_members=most))
        self.stock.refill()
        return pool.status()

    async def apply(self, settings: PoolsFile) -> None:
        """Take new settings; a pool that they do not change keeps the sizes it was given.

        Raises:
            BadConfig, IsolationUnavailable: and nothing is changed.
        """
        self._check(settings)
        await self._starters.open(self._kinds(settings))
        self.settings = settings
        listed = {(spec.namespace, str(spec.name)): spec for spec in settings.pools}
        for key in self._pools.keys() - listed.keys():
            self._remove(key)
        for key, spec in listed.items():
            pool = self._pools.get(key)
            if pool is None:
                self._announcer.pool_changed(self._add(spec))
            elif pool.removed or pool.spec != spec:
                isolation = spec.isolation or self._isolation
                self._end_all(pool, pool.change(spec, isolation=isolation))
                self.stock.resume(pool)
        self.stock.refill()

    def _add(self, spec: PoolSpec) -> Pool:
        isolation = spec.isolation or self._isolation
        pool = Pool(spec, isolation=isolation, changed=self._announcer.pool_changed)
        self._pools[spec.namespace, spec.name] = pool
        return pool

    def _remove(self, key: tuple[Label, str]) -> None:
        pool = self._pools[key]
        if not pool.removed:
            self._end_all(pool, pool.remove())
            self._announcer.forget(pool)
        elif pool.size == 0:
            del self._pools[key]

    def _end_all(self, pool: Pool, members: Sequence[Member]) -> None:
        for member in members:
            self.stock.end(pool, member)

    def _kinds(self, settings: PoolsFile) -> set[LocalIsolation]:
        return {spec.isolation or self._isolation for spec in settings.pools}

    def _check(self, settings: PoolsFile) -> None:
        faults = []
        for spec in settings.pools:
            isolation = spec.isolation or self._isolation
            if isolation == "none" and self._isolation != "none":
                faults.append(f"pool {spec.name}: isolation none needs the flag --isolation none")
            if spec.network == "host" and isolation != "none" and not self._host_network:
                # The control API is on that network, and asks on loopback for no token.
                faults.append(
                    f"pool {spec.name}: network host lets its sandboxes reach this gateway;"
                    " set SANDGATE_CALLERS, so that they cannot claim others"
                )
        if faults:
            raise BadConfig(faults)
