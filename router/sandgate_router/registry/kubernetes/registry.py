"""The kubernetes registry: pools, claims and sandboxes are objects of the cluster.

Nothing is kept here but copies, so every replica answers for every claim. Three watches keep
the copies; what they have not told yet is asked for once. Known routes work on while the API
is away: what a copy says of a sandbox stays true until somebody changes it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from sandgate_router.errors import (
    ClaimNotFound,
    Draining,
    PoolExhausted,
    RegistryUnavailable,
)
from sandgate_router.kube.access import Access
from sandgate_router.kube.client import KubeClient
from sandgate_router.kube.errors import Conflict, KubeError, NotFound
from sandgate_router.kube.list_watch import ListWatch
from sandgate_router.kube.resources import SANDBOX_CLAIMS, SANDBOXES, WARM_POOLS
from sandgate_router.names import Label
from sandgate_router.registry.base import (
    Claim,
    ClaimRequest,
    Endpoint,
    Event,
    PoolStatus,
    RegistryHealth,
    Traffic,
)
from sandgate_router.registry.kubernetes.claim_table import ClaimTable
from sandgate_router.registry.kubernetes.claiming import RETRY_SECONDS, Claiming
from sandgate_router.registry.kubernetes.idle import IdleWatch
from sandgate_router.registry.kubernetes.look_up import LookUp
from sandgate_router.registry.kubernetes.objects import ClaimObject
from sandgate_router.registry.kubernetes.outcome import build_refusal
from sandgate_router.registry.kubernetes.plan import (
    Plan,
    build_move,
    build_plan,
    build_renewal,
    spans_of,
)
from sandgate_router.registry.kubernetes.pool_table import PoolTable
from sandgate_router.registry.kubernetes.pools import Pools
from sandgate_router.registry.kubernetes.routes import Routes
from sandgate_router.registry.kubernetes.table import Policy, SandboxTable
from sandgate_router.target import Target

START_SECONDS = 10.0
"""How long the start waits for the first lists. Then the gateway listens and says that it is
not ready, which an operator can read; one that exits says nothing but that it restarts."""

GRACE_SECONDS = 2.0
"""Shortest wait where a member stands ready: the controller needs some of it to answer."""

CHANGE_TRIES = 5
"""Tries of a patch that others overtake; each learns the version that was faster."""

log = logging.getLogger("sandgate.registry")


class Namespaces:
    """Where sandboxes are looked for; none is everywhere."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def __contains__(self, name: object) -> bool:
        return not self._names or name in self._names

    def watched(self) -> list[str]:
        """Return what is watched one by one; an empty name is every namespace."""
        return sorted(self._names) or [""]


