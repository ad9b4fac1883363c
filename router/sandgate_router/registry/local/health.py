"""The one question a new sandbox is asked before it counts as ready.

The listening socket exists before the runtime does, so there is nothing to poll: the
request waits in the socket's queue, and the answer comes the moment the runtime serves.
"""

import asyncio
import contextlib

from sandgate_router.registry.base import Endpoint


class NotHealthy(Exception):
    """The runtime closed the connection or answered something other than 200."""


async def ask_health(endpoint: Endpoint) -> None:
    """Return once the runtime behind `endpoint` has answered 200; raise NotHealthy."""
    try:
        reader, writer = await asyncio.open_unix_connection(endpoint.path)
    except OSError as error:
        raise NotHealthy(f"cannot be connected to: {error}") from error
    try:
        writer.write(
            b"GET /v1/health HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n"
            b"X-Sandbox-Expect-UID: %b\r\nX-Sandbox-Expect-Name: %b\r\n\r\n"
            % (str(endpoint.uid).encode(), endpoint.name.encode())
        )
        line = await reader.readline()
    except (OSError, ValueError) as error:
        raise NotHealthy(f"broke the connection: {error}") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if line.split()[1:2] != [b"200"]:
        raise NotHealthy(f"answered {line.decode(errors='replace').strip() or 'nothing'}")
