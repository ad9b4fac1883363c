"""Which request goes to whom, and what an error looks like on the way out."""

from types import MappingProxyType
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from sandgate_runtime.config import Config
from sandgate_runtime.errors import Refusal
from sandgate_runtime.exchange import json_answer
from sandgate_runtime.guard import Guard
from sandgate_runtime.legacy.commands import execute
from sandgate_runtime.legacy.files import LegacyFiles
from sandgate_runtime.paths import PathRules
from sandgate_runtime.v1.attach import Attach
from sandgate_runtime.v1.file_routes import build_file_routes
from sandgate_runtime.v1.processes import Processes
from sandgate_runtime.v1.routes import Health, build_routes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from sandgate_runtime.processes.engine import Engine
    from sandgate_runtime.processes.keys import Keys
    from sandgate_runtime.processes.runs import Runs


_NO_VARIABLES: "Mapping[str, str]" = MappingProxyType({})

LEGACY_FILE_ROUTES = ("/upload", "/download/", "/list/", "/exists/")
"""Whose errors have a message and nothing else."""


class _Rest(Convertor[str]):
    """The rest of a path, whatever it holds: file names may have line ends."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("rest", _Rest())


def build_app(
    config: Config,
    engine: "Engine",
    runs: "Runs",
    keys: "Keys",
    *,
    environ: "Mapping[str, str]" = _NO_VARIABLES,
) -> "ASGIApp":
    """Return the whole HTTP application; `environ` is told by `/v1/metadata`."""
    rules = PathRules(config.base_directory, isolated=config.isolated)
    files = LegacyFiles(rules)
    processes = Processes(runs, keys, rules, config=config)

    async def run(request: "Request") -> "ASGIApp":
        return await execute(request, engine, rules, config=config)

    routes = [
        _only("GET", Route("/", _welcome)),
        Route("/execute", run, methods=["POST"]),
        Route("/upload", files.upload, methods=["POST"]),
        _only("GET", Route("/download/{path:rest}", files.download)),
        _only("GET", Route("/list/{path:rest}", files.list)),
        _only("GET", Route("/exists/{path:rest}", files.exists)),
        *build_routes(processes, Attach(runs), Health(engine)),
        *build_file_routes(rules, environ),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            Refusal: _answer_refusal,
            HTTPException: _answer_http_error,
            ClientDisconnect: _answer_nobody,
            Exception: _answer_bug,
        },
    )
    app.router.redirect_slashes = False
    return Guard(app, config=config)


async def _welcome(_request: "Request") -> "Response":
    return json_answer({"status": "ok", "message": "Sandbox Runtime is active."})


def _only(method: str, route: Route) -> Route:
    """Take away HEAD, which a route for GET gets by itself: the legacy routes answer 405."""
    route.methods = {method}
    return route


async def _answer_refusal(request: "Request", error: Exception) -> "Response":
    assert isinstance(error, Refusal)
    if request.url.path.startswith(LEGACY_FILE_ROUTES):
        return json_answer({"message": error.message}, status=error.status)
    return json_answer(error.body(), status=error.status)


async def _answer_http_error(request: "Request", error: Exception) -> "Response":
    assert isinstance(error, HTTPException)
    if request.url.path.startswith("/v1/"):
        known = {404: ("NOT_FOUND", "not_found"), 405: ("INVALID_ARGUMENT", "method_not_allowed")}
        code, reason = known.get(error.status_code, ("INTERNAL", "internal_error"))
        body: object = {"code": code, "message": error.detail, "reason": reason}
    else:
        body = {"detail": error.detail}
    answer = json_answer(body, status=error.status_code)
    answer.headers.update(error.headers or {})
    if error.status_code == 405:
        answer.headers["allow"] = ", ".join(_list_methods(request))
    return answer


def _list_methods(request: "Request") -> list[str]:
    """Return what the path of a request can be asked for (RFC 9110 section 10.2.1).

    A path has a route for each method, and the one that refused knows only its own.
    """
    matching = (
        route.methods or set()
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    )
    return sorted(set().union(*matching))


async def _answer_nobody(_request: "Request", _error: Exception) -> "Response":
    """Answer a client that has left before its request was whole: nobody reads this."""
    return json_answer(Refusal("the request was not whole").body(), status=400)


async def _answer_bug(_request: "Request", _error: Exception) -> "Response":
    # Starlette logs and raises it again once this answer is out.
    body = Refusal("the runtime failed; its log says how").body()
    return json_answer(body, status=500)
