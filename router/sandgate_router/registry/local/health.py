"""What a runtime is asked: whether it serves, before its sandbox counts as ready, and how many
commands run, before a claim ends because nobody uses it.

The listening socket exists before the runtime does, so there is nothing to poll: the
request waits in the socket's queue, and the answer comes the moment the runtime serves.
The answer comes from where anybody's code may run, so it is read with limits.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec

from sandgate_router.registry.base import Endpoint

MAX_ANSWER_BYTES = 16 * 1024
"""Longest answer that is read; ours has 200 bytes."""


class NotHealthy(Exception):
    """The runtime closed the connection or answered something other than 200."""


class _Health(msgspec.Struct):
    running: Annotated[int, msgspec.Meta(ge=0)]


async def ask_health(endpoint: Endpoint) -> None:
    """Return once the runtime behind `endpoint` has answered 200; raise NotHealthy."""
    await _ask(endpoint, asyncio.StreamReader.readline)


async def count_running(endpoint: Endpoint) -> int:
    """Return how many commands run inside; raise NotHealthy when the runtime does not say."""
    answer = await _ask(endpoint, _read_all)
    _, _, content = answer.partition(b"\r\n\r\n")
    try:
        return msgspec.json.decode(content, type=_Health).running
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotHealthy(f"does not say what runs: {error}") from error


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while part := await reader.read(MAX_ANSWER_BYTES):
        answer += part
        if len(answer) > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(answer)


async def _connect(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if endpoint.path:
        return await asyncio.open_unix_connection(endpoint.path, limit=MAX_ANSWER_BYTES)
    return await asyncio.open_connection(endpoint.host, endpoint.port, limit=MAX_ANSWER_BYTES)


async def _ask(
    endpoint: Endpoint, read: Callable[[asyncio.StreamReader], Awaitable[bytes]]
) -> bytes:
    try:
        reader, writer = await _connect(endpoint)
    except OSError as error:
        raise NotHealthy(f"cannot be connected to: {error}") from error
    try:
        writer.write(
            b"GET /v1/health HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n"
            b"X-Sandbox-Expect-UID: %b\r\nX-Sandbox-Expect-Name: %b\r\n\r\n"
            % (str(endpoint.uid).encode(), endpoint.name.encode())
        )
        answer = await read(reader)
    except (OSError, ValueError) as error:
        raise NotHealthy(f"broke the connection: {error}") from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    line, _, _ = answer.partition(b"\r\n")
    if line.split()[1:2] != [b"200"]:
        raise NotHealthy(f"answered {line.decode(errors='replace').strip() or 'nothing'}")
    return answer
