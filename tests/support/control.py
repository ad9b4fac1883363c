"""The control API behind the real gateway, with callers and keys of its own."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Collection
from typing import Any

import httpx
from support.running_gateway import RunningGateway, running_gateway

from sandgate_router.callers import Caller, parse_callers
from sandgate_router.capability import Capabilities, KeySet, Tokens
from sandgate_router.control.app import build_control_app
from sandgate_router.control.events import EventRing
from sandgate_router.probes import Readiness
from sandgate_router.registry.base import Registry

KEYS = KeySet({"k1": bytes(range(32))}, signing="k1")


class KnownTokens:
    """Callers by their tokens, as their file would list them; a test may take some away."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        """Know callers whose token is `<name>-token`."""
        listed = [
            {"sha256": hashlib.sha256(f"{entry['name']}-token".encode()).hexdigest()} | entry
            for entry in entries
        ]
        self.callers = dict(parse_callers({"callers": listed}))

    def find(self, token: bytes) -> Caller | None:
        return self.callers.get(hashlib.sha256(token).hexdigest())


def caller(name: str, *rights: str, namespaces: Collection[str] = ("default",)) -> dict[str, Any]:
    """Return an entry of the caller file, but for its digest."""
    return {"name": name, "namespaces": list(namespaces), "rights": list(rights)}


def bearer(name: str) -> dict[str, str]:
    """Return the fields that a caller sends."""
    return {"authorization": f"Bearer {name}-token"}


def build_tokens(now: float = 1_700_000_000.0) -> Capabilities:
    """Return what mints and verifies, at a time that stands still."""
    return Capabilities(KEYS, audience="sandgate", now=lambda: now)


class Control:
    """A running gateway and a client of its control API."""

    def __init__(self, gateway: RunningGateway, client: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.client = client


@contextlib.asynccontextmanager
async def running_control(
    registry: Registry,
    *,
    callers: KnownTokens | None = None,
    tokens: Tokens | None = None,
    events: EventRing | None = None,
    loopback: bool = True,
    ping_seconds: float = 15.0,
) -> AsyncIterator[Control]:
    """Run a gateway in front of `registry`."""
    readiness = Readiness()
    readiness.mark_ready()
    app = build_control_app(
        registry,
        readiness=readiness,
        loopback=loopback,
        callers=callers,
        tokens=tokens,
        events=events,
        ping_seconds=ping_seconds,
    )
    async with (
        running_gateway(app) as gateway,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=30) as client,
    ):
        yield Control(gateway, client)
