"""`POST /v1/processes` and `GET /v1/health`."""

import time
from typing import TYPE_CHECKING

from sandgate_runtime.errors import InvalidRequest, ShuttingDown
from sandgate_runtime.exchange import json_answer, read_json
from sandgate_runtime.paths import PathRules
from sandgate_runtime.processes.engine import Engine
from sandgate_runtime.v1.request import parse_command
from sandgate_runtime.v1.stream import PING_SECONDS, ProcessStream

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

EVENT_STREAM = "text/event-stream"


class V1:
    """The routes under `/v1`."""

    def __init__(self, engine: Engine, rules: PathRules, *, ping: float = PING_SECONDS) -> None:
        self._engine = engine
        self._rules = rules
        self._ping = ping
        self._started = time.monotonic()

    async def create_process(self, request: "Request") -> ProcessStream:
        """Run a command and stream it.

        Without an event stream nobody would hear of the command, and nothing would keep it: 422,
        the status that stays for a request which asks for neither watching nor lingering.
        """
        command = parse_command(await read_json(request), self._rules)
        if not accepts_event_stream(request.headers.getlist("accept")):
            raise InvalidRequest(f"a process is only started with Accept: {EVENT_STREAM}")
        return ProcessStream(self._engine, command, ping=self._ping)

    async def health(self, _request: "Request") -> "Response":
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


def accepts_event_stream(values: list[str]) -> bool:
    """Say whether the Accept fields name the event stream itself; `*/*` does not ask for one."""
    ranges = [part.partition(";")[0].strip().lower() for part in ",".join(values).split(",")]
    return EVENT_STREAM in ranges
