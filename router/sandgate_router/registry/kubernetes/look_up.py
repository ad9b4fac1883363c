"""Single questions to the API, for what the watches have not told yet.

Many who ask for one sandbox ask once, and guesses of names never have more than a few
questions under way: the API server is everybody's.
"""

import asyncio

from sandgate_router.kube.client import KubeClient
from sandgate_router.kube.errors import NotFound, Unreachable
from sandgate_router.kube.resources import SANDBOX_CLAIMS, SANDBOXES, WARM_POOLS
from sandgate_router.registry.kubernetes.claim_table import ClaimTable
from sandgate_router.registry.kubernetes.objects import (
    BadObject,
    ClaimObject,
    Key,
    PoolObject,
    parse_claim,
    parse_pool,
    parse_sandbox,
)
from sandgate_router.registry.kubernetes.pool_table import PoolTable
from sandgate_router.registry.kubernetes.table import Entry, SandboxTable

MAX_QUESTIONS = 32
"""Sandboxes that are asked for at once after a miss."""


class LookUp:
    """Asks for single objects, and has the tables learn the answers."""

    def __init__(
        self, client: KubeClient, sandboxes: SandboxTable, claims: ClaimTable, pools: PoolTable
    ) -> None:
        """Take what is asked, and what learns."""
        self._client = client
        self._sandboxes = sandboxes
        self._claims = claims
        self._pools = pools
        self._under_way: dict[Key, asyncio.Task[Entry | None]] = {}
        self._questions = asyncio.Semaphore(MAX_QUESTIONS)

    async def sandbox_once(self, key: Key) -> Entry | None:
        """Return a sandbox as the API knows it, together with all who ask for it now.

        Raises:
            KubeError.
        """
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(key), name="look-up")
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def sandbox(self, key: Key) -> Entry | None:
        """Return a sandbox as the API knows it at this moment; raise KubeError."""
        known = self._sandboxes.get(key)
        try:
            content = await self._client.get(SANDBOXES, *key)
        except NotFound:
            # What was learned while we asked is newer than the answer.
            if known is not None and self._sandboxes.get(key) is known:
                self._sandboxes.forget(key, known.uid)
            return self._sandboxes.get(key)
        try:
            self._sandboxes.learn(parse_sandbox(content))
        except BadObject as error:
            raise Unreachable(f"a Sandbox that is none: {error}") from error
        return self._sandboxes.get(key)

    async def claim(self, key: Key) -> ClaimObject | None:
        """Return a claim as the API knows it at this moment; raise KubeError."""
        known = self._claims.get(key)
        try:
            content = await self._client.get(SANDBOX_CLAIMS, *key)
        except NotFound:
            if known is not None:
                self._claims.forget(key, known.uid)
            return None
        return self.learn_claim(content)

    def learn_claim(self, content: bytes) -> ClaimObject:
        """Take a claim that the API has answered with; raise KubeError when it is none."""
        try:
            claim = parse_claim(content)
        except BadObject as error:
            raise Unreachable(f"a SandboxClaim that is none: {error}") from error
        self._claims.learn(claim)
        current = self._claims.get(claim.key)
        # The watch may have been faster.
        return current if current is not None and current.uid == claim.uid else claim

    async def pool(self, key: Key) -> PoolObject | None:
        """Return a pool, from memory if it is there; raise KubeError."""
        if (known := self._pools.get(key)) is not None:
            return known
        try:
            content = await self._client.get(WARM_POOLS, *key)
        except NotFound:
            return None
        return self.learn_pool(content)

    def learn_pool(self, content: bytes) -> PoolObject:
        """Take a pool that the API has answered with; raise KubeError when it is none."""
        try:
            pool = parse_pool(content)
        except BadObject as error:
            raise Unreachable(f"a SandboxWarmPool that is none: {error}") from error
        self._pools.learn(pool)
        return pool

    async def close(self) -> None:
        """End the questions under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, key: Key) -> Entry | None:
        async with self._questions:
            return await self.sandbox(key)
