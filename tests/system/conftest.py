"""Gateways as real processes, shared by the tests of a module that leave them as they were."""

from collections.abc import Iterator
from typing import cast

import pytest
from support.system_gateway import SystemGateway, bubblewrap_fault, need, sandgate_up

from sandgate import Sandbox


@pytest.fixture(scope="module", params=["bubblewrap", "none"])
def isolation(request: pytest.FixtureRequest) -> str:
    """Return each isolation in turn; a test may choose one by parametrizing it itself."""
    chosen = cast(str, request.param)
    need(chosen)
    return chosen


@pytest.fixture(scope="module")
def best_isolation() -> str:
    """Return the isolation that a user of this machine has."""
    return "bubblewrap" if bubblewrap_fault() is None else "none"


@pytest.fixture(scope="module")
def gateway(isolation: str) -> Iterator[SystemGateway]:
    """Yield a gateway that the tests of a module share."""
    with sandgate_up(isolation=isolation) as gateway:
        yield gateway


@pytest.fixture
def sandbox(gateway: SystemGateway) -> Iterator[Sandbox]:
    """Yield a sandbox that nobody else has used."""
    with gateway.sandboxes() as sandboxes, sandboxes.claim("python") as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep clients that read proxies from the environment on the loopback."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")
