"""The control API: claims, pools, probes and their description, on Starlette.

It sees the requests without routing fields. A path that is none of its own is most likely a
request for a sandbox whose sender forgot the fields, and is told so. Who may call is decided
here, before anything is parsed: as long as there are no callers with tokens, only this
machine may, and no web page.
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

from sandgate_router.access import check_local
from sandgate_router.control.answers import AnswerErrors
from sandgate_router.control.claims import ClaimEndpoints
from sandgate_router.control.openapi import load_openapi
from sandgate_router.errors import (
    Draining,
    GatewayError,
    MethodNotAllowed,
    NotAllowedHere,
    RegistryUnavailable,
    SandboxIdRequired,
)
from sandgate_router.registry.base import Registry

Endpoint = Callable[[Request], Awaitable[Response]]
Guard = Callable[[Request], None]
"""Decides who may call; raises NotAllowedHere."""


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
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """Return the ASGI app for requests without routing fields.

    Args:
        registry: what knows pools and claims.
        readiness: read by `/readyz`.
        loopback: whether the listener can be reached from this machine alone.
        clock: seconds that never go back.
    """
    guard = _allow_local if loopback else _allow_nobody
    claims = ClaimEndpoints(registry, clock=clock)
    app = Starlette(
        routes=[
            _route("/healthz", GET=_alive),
            _route("/livez", GET=_alive),
            _route("/readyz", GET=_ReadinessProbe(readiness).read),
            _route("/openapi.json", GET=_openapi),
            _route("/v1/claims", guard=guard, GET=claims.list, POST=claims.create),
            _route(
                "/v1/claims/{namespace}/{claim}",
                guard=guard,
                GET=claims.read,
                DELETE=claims.release,
            ),
            _route("/v1/pools", guard=guard, GET=claims.pools),
        ],
        middleware=[Middleware(AnswerErrors)],
        exception_handlers={HTTPException: _translate},
    )
    app.router.redirect_slashes = False  # a redirect would lose the claim's body on its way
    return app


def _allow_local(request: Request) -> None:
    """Let programs of this machine call, and no web page."""
    check_local(_joined(request, b"host"), _joined(request, b"origin"))


def _allow_nobody(request: Request) -> None:  # noqa: ARG001
    raise NotAllowedHere(
        "On a listener that is no loopback address the control API needs a caller file, which is"
        " not available in this version."
    )


def _joined(request: Request, name: bytes) -> bytes | None:
    """Return the field's lines as one value (RFC 9110 section 5.2); None without any."""
    lines = [value for field, value in request.headers.raw if field == name]
    return b", ".join(lines) if lines else None


class _ReadinessProbe:
    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    async def read(self, request: Request) -> Response:
        state = self._readiness.state
        if state == "draining":
            raise Draining
        if state == "starting":
            raise RegistryUnavailable("The gateway is starting.")
        return await _alive(request)


def _route(path: str, *, guard: Guard | None = None, **endpoints: Endpoint) -> Route:
    """Return one route for all methods of a path: Allow must name every one of them."""

    async def endpoint(request: Request) -> Response:
        if guard is not None:
            guard(request)
        method = "GET" if request.method == "HEAD" else request.method
        return await endpoints[method](request)

    return Route(path, endpoint, methods=list(endpoints))


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
