"""Which routes there are under `/v1` for processes and health."""

import time
from typing import TYPE_CHECKING

from starlette.routing import Route, WebSocketRoute

from sandgate_runtime.errors import ShuttingDown
from sandgate_runtime.exchange import json_answer
from sandgate_runtime.processes.engine import Engine
from sandgate_runtime.v1.attach import Attach
from sandgate_runtime.v1.processes import Processes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute


class Health:
    """`GET /v1/health`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._started = time.monotonic()

    async def get(self, _request: "Request") -> "Response":
        """Say that the runtime is alive, and how many commands run."""
        if self._engine.closed:
            raise ShuttingDown("the runtime is shutting down")
        return json_answer(
            {
                "status": "ok",
                "uptime_seconds": int(time.monotonic() - self._started),
                "running": self._engine.running,
            }
        )


def build_routes(processes: Processes, attach: Attach, health: Health) -> "list[BaseRoute]":
    """Return the routes."""
    one = "/v1/processes/{id}"
    return [
        Route("/v1/health", health.get),
        Route("/v1/processes", processes.create, methods=["POST"]),
        Route("/v1/processes", processes.list),
        Route(one, processes.get),
        Route(one, processes.remove, methods=["DELETE"]),
        Route(f"{one}/events", processes.events),
        Route(f"{one}/stdin", processes.stdin, methods=["POST"]),
        Route(f"{one}/signal", processes.signal, methods=["POST"]),
        Route(f"{one}/resize", processes.resize, methods=["POST"]),
        WebSocketRoute(f"{one}/attach", attach.serve),
    ]
