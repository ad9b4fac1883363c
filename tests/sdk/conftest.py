"""A scripted gateway, and a handle on it with one claimed sandbox."""

from collections.abc import Iterator

import pytest
from support.scripted_server import ScriptedServer, json_response, response

from sandgate import Gateway, Sandbox, Sandboxes

CLAIM = {
    "claim": "c-1",
    "namespace": "default",
    "sandbox": "sb-1",
    "uid": "u-1",
    "port": 8888,
    "pool": "python",
    "launch": "warm",
    "isolation": "bubblewrap",
    "state": "ready",
    "created_at": "2026-11-30T10:00:00Z",
    "expires_at": "2026-11-30T11:00:00Z",
    "token": "sg1.secret",
    "token_expires_at": "2026-11-30T11:00:00Z",
    "timings": {"total": 1.5},
}


@pytest.fixture
def claim() -> dict[str, object]:
    """Return what the gateway answers to a claim."""
    return dict(CLAIM)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Yield a gateway that answers as a test scripts it."""
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def sandboxes(server: ScriptedServer) -> Iterator[Sandboxes]:
    """Yield a handle on the scripted gateway."""
    with Sandboxes(Gateway(server.url)) as sandboxes:
        yield sandboxes


@pytest.fixture
def sandbox(server: ScriptedServer, sandboxes: Sandboxes, claim: dict[str, object]) -> Sandbox:
    """Return a claimed sandbox; its release is scripted, once."""
    server.answer("POST", "/v1/claims", json_response(claim, status=201))
    server.answer("DELETE", "/v1/claims/default/c-1?uid=u-1", response(204))
    return sandboxes.claim("python")


@pytest.fixture
def dead_url() -> str:
    """Return the URL of a gateway that has just ended."""
    with ScriptedServer() as server:
        return server.url
