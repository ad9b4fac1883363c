"""A starter of sandboxes that are only names, and a local registry over it.

The registry is the real one. What a sandbox costs is left out, so that 10,000 of them can be
claimed, and a test says when one starts, fails or dies.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from support.local_sandbox import pool

from sandgate_router.names import DEFAULT_PORT, Port
from sandgate_router.registry.base import Claim, Endpoint, Event, PoolStatus
from sandgate_router.registry.local import LocalRegistry, PoolsFile, PoolSpec
from sandgate_router.registry.local.endpoints import SandboxEndpoints
from sandgate_router.registry.local.leases import boot_time
from sandgate_router.registry.local.member import Identity, Member, StartFailed
from sandgate_router.target import Target

DEATH = "the runtime was ended by SIGKILL"


class FakeMember:
    """A sandbox that is only a name."""

    def __init__(self, spec: PoolSpec, died: Callable[[Member, str], None]) -> None:
        identity = Identity.generate(spec)
        self.spec = spec
        self.id, self.uid, self.alive = identity.id, identity.uid, True
        self.endpoints = SandboxEndpoints(
            name=identity.name, uid=identity.uid, http="http", relay="relay"
        )
        self._died = died
        self.ends = 0
        self.ended = asyncio.Event()

    def die(self) -> None:
        """End unasked."""
        self.alive = False
        self._died(self, DEATH)

    async def end(self) -> None:
        """End as asked."""
        self.alive = False
        self.ends += 1
        await asyncio.sleep(0)
        self.ended.set()


class FakeStarter:
    """Starts members at once while `gate` is open; fails while `fault` is set."""

    def __init__(self) -> None:
        self.members: list[FakeMember] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: Exception | None = None
        self.faulty: Callable[[PoolSpec], bool] = lambda _: True
        """Which starts the fault befalls."""
        self.attempts: list[PoolSpec] = []
        self.most = 0
        """Members at most that lived at one time."""

    @property
    def living(self) -> int:
        """Members that have not been ended."""
        return sum(not member.ended.is_set() for member in self.members)

    async def open(self) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing may be left."""
        assert self.living == 0

    async def start(self, spec: PoolSpec, *, died: Callable[[Member, str], None]) -> Member:
        """Start a member."""
        self.attempts.append(spec)
        await asyncio.sleep(0)
        await self.gate.wait()
        if self.fault is not None and self.faulty(spec):
            raise self.fault
        member = FakeMember(spec, died)
        self.members.append(member)
        self.most = max(self.most, self.living)
        return member

    def fail(self, reason: str) -> None:
        """Have every start fail from here on."""
        self.fault = StartFailed(reason)


class FakeTraffic:
    """What a relay would know, as a test says it."""

    def __init__(self) -> None:
        self.busy = set[Endpoint]()
        self.ends = dict[Endpoint, float]()

    def is_busy(self, endpoint: Endpoint) -> bool:
        """Tell whether the test said so."""
        return endpoint in self.busy

    def last_end(self, endpoint: Endpoint) -> float | None:
        """Return what the test said."""
        return self.ends.get(endpoint)


class Setup:
    """A registry with a fake starter; leaving it, nothing may be left."""

    def __init__(self, *pools: PoolSpec, quotas: dict[str, int] | None = None) -> None:
        self.starter = FakeStarter()
        self.slept = 0.0
        """Seconds that the machine has slept, which no timer knows of."""
        self.registry = LocalRegistry(
            PoolsFile(pools or (pool(),), quotas or {}),
            starters={"bubblewrap": self.starter},
            clock=lambda: boot_time() + self.slept,
        )
        self.gone: list[Endpoint] = []
        self.events: list[Event] = []
        self.registry.subscribe(self.gone.append)
        self.registry.on_event(self.events.append)

    async def __aenter__(self) -> Self:
        await self.registry.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.registry.close()
        assert {member.ends for member in self.starter.members} <= {1}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a state."""
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.001)

    async def until_ready(self, count: int) -> None:
        """Wait until so many members of the first pool stand ready."""
        await self.until(lambda: self.status().ready == count)

    def status(self) -> PoolStatus:
        """Return how the first pool stands."""
        return self.registry.pools()[0]

    def endpoint(self, claim: Claim, port: int = DEFAULT_PORT) -> Endpoint | None:
        """Return the endpoint of a claim."""
        return self.registry.endpoint(Target(claim.sandbox, claim.namespace, Port(port)))

    def member(self, claim: Claim) -> FakeMember:
        """Return what a claim holds."""
        return next(member for member in self.starter.members if member.uid == claim.uid)

    def kinds(self) -> list[str]:
        """Return the kinds of the claims' events so far."""
        return [event.kind for event in self.events if event.claim is not None]
