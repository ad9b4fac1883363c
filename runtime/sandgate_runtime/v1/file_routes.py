"""Which routes there are under `/v1` for files, changes to them, and metadata."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.routing import Route

from sandgate_runtime.paths import PathRules
from sandgate_runtime.v1.files import V1Files
from sandgate_runtime.v1.metadata import Metadata
from sandgate_runtime.v1.watch import Watches

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp


def build_file_routes(rules: PathRules, environ: Mapping[str, str]) -> "list[BaseRoute]":
    """Return the routes; those with a verb come first, since a path may be anything."""
    files = V1Files(rules)
    one = "/v1/files/{path:rest}"

    async def serve(request: "Request") -> "ASGIApp":
        # One route for all methods, so that a 405 names every one that there is.
        answers = {"PUT": files.write, "DELETE": files.remove}
        return await answers.get(request.method, files.read)(request)

    return [
        Route(f"{one}:move", files.move, methods=["POST"]),
        Route(f"{one}:mkdir", files.make, methods=["POST"]),
        Route(one, serve, methods=["GET", "PUT", "DELETE"]),
        Route("/v1/watch", Watches(rules).watch),
        Route("/v1/metadata", Metadata(environ).metadata),
    ]
