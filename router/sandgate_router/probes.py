"""Whether the gateway is alive and ready, and the listener for metrics.

The state has one writer, the server; `/readyz` of the control app reads it. Order: starting,
ready, draining, and never back.
"""

import asyncio
from typing import Literal

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandgate_router.metrics import RequestMetrics

State = Literal["starting", "ready", "draining"]


class Readiness:
    """What the gateway is about, in one word."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state: State = "starting"

    @property
    def state(self) -> State:
        """`starting` until all listens, `draining` once it is told to stop."""
        return self._state

    def mark_ready(self) -> None:
        """Take requests, unless the end came before."""
        if self._state == "starting":
            self._state = "ready"

    def mark_draining(self) -> None:
        """Tell load balancers to send no more; what still comes is served."""
        self._state = "draining"

    def __repr__(self) -> str:
        return f"<Readiness {self._state}>"


def build_metrics_app(metrics: RequestMetrics) -> Starlette:
    """Return the ASGI app of the metrics listener: `/metrics` and `/healthz`."""

    async def scrape(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # In a thread: text for 1,000 namespaces takes longer than a request may wait.
        content = await asyncio.to_thread(encode, metrics.registry)
        return Response(content, headers={"content-type": content_type})

    async def alive(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse({"status": "ok"})

    return Starlette(routes=[Route("/metrics", scrape), Route("/healthz", alive)])