class KubernetesRegistry:
    """Claims, pools and sandboxes of a cluster."""

    keeps_keys = True

    def __init__(
        self,
        access: Access,
        policy: Policy,
        *,
        namespaces: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet.

        Args:
            access: how the API is reached.
            policy: which addresses of sandboxes may be dialled.
            namespaces: where sandboxes are looked for; none is everywhere.
            clock: seconds that never go back.
        """
        self._client = KubeClient(access)
        self._namespaces = Namespaces(namespaces)
        self._sandboxes = SandboxTable(policy)
        self._claims = ClaimTable(self._sandboxes)
        self._pool_table = PoolTable()
        self._look_up = LookUp(self._client, self._sandboxes, self._claims, self._pool_table)
        self._claiming = Claiming(self._client, self._sandboxes, self._claims, self._look_up)
        self._routes = Routes(
            self._sandboxes,
            self._claims,
            self._look_up,
            namespaces=self._namespaces,
            clock=clock,
        )
        self._pools = Pools(
            self._client,
            self._pool_table,
            self._claims,
            self._look_up,
            namespaces=self._namespaces,
        )
        self._idle = IdleWatch(self._claims, self._sandboxes, move=self._move)
        self._watches = [
            ListWatch(self._client, resource, namespace, sink)
            for namespace in self._namespaces.watched()
            for resource, sink in (
                (SANDBOXES, self._sandboxes),
                (SANDBOX_CLAIMS, self._claims),
                (WARM_POOLS, self._pool_table),
            )
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._claims.on_end(self._claim_ended)
        self._claims.on_learn(self._idle.add)

    def endpoint(self, target: Target) -> Endpoint | None:
        """Return the endpoint of a sandbox that is ready, from memory; raise NotAllowedHere."""
        return self._routes.endpoint(target)

    async def find(self, target: Target) -> Endpoint | None:
        """Ask the API for a sandbox that the watch has not told of, or that was not ready.

        Raises:
            SandboxNotReady, DestinationProhibited, RegistryUnavailable, NotAllowedHere.
        """
        return await self._routes.find(target)

    def subscribe(self, gone: Callable[[Endpoint], None]) -> None:
        """Have `gone` called for each endpoint that leaves the table."""
        self._sandboxes.on_gone(gone)

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Have `listener` called for each event, in the order in which the watch tells them."""
        self._claims.on_event(listener)

    def watch(self, traffic: Traffic) -> None:
        """Learn from `traffic` which claims are in use."""
        self._idle.traffic = traffic

    def health(self) -> RegistryHealth:
        """Return whether everything was listed once, and what keeps news away."""
        faults = dict.fromkeys(watch.fault for watch in self._watches if watch.fault)
        return RegistryHealth(
            is_ready=all(watch.synced.is_set() for watch in self._watches),
            fault="; ".join(faults) or None,
        )

    async def start(self) -> None:
        """Begin to watch, and wait a while for the first lists."""
        for watch in self._watches:
            self._keep(watch.run())
        self._keep(self._idle.run())
        waiting = [asyncio.create_task(watch.synced.wait()) for watch in self._watches]
        try:
            await asyncio.wait(waiting, timeout=START_SECONDS)
        finally:
            for task in waiting:
                task.cancel()
        health = self.health()
        if not health.is_ready:
            log.warning("registry.not_ready", extra={"reason": health.fault or "still listing"})

    async def close(self) -> None:
        """Stop watching. Claims live on: they are the cluster's."""
        self._closing = True
        await self._claiming.close()
        self._pools.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._look_up.close()
        await self._client.close()

    async def claim(self, request: ClaimRequest) -> Claim:
        """Make a claim, and wait for its sandbox.

        Raises:
            PoolNotFound, PoolExhausted, ClaimExists, QuotaExceeded, IdempotencyKeyReused,
            InvalidRequest, SandboxNotReady, RegistryUnavailable, Draining.
        """
        if self._closing:
            raise Draining
        begun = time.perf_counter()
        pool = await self._pools.find(request.namespace, request.pool)
        ready = self._pools.free_members(pool)
        seconds = max(request.wait_seconds, GRACE_SECONDS) if ready > 0 else request.wait_seconds
        version = self._client.version(SANDBOX_CLAIMS)
        plan = build_plan(request, pool, version=version, now=datetime.now(UTC))
        if request.on_empty == "fail" and ready <= 0 and not await self._exists(plan):
            raise PoolExhausted(retry_after=RETRY_SECONDS)
        self._pools.taking[pool.key] += 1
        try:
            claim, entry = await self._claiming.claim(plan, seconds=seconds)
        finally:
            self._pools.taking[pool.key] -= 1
        self._pools.note_launch(pool, entry.launch)
        built = self._claims.build(claim)
        built.timings = {"wait": round((time.perf_counter() - begun) * 1000, 3)}
        return built

    async def find_claim(self, namespace: Label, name: Label) -> Claim | None:
        """Return a live claim as the API knows it; raise RegistryUnavailable."""
        if namespace not in self._namespaces:
            return None
        try:
            claim = await self._look_up.claim((namespace, name))
            if claim is None or claim.is_ending:
                return None
            if claim.sandbox and self._sandboxes.of_claim(claim.uid) is None:
                await self._look_up.sandbox((namespace, Label(claim.sandbox)))
        except KubeError as error:
            raise build_refusal(error) from error
        return self._claims.build(claim)

    async def renew(
        self, namespace: Label, name: Label, lease_seconds: float | None, *, uid: str | None = None
    ) -> Claim:
        """Have a claim end so long from now, never beyond its pool's greatest age.

        Raises:
            ClaimNotFound, RegistryUnavailable.
        """
        key = (namespace, name)
        claim = self._claims.get(key)
        for _ in range(CHANGE_TRIES):
            try:
                claim = claim or await self._look_up.claim(key)
                if claim is None or claim.is_ending or not self._is_generation(claim, uid):
                    raise ClaimNotFound
                built = self._claims.build(claim)
                if built.state == "failed":
                    return built
                spans = spans_of(self._pool_table.get((namespace, Label(claim.pool))))
                patch = build_renewal(claim, lease_seconds, spans, now=datetime.now(UTC))
                content = await self._client.patch(SANDBOX_CLAIMS, namespace, name, patch)
                return self._claims.build(self._look_up.learn_claim(content))
            except NotFound as error:
                if claim is not None:
                    self._claims.forget(key, claim.uid)
                raise ClaimNotFound from error
            except Conflict:
                claim = None  # learn what was faster
            except KubeError as error:
                raise build_refusal(error) from error
        raise RegistryUnavailable("The claim changes faster than it can be renewed.")

    async def release(self, namespace: Label, name: Label, *, uid: str | None = None) -> None:
        """Delete a claim; what it holds ends with it. Raise RegistryUnavailable."""
        if namespace not in self._namespaces:
            return
        key = (namespace, name)
        claim = self._claims.get(key)
        if uid is not None and (claim is None or not self._is_generation(claim, uid)):
            return
        try:
            await self._client.delete(
                SANDBOX_CLAIMS, namespace, name, uid=None if claim is None else claim.uid
            )
        except NotFound:
            pass
        except Conflict:
            return  # another claim has its name
        except KubeError as error:
            raise build_refusal(error) from error
        if claim is not None:
            self._claims.forget(key, claim.uid)

    def claims(self) -> list[Claim]:
        """Return the live claims, oldest first."""
        return self._claims.claims()

    def pools(self) -> list[PoolStatus]:
        """Return the pools as they stand, by namespace and name."""
        return self._pools.all()

    async def resize(
        self, namespace: Label, pool: str, *, warm: int | None, max_members: int | None
    ) -> PoolStatus:
        """Set how many members stand ready.

        Raises:
            PoolNotFound, NotImplementedHere, InvalidRequest, RegistryUnavailable.
        """
        return await self._pools.resize(namespace, pool, warm=warm, max_members=max_members)

    async def _exists(self, plan: Plan) -> bool:
        """Tell whether the claim of a key has been made before."""
        if not plan.is_keyed:
            return False
        try:
            return await self._look_up.claim((plan.namespace, plan.name)) is not None
        except KubeError as error:
            raise build_refusal(error) from error

    def _is_generation(self, claim: ClaimObject, uid: str | None) -> bool:
        if uid is None:
            return True
        entry = self._sandboxes.of_claim(claim.uid)
        return uid == ("" if entry is None else entry.uid)

    async def _move(self, claim: ClaimObject, until: datetime) -> None:
        """Move the end of a claim in use; what fails is tried again at the next look."""
        namespace, name = claim.key
        try:
            content = await self._client.patch(
                SANDBOX_CLAIMS, namespace, name, build_move(claim, until)
            )
            self._look_up.learn_claim(content)
        except (Conflict, NotFound):
            log.info("claim.overtaken", extra={"namespace": namespace, "claim": name})
        except KubeError as error:
            log.warning("claim.not_moved", extra={"claim": name, "reason": str(error)})

    def _claim_ended(self, claim: ClaimObject) -> None:
        """Take its sandbox out of the table at once: the cluster is about to end it."""
        entry = self._sandboxes.of_claim(claim.uid)
        if entry is not None:
            self._sandboxes.forget(entry.key, entry.uid)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
