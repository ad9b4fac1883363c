"""The real gateway in the test's own loop, over a registry that counts what it is asked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from sandgate_router.asgi import AppHost
from sandgate_router.client import ClientConnection
from sandgate_router.config import Config
from sandgate_router.control.app import build_control_app
from sandgate_router.credentials import build_credentials
from sandgate_router.gateway import Gateway
from sandgate_router.names import Label
from sandgate_router.probes import Readiness
from sandgate_router.registry.base import (
    Claim,
    ClaimRequest,
    Endpoint,
    Event,
    PoolStatus,
    RegistryHealth,
    Traffic,
)
from sandgate_router.server import build_gateway
from sandgate_router.target import Target

CREDENTIALS = {"SANDGATE_AUTH", "SANDGATE_KEYS", "SANDGATE_SCOPED_TOKEN_FILE", "ROUTER_AUTH_TOKEN"}
"""Settings of which each decides who may use the relay."""


class CountingRegistry:
    """Knows the endpoints that a test adds, and counts look-ups."""

    keeps_keys = False

    def __init__(self) -> None:
        self.endpoints: dict[tuple[str, str, int], Endpoint] = {}
        self.look_ups: list[Target] = []
        self._gone: list[Callable[[Endpoint], None]] = []

    def add(self, sandbox: str, port: int, *, uid: str | None = None, asked: int = 8888) -> None:
        self.endpoints["default", sandbox, asked] = Endpoint(
            uid=uid, name=f"default/{sandbox}", host="127.0.0.1", port=port
        )

    def remove(self, sandbox: str, *, asked: int = 8888) -> None:
        endpoint = self.endpoints.pop(("default", sandbox, asked))
        for gone in self._gone:
            gone(endpoint)

    def endpoint(self, target: Target) -> Endpoint | None:
        self.look_ups.append(target)
        return self.endpoints.get((target.namespace, target.sandbox, target.port))

    async def find(self, target: Target) -> Endpoint | None:
        self.look_ups.append(target)
        return None

    def subscribe(self, gone: Callable[[Endpoint], None]) -> None:
        self._gone.append(gone)

    def on_event(self, listener: Callable[[Event], None]) -> None:
        """Never call: nothing happens to claims and pools here."""

    def watch(self, traffic: Traffic) -> None:
        """Never ask: there are no claims to be idle."""

    def health(self) -> RegistryHealth:
        return RegistryHealth()

    async def start(self) -> None:
        raise AssertionError("never started by these tests")

    async def close(self) -> None:
        raise AssertionError("never closed by these tests")

    async def claim(self, request: ClaimRequest) -> Claim:
        raise AssertionError(f"never claimed by these tests: {request}")

    async def find_claim(self, namespace: Label, name: Label) -> Claim | None:
        """Find none."""

    async def renew(
        self, namespace: Label, name: Label, lease_seconds: float | None, *, uid: str | None = None
    ) -> Claim:
        raise AssertionError(
            f"never renewed by these tests: {namespace}/{name} {lease_seconds} {uid}"
        )

    async def resize(
        self, namespace: Label, pool: str, *, warm: int | None, max_members: int | None
    ) -> PoolStatus:
        raise AssertionError(
            f"never resized by these tests: {namespace}/{pool} to {warm} {max_members}"
        )

    async def release(self, namespace: Label, name: Label, *, uid: str | None = None) -> None:
        raise AssertionError(f"never released by these tests: {namespace}/{name} {uid}")

    def claims(self) -> list[Claim]:
        return []

    def pools(self) -> list[PoolStatus]:
        return []


class RunningGateway:
    """A gateway that listens on a port of its own."""

    def __init__(
        self, gateway: Gateway, registry: CountingRegistry, port: int, clock: "SkippingClock"
    ) -> None:
        self.gateway = gateway
        self.registry = registry
        self.port = port
        self._clock = clock

    @property
    def dials(self) -> int:
        """Connections to sandboxes that are open or being lent."""
        return len(self.gateway.relay.connector.pool)

    @property
    def held(self) -> int:
        """Bytes that it holds for clients and sandboxes."""
        pool = self.gateway.relay.connector.pool
        for_clients = sum(connection.unsent for connection in self.gateway.connections)
        return for_clients + sum(c.unsent for lent in pool._all.values() for c in lent)

    def skip(self, seconds: float) -> None:
        """Let time pass for all its deadlines, and look at them."""
        self._clock.skipped += seconds
        self.gateway.sweep()

    async def settled(self, *, clients: int = 0, dials: int = 0) -> None:
        """Wait until nothing is left of what was under way, and nothing is counted any more."""
        relay = self.gateway.relay
        async with asyncio.timeout(10):
            while (
                len(self.gateway.connections) != clients
                or self.dials != dials
                or relay.exchanges
                or relay.tasks
                or relay.tunnels.live
            ):
                await asyncio.sleep(0.001)
        assert self.gateway.metrics.inflight == 0
        assert len(relay.in_flight) == 0
        assert relay.tunnels.counts == {}


class SkippingClock:
    """The loop's time, and what a test has skipped."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.skipped = 0.0
        self._now = now

    def __call__(self) -> float:
        return self._now() + self.skipped


@contextlib.asynccontextmanager
async def running_gateway(
    control_app: Any = None, /, **environ: str
) -> AsyncIterator[RunningGateway]:
    """Run a gateway, with another control app if one is given.

    Keyword arguments are settings by the name of their variable; without one of CREDENTIALS
    nobody is asked for any.
    """
    settings = {"SANDGATE_LISTEN": "127.0.0.1:0", "SANDGATE_ACCESS_LOG": "off", **environ}
    if not environ.keys() & CREDENTIALS:
        settings["SANDGATE_AUTH"] = "none"
    config = Config.from_environ(settings, command="up")
    loop = asyncio.get_running_loop()
    registry = CountingRegistry()
    clock = SkippingClock(loop.time)
    credentials = build_credentials(config)
    gateway = build_gateway(config, registry, credentials, clock=clock)
    registry.subscribe(gateway.relay.connector.forget)
    readiness = Readiness()
    readiness.mark_ready()
    app = control_app or build_control_app(registry, readiness=readiness, loopback=True)
    uvicorn_config = uvicorn.Config(app, lifespan="off", log_config=None)
    uvicorn_config.load()
    state: Any = ServerState()
    host = AppHost(uvicorn_config, state, {})
    server = await loop.create_server(
        lambda: ClientConnection(gateway, host.exchange), "127.0.0.1", 0
    )
    sweeper = loop.create_task(_sweep(gateway))
    try:
        yield RunningGateway(gateway, registry, server.sockets[0].getsockname()[1], clock)
    finally:
        sweeper.cancel()
        server.close()
        for connection in list(gateway.connections):
            connection.transport.abort()
        await gateway.relay.close()
        await asyncio.gather(sweeper, *state.tasks, return_exceptions=True)


async def _sweep(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(0.02)
        gateway.sweep()
