"""Help for the tests of programs that use sandboxes.

`running_gateway` gives a real gateway with sandboxes on this machine; `FakeGateway` a scripted
one without any process, for unit tests. For pytest, `pytest_plugins = ["sandgate.testing.plugin"]`
in a conftest.py brings the fixtures `sandgate_gateway`, `sandgate_sandbox` and `fake_gateway`.
"""

from sandgate.testing.fake import FakeGateway, Script
from sandgate.testing.gateway import (
    GatewayRefused,
    RunningGateway,
    TestGatewayError,
    running_gateway,
)

__all__ = [
    "FakeGateway",
    "GatewayRefused",
    "RunningGateway",
    "Script",
    "TestGatewayError",
    "running_gateway",
]
