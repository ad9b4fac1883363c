"""The pools of the cluster, as callers see and resize them."""

import asyncio
from collections import Counter
from collections.abc import Container
from datetime import UTC, datetime

from sandgate_router.errors import InvalidRequest, NotImplementedHere, PoolNotFound
from sandgate_router.kube.client import KubeClient
from sandgate_router.kube.errors import KubeError
from sandgate_router.kube.resources import WARM_POOLS
from sandgate_router.names import Label
from sandgate_router.registry.base import Event, Launch, PoolStatus
from sandgate_router.registry.kubernetes.claim_table import ClaimTable
from sandgate_router.registry.kubernetes.look_up import LookUp
from sandgate_router.registry.kubernetes.objects import Key, PoolObject
from sandgate_router.registry.kubernetes.outcome import build_refusal
from sandgate_router.registry.kubernetes.pool_table import PoolTable

POOL_EVENT_SECONDS = 0.1
"""A pool's changes within this time are one event."""


class Pools:
    """What is known of the pools, and who takes of them through this replica."""

    def __init__(
        self,
        client: KubeClient,
        pools: PoolTable,
        claims: ClaimTable,
        look_up: LookUp,
        *,
        namespaces: Container[str],
    ) -> None:
        """Look in the tables; tell those who listen to `claims` of changes."""
        self._client = client
        self._pools = pools
        self._claims = claims
        self._look_up = look_up
        self._namespaces = namespaces
        self._launches: dict[Key, Counter[str]] = {}
        self._changed: dict[Key, asyncio.TimerHandle] = {}
        self._closing = False
        self.taking = Counter[Key]()
        """Claims of each pool that are under way through this replica."""
        pools.on_change(self._pool_changed)

    def close(self) -> None:
        """Tell nothing any more."""
        self._closing = True
        for timer in self._changed.values():
            timer.cancel()

    def note_launch(self, pool: PoolObject, launch: Launch) -> None:
        """Count whether a claim got a member that stood ready."""
        self._launches.setdefault(pool.key, Counter())[launch] += 1

    def all(self) -> list[PoolStatus]:
        """Return the pools as they stand, by namespace and name."""
        holding, waiting = self._claims.count()
        return [
            self._status(pool, holding, waiting)
            for pool in sorted(self._pools, key=lambda pool: pool.key)
        ]

    async def resize(
        self, namespace: Label, pool: str, *, warm: int | None, max_members: int | None
    ) -> PoolStatus:
        """Set how many members stand ready.

        Raises:
            PoolNotFound, NotImplementedHere, InvalidRequest, RegistryUnavailable.
        """
        if max_members is not None:
            raise NotImplementedHere(
                "A pool of the kubernetes registry has no max; limit it by a ResourceQuota."
            )
        if warm is None:
            raise InvalidRequest("warm is missing")
        if namespace not in self._namespaces:
            raise PoolNotFound
        patch = {"spec": {"replicas": warm}}
        try:
            content = await self._client.patch(WARM_POOLS, namespace, pool, patch)
            found = self._look_up.learn_pool(content)
        except KubeError as error:
            raise build_refusal(error) from error
        holding, waiting = self._claims.count()
        return self._status(found, holding, waiting)

    async def find(self, namespace: Label, name: str) -> PoolObject:
        if namespace not in self._namespaces:
            raise PoolNotFound
        try:
            pool = await self._look_up.pool((namespace, Label(name)))
        except KubeError as error:
            raise build_refusal(error) from error
        if pool is None:
            raise PoolNotFound
        return pool

    def free_members(self, pool: PoolObject) -> int:
        """Return how many ready members nobody else is about to take through this replica."""
        return pool.ready - self.taking[pool.key]

    def _pool_changed(self, key: Key) -> None:
        if key not in self._changed and not self._closing:
            loop = asyncio.get_running_loop()
            self._changed[key] = loop.call_later(POOL_EVENT_SECONDS, self._tell_pool, key)

    def _tell_pool(self, key: Key) -> None:
        self._changed.pop(key, None)
        pool = self._pools.get(key)
        if pool is not None:
            status = self._status(pool, *self._claims.count())
            now = datetime.now(UTC)
            self._claims.tell(Event("pool.changed", now, key[0], status.name, status=status))

    def _status(self, pool: PoolObject, holding: Counter[Key], waiting: Counter[Key]) -> PoolStatus:
        launches = self._launches.get(pool.key)
        return PoolStatus(
            name=pool.key[1],
            namespace=pool.key[0],
            warm=pool.replicas,
            max=None,
            ready=pool.ready,
            claimed=holding[pool.key],
            waiting=waiting[pool.key],
            hit_rate=None if not launches else launches["warm"] / launches.total(),
            isolation="unknown",
            last_error=None,
        )
