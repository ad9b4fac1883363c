"""A registry without sandboxes: members are names, and tests say when they become ready."""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sandgate_router.errors import ClaimExists, PoolExhausted, PoolNotFound
from sandgate_router.names import DEFAULT_NAMESPACE, Label
from sandgate_router.registry.base import Claim, ClaimRequest, Endpoint, PoolStatus
from sandgate_router.target import Target

CREATED_AT = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


class FakeRegistry:
    """One pool `python` in `default`, its members counted; typed as `Registry`."""

    def __init__(self, *, ready: int = 1) -> None:
        self.requests: list[ClaimRequest] = []
        """Every claim that was asked for."""
        self.releases: list[tuple[Label, Label]] = []
        """Every release that was asked for."""
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
        self._ready = ready
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
        if (request.namespace, request.pool) != (DEFAULT_NAMESPACE, "python"):
            raise PoolNotFound
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
        return claim

    async def release(self, namespace: Label, name: Label) -> None:
        """End a claim."""
        self._fail()
        self.releases.append((namespace, name))
        self._live.pop((namespace, name), None)
        self.released.set()

    def claims(self) -> list[Claim]:
        """Return the live claims."""
        self._fail()
        return list(self._live.values())

    def pools(self) -> list[PoolStatus]:
        """Return the pool."""
        self._fail()
        return [
            PoolStatus(
                name="python",
                namespace=DEFAULT_NAMESPACE,
                warm=4,
                max=32,
                ready=self._ready,
                claimed=len(self._live),
                waiting=len(self._queue),
                hit_rate=None,
                isolation="none",
                last_error=None,
            )
        ]

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
            created_at=CREATED_AT,
            expires_at=CREATED_AT + timedelta(seconds=request.lease_seconds or 3600),
            labels=request.labels,
            timings={"total": 1.5},
        )
