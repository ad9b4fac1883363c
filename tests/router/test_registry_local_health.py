"""What a runtime is asked, against real sockets: it may answer anything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandgate_router.registry.base import Endpoint
from sandgate_router.registry.local.health import (
    MAX_ANSWER_BYTES,
    NotHealthy,
    ask_health,
    count_running,
)

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"


@contextlib.asynccontextmanager
async def answering(folder: Path, answer: bytes) -> AsyncIterator[tuple[Endpoint, list[bytes]]]:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        with contextlib.suppress(OSError):
            writer.write(answer)
            await writer.drain()
        writer.close()

    path = folder / "s"
    async with await asyncio.start_unix_server(serve, path):
        yield Endpoint(uid="u-1", name="default/sb", path=str(path)), heads


@pytest.mark.parametrize("running", [0, 7])
async def test_the_runtime_is_asked_as_the_sandbox_that_is_meant(
    tmp_path: Path, running: int
) -> None:
    body = b'{"status": "ok", "running": %d, "more": [1]}' % running
    async with answering(tmp_path, OK + body) as (endpoint, heads):
        await ask_health(endpoint)
        assert await count_running(endpoint) == running
    assert heads[0].startswith(b"GET /v1/health HTTP/1.1\r\n")
    assert b"X-Sandbox-Expect-UID: u-1\r\n" in heads[0]
    assert b"X-Sandbox-Expect-Name: default/sb\r\n" in heads[0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "answered nothing"),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "answered HTTP/1.1 503 Busy"),
        (OK, "does not say what runs"),
        (OK + b"{}", "does not say what runs"),
        (OK + b'{"running": "1"}', "does not say what runs"),
        (OK + b'{"running": -1}', "does not say what runs"),
        (OK + b'{"running": 1.5}', "does not say what runs"),
        (OK + b"[" * 8000, "does not say what runs"),
        (OK + b" " * (MAX_ANSWER_BYTES * 3), "longer than"),
    ],
)
async def test_an_answer_that_says_nothing_is_told_apart(
    tmp_path: Path, answer: bytes, message: str
) -> None:
    async with answering(tmp_path, answer) as (endpoint, _):
        with pytest.raises(NotHealthy, match=message):
            await count_running(endpoint)


async def test_a_sandbox_that_is_gone_is_not_healthy(tmp_path: Path) -> None:
    with pytest.raises(NotHealthy, match="cannot be connected to"):
        await count_running(Endpoint(uid="u", name="default/sb", path=str(tmp_path / "none")))
