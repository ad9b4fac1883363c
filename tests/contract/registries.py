"""Each kind of registry with what the one suite needs of it: a harness.

A harness makes the registry, and does from outside what no caller can ask for: it waits for
members, kills a sandbox, takes one away.
"""

import asyncio
import contextlib
import ipaddress
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from support.fake_kube import FakeKube, fake_kube
from support.fake_kube.kinds import POOLS, TEMPLATES
from support.fake_kube.objects import template, warm_pool
from support.fake_starter import FakeStarter
from support.local_sandbox import pool

from sandgate_router.addresses import IpAddress, Verdict
from sandgate_router.errors import DnsError
from sandgate_router.kube.access import Access, TokenSource
from sandgate_router.names import DEFAULT_NAMESPACE, DEFAULT_PORT, Label
from sandgate_router.registry import static
from sandgate_router.registry.base import Claim, ClaimRequest, Registry
from sandgate_router.registry.dns import DnsRegistry
from sandgate_router.registry.dns_lookup import Answer, NoSuchName
from sandgate_router.registry.kubernetes import KubernetesRegistry
from sandgate_router.registry.local import LocalRegistry
from sandgate_router.registry.local.plain import PlainSandbox
from sandgate_router.registry.static import StaticRegistry
from sandgate_router.target import Target

POOL = "py"


class Harness(Protocol):
    """One registry under test."""

    has_claims: bool
    """Whether it has pools and claims; without them it only routes."""
    registry: Registry

    async def open(self) -> None:
        """Begin what the registry stands on, before it is started."""

    async def shut(self) -> None:
        """End what the registry stood on."""

    async def sandbox(self) -> Target:
        """Return a sandbox that can be reached."""

    async def take_away(self, target: Target) -> None:
        """Have it be reached no more."""


class Grounded:
    """What harnesses share whose registry stands on nothing else."""

    async def open(self) -> None:
        """Do nothing."""

    async def shut(self) -> None:
        """Do nothing."""


class ClaimingHarness(Harness, Protocol):
    """One registry with a pool `py` of so many members at most."""

    is_sole: bool
    """Whether the registry itself orders who waits, limits pools and ends what it started: in a
    cluster others do."""

    async def kill(self, claim: Claim) -> None:
        """Have a claimed sandbox die unasked."""

    def make_room(self, members: int) -> None:
        """Let there be so many members, where others than the registry limit them."""

    def living(self) -> int:
        """Return how many sandboxes live."""


class LocalHarness(Grounded):
    """The local registry over sandboxes that are only names."""

    has_claims = True
    is_sole = True

    def __init__(self, folder: Path, *, warm: int = 1, most: int = 4) -> None:
        del folder
        self._starter = FakeStarter()
        self.registry: Registry = LocalRegistry(
            [pool(warm=warm, max=most)], starters={"bubblewrap": self._starter}
        )

    async def sandbox(self) -> Target:
        """Claim one."""
        claim = await self.registry.claim(ClaimRequest(pool=POOL, namespace=DEFAULT_NAMESPACE))
        return Target(claim.sandbox, claim.namespace, DEFAULT_PORT)

    async def take_away(self, target: Target) -> None:
        """Release it."""
        (name,) = (c.name for c in self.registry.claims() if c.sandbox == target.sandbox)
        await self.registry.release(target.namespace, name)

    async def kill(self, claim: Claim) -> None:
        """Say that it died."""
        next(member for member in self._starter.members if member.uid == claim.uid).die()

    def make_room(self, members: int) -> None:
        """Do nothing: the registry itself does."""

    def living(self) -> int:
        """Return how many have not been ended."""
        return self._starter.living


class PlainHarness(LocalHarness):
    """The local registry over real processes without isolation."""

    def __init__(self, folder: Path, *, warm: int = 1, most: int = 4) -> None:
        del folder
        self._local = LocalRegistry([pool(warm=warm, max=most)], isolation="none")
        self.registry: Registry = self._local

    async def kill(self, claim: Claim) -> None:
        """Kill the runtime, and wait until the gateway has heard of it."""
        lease = self._local._leases.get((claim.namespace, claim.name))
        assert lease is not None
        member = lease.member
        assert isinstance(member, PlainSandbox)
        assert member._process is not None
        member._process.send_signal(signal.SIGKILL)
        await until(lambda: claim.state == "failed")

    def living(self) -> int:
        """Return how many folders of sockets there are."""
        folder = self._local._starters.folder
        return 0 if folder is None else len(list(folder.path.glob("*/http.sock")))


