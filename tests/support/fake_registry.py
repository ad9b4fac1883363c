"""A registry without sandboxes: members are names, and tests say when they become ready."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sandgate_router.errors import (
    ClaimExists,
    ClaimNotFound,
    PoolExhausted,
    PoolNotFound,
    QuotaExceeded,
)
from sandgate_router.names import DEFAULT_NAMESPACE, Label
from sandgate_router.registry.base import (
    Claim,
    ClaimRequest,
    Endpoint,
    Event,
    EventKind,
    PoolStatus,
    RegistryHealth,
    Traffic,
)
from sandgate_router.target import Target

CREATED_AT = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


class FakeRegistry:
    """One pool `python` in each namespace, their members counted together; typed as `Registry`."""

    keeps_keys = False

    def __init__(
        self, *, ready: int = 1, namespaces: tuple[Label, ...] = (DEFAULT_NAMESPACE,)
    ) -> None:
        self.requests: list[ClaimRequest] = []
        """Every claim that was asked for."""
        self.releases: list[tuple[Label, Label]] = []
        """Every release that was asked for."""
        self.state = RegistryHealth()
        """What it says of itself."""
        self.failure: Exception | None = None
        """What every call raises, if anything."""
        self.waiting = asyncio.Event()
        """Set once a claim waits for a member."""
        self.left = asyncio.Event()
        """Set once a waiting claim has been cancelled."""
        self.released = asyncio.Event()
        """Set once a claim has been released."""
        self.stubborn = False
        """Whether a waiting claim that is cancelled has taken its member at that very moment."""
        self.quota: int | None = None
        """Claims that may live at once, if they are limited."""
        self.now = CREATED_AT
        """The time of claims, renewals and events."""
        self._ready = ready
        self._sizes = dict.fromkeys(namespaces, (4, 32))
        self._listeners: list[Callable[[Event], None]] = []
        self._live: dict[tuple[Label, Label], Claim] = {}
        self._queue: deque[asyncio.Future[None]] = deque()

    def add_member(self) -> None:
        """Have one more member ready."""
        if self._queue:
            self._queue.popleft().set_result(None)
        else:
            self._ready += 1

    async def claim(self, request: ClaimRequest) -> Claim:
        """Take a member."""
        self.requests.append(request)
        self._fail()
        self._check_pool(request.namespace, request.pool)
        if self.quota is not None and len(self._live) >= self.quota:
            raise QuotaExceeded
        name = request.name or Label(f"claim-{len(self.requests)}")
        if (request.namespace, name) in self._live:
            raise ClaimExists
        if self._ready:
            self._ready -= 1
        elif request.on_empty == "fail":
            raise PoolExhausted(retry_after=7)
        else:
            await self._wait()
        claim = self._build_claim(name, request)
        self._live[claim.namespace, name] = claim
        self._tell("claim.created", claim)
        return claim

    async def find_claim(self, namespace: Label, name: Label) -> Claim | None:
        """Return a live claim."""
        self._fail()
        return self._live.get((namespace, name))

    async def renew(
        self, namespace: Label, name: Label, lease_seconds: float | None, *, uid: str | None = None
    ) -> Claim:
        """Move the end of a claim."""
        self._fail()
        claim = self._live.get((namespace, name))
        if claim is None or uid not in {None, claim.uid}:
            raise ClaimNotFound
        lease = timedelta(seconds=lease_seconds or 3600)
        claim = self._live[namespace, name] = replace(claim, expires_at=self.now + lease)
        self._tell("claim.renewed", claim)
        return claim

    async def release(self, namespace: Label, name: Label, *, uid: str | None = None) -> None:
        """End a claim."""
        self._fail()
        self.releases.append((namespace, name))
        found = self._live.get((namespace, name))
        if found is not None and uid not in {None, found.uid}:
            return
        claim = self._live.pop((namespace, name), None)
        if claim is not None:
            self._tell("claim.released", replace(claim, state="ended"), reason="released")
        self.released.set()

    def expire(self, namespace: Label, name: Label) -> None:
        """End a claim whose lease is over."""
        claim = self._live.pop((namespace, name))
        self._tell("claim.expired", replace(claim, state="ended"), reason="lease")

    def claims(self) -> list[Claim]:
        """Return the live claims."""
        self._fail()
        return list(self._live.values())

    def pools(self) -> list[PoolStatus]:
        """Return the pools."""
        self._fail()
        return [self._status(namespace) for namespace in self._sizes]

    async def resize(
        self, namespace: Label, pool: str, *, warm: int | None, max_members: int | None
    ) -> PoolStatus:
        """Set the size of a pool."""
        self._fail()
        self._check_pool(namespace, pool)
        old_warm, old_max = self._sizes[namespace]
        self._sizes[namespace] = (
            old_warm if warm is None else warm,
            old_max if max_members is None else max_members,
        )
        status = self._status(namespace)
        self._send(Event("pool.changed", self.now, namespace, pool, status=status))
        return status

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Have `listener` called for each event."""
        self._listeners.append(listener)

    def watch(self, traffic: Traffic) -> None:
        """Never ask: no claim is idle here."""

    def health(self) -> RegistryHealth:
        """Return what a test has set."""
        return self.state

    def endpoint(self, target: Target) -> Endpoint | None:
        """Know no endpoint."""

    async def find(self, target: Target) -> Endpoint | None:
        """Know no endpoint."""

    def subscribe(self, gone: Callable[[Endpoint], None]) -> None:
        """Never call."""

    async def start(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _check_pool(self, namespace: Label, pool: str) -> None:
        if pool != "python" or namespace not in self._sizes:
            raise PoolNotFound

    def _status(self, namespace: Label) -> PoolStatus:
        warm, most = self._sizes[namespace]
        return PoolStatus(
            name="python",
            namespace=namespace,
            warm=warm,
            max=most,
            ready=self._ready,
            claimed=len(self._live),
            waiting=len(self._queue),
            hit_rate=None,
            isolation="none",
            last_error=None,
        )

    def _tell(self, kind: EventKind, claim: Claim, reason: str | None = None) -> None:
        self._send(Event(kind, self.now, claim.namespace, claim.pool, claim=claim, reason=reason))

    def _send(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    async def _wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self.waiting.set()
        try:
            await turn
        except asyncio.CancelledError:
            self._queue.remove(turn)
            self.left.set()
            if not self.stubborn:
                raise

    def _build_claim(self, name: Label, request: ClaimRequest) -> Claim:
        return Claim(
            name=name,
            namespace=request.namespace,
            pool=request.pool,
            sandbox=Label(f"sb-{name}"),
            uid=f"uid-{name}",
            launch="warm",
            isolation="none",
            state="ready",
            created_at=self.now,
            expires_at=self.now + timedelta(seconds=request.lease_seconds or 3600),
            labels=request.labels,
            ports=request.ports,
            idle_seconds=request.idle_seconds,
            caller=request.caller,
            timings={"total": 1.5},
        )
