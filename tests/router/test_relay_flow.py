"""Backpressure: a slow side pauses the other, and what is held in between stays small."""

import asyncio
import hashlib

import pytest
from support.raw_client import RawClient, request
from support.relaying import relaying
from support.running_gateway import RunningGateway
from support.scripted_upstream import OK, UpstreamSide, answer_ok

PIECE = bytes(range(256)) * 256
COUNT = 800
TOTAL = len(PIECE) * COUNT
HELD_AT_MOST = 64 * 1024 + 256 * 1024
"""The high-water mark, and one read of uvloop on top."""


def held(gateway: RunningGateway) -> int:
    """Return the bytes that the gateway holds for either side."""
    relay = gateway.gateway.relay
    for_clients = sum(connection.unsent for connection in gateway.gateway.connections)
    return for_clients + sum(c.unsent for lent in relay.connector.pool._all.values() for c in lent)


async def settled(gateway: RunningGateway, progress: list[int]) -> int:
    """Wait until the stream has come to rest, and return the most that was held meanwhile."""
    most, before, still = 0, -1, 0
    async with asyncio.timeout(30):
        while still < 50:
            await asyncio.sleep(0.002)
            most = max(most, held(gateway))
            still = still + 1 if progress[0] == before and progress[0] else 0
            before = progress[0]
    return most


async def download(side: UpstreamSide, progress: list[int], framing: bytes) -> None:
    await side.read_request()
    side.send(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n")
    chunked = framing.startswith(b"Transfer")
    for _ in range(COUNT):
        side.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if chunked else PIECE)
        await side.drain()
        progress[0] += 1
    if chunked:
        side.send(b"0\r\n\r\n")
    await answer_ok(side)


@pytest.mark.parametrize(
    "framing", [b"Content-Length: %d\r\n" % TOTAL, b"Transfer-Encoding: chunked\r\n"]
)
async def test_a_client_that_does_not_read_stops_its_sandbox_and_loses_nothing(
    framing: bytes,
) -> None:
    progress = [0]

    async def script(side: UpstreamSide) -> None:
        await download(side, progress, framing)

    async with relaying(
        script,
    ) as (upstream, gateway, client):
        await client.send(request())
        most = await settled(gateway, progress)
        assert progress[0] < COUNT
        assert 0 < most <= HELD_AT_MOST
        answer = await client.read_answer()
        expected = hashlib.sha256(PIECE * COUNT).digest()
        assert hashlib.sha256(answer.body).digest() == expected
        # The connection was paused on the way; taken from the pool it reads again.
        await client.send(request())
        assert (await client.read_answer()).body == b"ok"
        assert len(upstream.sides) == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_sandbox_that_does_not_read_stops_its_client_and_loses_nothing(
    chunked: bool,
) -> None:
    may_read = asyncio.Event()
    digest = hashlib.sha256()

    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        await may_read.wait()
        _, body = await read_body(side)
        digest.update(body)
        side.send(OK)

    async def read_body(side: UpstreamSide) -> tuple[bytes, bytes]:
        if chunked:
            return b"", await side._read_chunks()
        return b"", await side.read_exactly(TOTAL)

    async with relaying(script) as (_upstream, gateway, client):
        progress = [0]
        sending = asyncio.create_task(_upload(client, progress, chunked=chunked))
        most = await settled(gateway, progress)
        assert progress[0] < COUNT
        assert 0 < most <= HELD_AT_MOST
        may_read.set()
        assert (await client.read_answer()).body == b"ok"
        await sending
        assert digest.digest() == hashlib.sha256(PIECE * COUNT).digest()


async def _upload(client: RawClient, progress: list[int], *, chunked: bool) -> None:
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {TOTAL}"
    await client.send(request(method="PUT", more=f"{framing}\r\n"))
    for _ in range(COUNT):
        await client.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if chunked else PIECE)
        progress[0] += 1
    if chunked:
        await client.send(b"0\r\n\r\n")


async def test_content_sent_while_dialling_waits_and_is_bounded() -> None:
    async def script(side: UpstreamSide) -> None:
        assert await read_all(side) == PIECE * COUNT
        side.send(OK)

    async def read_all(side: UpstreamSide) -> bytes:
        return (await side.read_request())[1]

    async with relaying(script) as (_upstream, _gateway, client):
        await _upload(client, [0], chunked=False)
        assert (await client.read_answer()).body == b"ok"


async def test_a_client_that_pipelines_without_reading_is_not_read_without_end() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()

    async with relaying(script) as (upstream, gateway, client):
        sending = asyncio.create_task(
            client.send(request(more="X: " + "a" * 1000 + "\r\n") * 50_000)
        )
        await upstream.side()
        [connection] = gateway.gateway.connections
        async with asyncio.timeout(20):
            while not connection._pipeline_paused:
                await asyncio.sleep(0.001)
        assert len(connection._inbox.data) <= 64 * 1024 + 256 * 1024
        assert not sending.done()
        sending.cancel()
