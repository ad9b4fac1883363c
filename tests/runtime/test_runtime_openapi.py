"""The interface's description against the routes and the errors that there are."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.routing import Route, WebSocketRoute
from support.runtime_server import RuntimeServer

from sandgate_runtime import errors
from sandgate_runtime.app import build_app
from sandgate_runtime.config import Config
from sandgate_runtime.guard import Guard
from sandgate_runtime.processes.engine import Engine
from sandgate_runtime.processes.keys import Keys
from sandgate_runtime.processes.runs import Runs

DOCUMENT = Path(__file__).parents[2] / "runtime" / "openapi.yaml"


@pytest.fixture(scope="module")
def description() -> Any:
    return yaml.safe_load(DOCUMENT.read_text())


async def test_every_route_is_described_and_no_other(description: Any, tmp_path: Path) -> None:
    config = Config(base_directory=str(tmp_path))
    engine = Engine(config, environ={})
    guarded = build_app(config, engine, Runs(engine, config), Keys())
    assert isinstance(guarded, Guard)
    app: Any = guarded._app
    served = {
        (route.path.replace(":rest", ""), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    # A WebSocket begins with a GET (RFC 6455 section 4.1).
    served |= {(route.path, "get") for route in app.routes if isinstance(route, WebSocketRoute)}
    described = {
        (path, method)
        for path, item in description["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert served == described


def test_every_code_and_reason_of_an_error_fits_the_description(description: Any) -> None:
    error = description["components"]["schemas"]["Error"]["properties"]
    refusals = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.Refusal)
    ]
    assert len(refusals) > 10
    for refusal in refusals:
        assert refusal.code in error["code"]["enum"]
        assert refusal.reason.replace("_", "").isalpha()


def test_every_reference_in_the_description_leads_somewhere(description: Any) -> None:
    def references(node: object) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if "$ref" in node else []
            return own + [found for value in node.values() for found in references(value)]
        if isinstance(node, list):
            return [found for value in node for found in references(value)]
        return []

    for reference in references(description):
        target = description
        for name in reference.removeprefix("#/").split("/"):
            target = target[name]


def test_health_has_the_members_that_are_described(
    runtime: RuntimeServer, description: Any
) -> None:
    answer = description["paths"]["/v1/health"]["get"]["responses"]["200"]
    schema = answer["content"]["application/json"]["schema"]
    assert set(runtime.client.get("/v1/health").json()) == set(schema["required"])