class StaticHarness(Grounded):
    """The static registry over a file of its own."""

    has_claims = False

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sandboxes.yaml"
        self._write("- {id: sb-1, uid: u-1, host: 127.0.0.1}\n")
        self.registry: Registry = StaticRegistry(self._path)

    async def sandbox(self) -> Target:
        """Return the one that the file lists."""
        return Target(Label("sb-1"), DEFAULT_NAMESPACE, DEFAULT_PORT)

    async def take_away(self, target: Target) -> None:
        """Have the file list another."""
        self._write("- {id: another, uid: u-2, host: 127.0.0.1}\n")
        await until(
            lambda: self.registry.endpoint(target) is None, seconds=10 * static.RELOAD_SECONDS
        )

    def _write(self, sandboxes: str) -> None:
        self._path.write_text(f"sandboxes:\n{sandboxes}")


class DnsHarness(Grounded):
    """The dns registry over a lookup that a test answers."""

    has_claims = False

    def __init__(self, folder: Path) -> None:
        del folder
        self._now = 0.0
        self._names = {"sb-1.default.svc.cluster.local"}
        self.registry: Registry = DnsRegistry(
            self, self, cluster_domain="cluster.local", clock=lambda: self._now
        )

    async def sandbox(self) -> Target:
        """Have the one name asked for, as the first request does."""
        target = Target(Label("sb-1"), DEFAULT_NAMESPACE, DEFAULT_PORT)
        await self.registry.find(target)
        return target

    async def take_away(self, target: Target) -> None:
        """Have the name end, and asked for again after its time."""
        self._names.clear()
        self._now += 60
        with contextlib.suppress(DnsError):
            await self.registry.find(target)

    async def addresses(self, name: str) -> Answer:
        """Answer as a resolver."""
        if name not in self._names:
            raise NoSuchName
        return Answer((ipaddress.ip_address("10.0.0.7"),), ttl=5.0)

    def judge(self, address: IpAddress) -> Verdict:
        """Allow every address."""
        del address
        return "allowed"


class KubernetesHarness:
    """The kubernetes registry over an API server and a controller of our own."""

    has_claims = True
    is_sole = False

    def __init__(self, folder: Path, *, warm: int = 1, most: int = 4) -> None:
        del folder
        self._warm = warm
        self._most = most
        self._kube: FakeKube | None = None
        self._registry: KubernetesRegistry | None = None
        self._stack = contextlib.AsyncExitStack()

    @property
    def registry(self) -> Registry:
        """The registry, once opened."""
        assert self._registry is not None
        return self._registry

    async def open(self) -> None:
        """Run the API server, with the pool in it."""
        self._kube = kube = await self._stack.enter_async_context(fake_kube())
        kube.controller.capacity = self._most
        kube.store.create(TEMPLATES, "default", template())
        kube.store.create(POOLS, "default", warm_pool(POOL, replicas=self._warm))
        self._registry = KubernetesRegistry(Access(kube.url, None, TokenSource()), AnyAddress())

    async def shut(self) -> None:
        """Stop it."""
        await self._stack.aclose()

    async def sandbox(self) -> Target:
        """Claim one."""
        claim = await self.registry.claim(ClaimRequest(pool=POOL, namespace=DEFAULT_NAMESPACE))
        return Target(claim.sandbox, claim.namespace, DEFAULT_PORT)

    async def take_away(self, target: Target) -> None:
        """Release it."""
        (name,) = (c.name for c in self.registry.claims() if c.sandbox == target.sandbox)
        await self.registry.release(target.namespace, name)

    async def kill(self, claim: Claim) -> None:
        """Have its pod fail, and wait until the gateway has heard of it."""
        assert self._kube is not None
        target = Target(claim.sandbox, claim.namespace, DEFAULT_PORT)
        self._kube.controller.fail(claim.namespace, claim.sandbox, "killed by SIGKILL")
        await until(
            lambda: (
                [c.state for c in self.registry.claims() if c.name == claim.name] == ["failed"]
                and self.registry.endpoint(target) is None
            )
        )

    def make_room(self, members: int) -> None:
        """Have the cluster's quota allow more."""
        assert self._kube is not None
        self._kube.controller.capacity = members

    def living(self) -> int:
        """Return how many sandboxes have not failed."""
        assert self._kube is not None
        return self._kube.controller.living()


class AnyAddress:
    """The policy of a cluster that is on loopback."""

    def judge(self, address: IpAddress) -> Verdict:
        """Allow every address."""
        del address
        return "allowed"


async def until(condition: Callable[[], bool], *, seconds: float = 30) -> None:
    """Wait for a state that announces itself by no event."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)
