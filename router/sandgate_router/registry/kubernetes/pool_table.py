"""The warm pools of the cluster as their watch tells them."""

import logging
from collections.abc import Callable, Iterator

import msgspec

from sandgate_router.registry.kubernetes.objects import BadObject, Key, PoolObject, parse_pool

log = logging.getLogger("sandgate.registry")


class PoolTable:
    """The pools of one cluster."""

    def __init__(self) -> None:
        """Know none."""
        self._pools: dict[Key, PoolObject] = {}
        self._listeners: list[Callable[[Key], None]] = []

    def __iter__(self) -> Iterator[PoolObject]:
        return iter(self._pools.values())

    def on_change(self, listener: Callable[[Key], None]) -> None:
        """Have `listener` called for each pool that changes."""
        self._listeners.append(listener)

    def get(self, key: Key) -> PoolObject | None:
        """Return a pool."""
        return self._pools.get(key)

    def apply(self, kind: str, item: msgspec.Raw) -> None:
        """Take an event of the watch."""
        pool = _parse(item)
        if pool is None:
            return
        if kind == "DELETED":
            self.forget(pool.key, pool.uid)
        else:
            self.learn(pool)

    def replace(self, items: list[bytes], *, version: str, namespace: str) -> None:
        """Take a whole list: what is not in it, and not newer than it, is gone."""
        listed = set[str]()
        for pool in filter(None, map(_parse, items)):
            listed.add(pool.uid)
            self.learn(pool)
        newest = int(version) if version.isdecimal() else 0
        for pool in list(self._pools.values()):
            if pool.uid in listed or pool.version > newest > 0:
                continue
            if namespace in {"", pool.key[0]}:
                self.forget(pool.key, pool.uid)

    def learn(self, pool: PoolObject) -> None:
        """Take a pool as it stood in its version."""
        before = self._pools.get(pool.key)
        if before is not None and pool.version < before.version:
            return
        self._pools[pool.key] = pool
        if before != pool:
            self._tell(pool.key)

    def forget(self, key: Key, uid: str) -> None:
        """Take the end of a pool."""
        before = self._pools.get(key)
        if before is not None and before.uid == uid:
            del self._pools[key]
            self._tell(key)

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)


def _parse(item: bytes | msgspec.Raw) -> PoolObject | None:
    try:
        return parse_pool(item)
    except BadObject as error:
        log.warning("kube.bad_object", extra={"reason": str(error)})
        return None
