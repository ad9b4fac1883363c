"""The control API: claims, pools, events, probes and their description, on Starlette.

It sees the requests without routing fields. A path that is none of its own is most likely a
request for a sandbox whose sender forgot the fields, and is told so. Under `/v1` the gate
decides who calls before anything is parsed, and refusals are audited.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandgate_router.capability import NoTokens, Tokens
from sandgate_router.control.answers import AnswerErrors
from sandgate_router.control.audit import Refusals
from sandgate_router.control.claims import ClaimEndpoints
from sandgate_router.control.event_stream import PING_SECONDS, EventEndpoint
from sandgate_router.control.events import EventRing
from sandgate_router.control.gate import Gate, KnownCallers
from sandgate_router.control.openapi import load_openapi
from sandgate_router.control.pools import PoolEndpoints
from sandgate_router.control.rights import Rights
from sandgate_router.errors import (
    Draining,
    GatewayError,
    MethodNotAllowed,
    RegistryUnavailable,
    SandboxIdRequired,
)
from sandgate_router.registry.base import Registry

Endpoint = Callable[[Request], Awaitable[Response]]
GuardedEndpoint = Callable[[Request, Rights], Awaitable[Response]]


class Readiness(Protocol):
    """Whether the gateway takes requests."""

    @property
    def state(self) -> Literal["starting", "ready", "draining"]:
        """What the gateway is about."""


def build_control_app(
    registry: Registry,
    *,
    readiness: Readiness,
    loopback: bool,
    callers: KnownCallers | None = None,
    tokens: Tokens | None = None,
    events: EventRing | None = None,
    clock: Callable[[], float] = time.monotonic,
    ping_seconds: float = PING_SECONDS,
) -> Starlette:
    """Return the ASGI app for requests without routing fields.

    Args:
        registry: what knows pools and claims.
        readiness: read by `/readyz`.
        loopback: whether this machine alone can connect, and may without a token.
        callers: who has tokens; None where there is no file of callers.
        tokens: what mints and verifies capabilities; None where none are in use.
        events: where events are kept; whoever gives it closes it when the gateway stops.
        clock: seconds that never go back.
        ping_seconds: how often a quiet event stream says that it lives.
    """
    tokens = NoTokens() if tokens is None else tokens
    events = EventRing() if events is None else events
    registry.on_event(events.add)
    gate = Gate(callers=callers, tokens=tokens, loopback=loopback)
    refusals = Refusals()
    claims = ClaimEndpoints(registry, tokens=tokens, clock=clock)
    pools = PoolEndpoints(registry)
    stream = EventEndpoint(events, gate, ping_seconds=ping_seconds)
    app = Starlette(
        routes=[
            _route("/healthz", GET=_alive),
            _route("/livez", GET=_alive),
            _route("/readyz", GET=_ReadinessProbe(readiness, registry).read),
            _route("/openapi.json", GET=_openapi),
            _guarded("/v1/claims", gate, refusals, GET=claims.list, POST=claims.create),
            _guarded(
                "/v1/claims/{namespace}/{claim}",
                gate,
                refusals,
                GET=claims.read,
                DELETE=claims.release,
            ),
            _guarded("/v1/claims/{namespace}/{claim}/renew", gate, refusals, POST=claims.renew),
            _guarded("/v1/pools", gate, refusals, GET=pools.list),
            _guarded(
                "/v1/pools/{namespace}/{pool}", gate, refusals, GET=pools.read, PATCH=pools.resize
            ),
            _guarded("/v1/events", gate, refusals, GET=stream.stream),
        ],
        middleware=[Middleware(AnswerErrors)],
        exception_handlers={HTTPException: _translate},
    )
    app.router.redirect_slashes = False  # a redirect would lose the claim's body on its way
    return app


class _ReadinessProbe:
    """Ready is who can serve: also where the registry hears no news, as long as it knew all once.

    Else one API server that is away would take every replica out of service.
    """

    def __init__(self, readiness: Readiness, registry: Registry) -> None:
        self._readiness = readiness
        self._registry = registry

    async def read(self, request: Request) -> Response:  # noqa: ARG002
        state = self._readiness.state
        if state == "draining":
            raise Draining
        if state == "starting":
            raise RegistryUnavailable("The gateway is starting.")
        health = self._registry.health()
        if not health.is_ready:
            raise RegistryUnavailable(f"The registry is not ready: {health.fault or 'it reads'}.")
        answer = {"status": "ok"}
        return JSONResponse(answer if health.fault is None else answer | {"fault": health.fault})


def _route(path: str, **endpoints: Endpoint) -> Route:
    """Return one route for all methods of a path: Allow must name every one of them."""

    async def endpoint(request: Request) -> Response:
        return await endpoints[_method(request)](request)

    return Route(path, endpoint, methods=list(endpoints))


def _guarded(path: str, gate: Gate, refusals: Refusals, **endpoints: GuardedEndpoint) -> Route:
    """Return one route for all methods of a path that the gate stands in front of."""

    async def endpoint(request: Request) -> Response:
        rights: Rights | None = None
        try:
            rights = gate.admit(request)
            return await endpoints[_method(request)](request, rights)
        except GatewayError as error:
            refusals.note(
                error,
                rights,
                method=request.method,
                route=path,
                names=request.path_params,
                peer=None if request.client is None else request.client.host,
            )
            raise

    return Route(path, endpoint, methods=list(endpoints))


def _method(request: Request) -> str:
    return "GET" if request.method == "HEAD" else request.method


async def _alive(request: Request) -> Response:  # noqa: ARG001
    return JSONResponse({"status": "ok"})


async def _openapi(request: Request) -> Response:  # noqa: ARG001
    content = await asyncio.to_thread(load_openapi)
    return Response(content, media_type="application/json")


async def _translate(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """Raise the refusal that stands for what Starlette's router found wrong."""
    assert isinstance(error, HTTPException)
    refusal: GatewayError = SandboxIdRequired()
    if error.status_code == 405:
        allowed = sorted((error.headers or {})["Allow"].split(", "))
        refusal = MethodNotAllowed(fields=[("allow", ", ".join(allowed))])
    raise refusal from error
