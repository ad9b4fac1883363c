"""A sandbox, a gateway that knows it as `sb`, and a client: what most tests of the relay need."""

import contextlib
from collections.abc import AsyncIterator

from support.raw_client import RawClient, connect
from support.running_gateway import RunningGateway, running_gateway
from support.scripted_upstream import Script, ScriptedUpstream


@contextlib.asynccontextmanager
async def relaying(
    script: Script, **settings: str
) -> AsyncIterator[tuple[ScriptedUpstream, RunningGateway, RawClient]]:
    """Run all three; keyword arguments are settings by the name of their variable."""
    async with (
        ScriptedUpstream(script).running() as upstream,
        running_gateway(**settings) as gateway,
        connect(gateway.port) as client,
    ):
        gateway.registry.add("sb", upstream.port)
        yield upstream, gateway, client
