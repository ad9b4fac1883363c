"""Fixtures for pytest: `pytest_plugins = ["sandgate.testing.plugin"]` in a conftest.py."""

from collections.abc import Iterator

import pytest

from sandgate import Sandbox
from sandgate.testing.fake import FakeGateway
from sandgate.testing.gateway import RunningGateway, running_gateway


@pytest.fixture(scope="session")
def sandgate_gateway() -> Iterator[RunningGateway]:
    """Yield a real gateway with local sandboxes, one for all tests."""
    with running_gateway() as gateway:
        yield gateway


@pytest.fixture
def sandgate_sandbox(sandgate_gateway: RunningGateway) -> Iterator[Sandbox]:
    """Yield a sandbox of its own for each test."""
    with sandgate_gateway.sandboxes() as sandboxes, sandboxes.claim("python") as sandbox:
        yield sandbox


@pytest.fixture
def fake_gateway() -> FakeGateway:
    """Return a gateway without processes; give it a script by `fake_gateway.script`."""
    return FakeGateway()
