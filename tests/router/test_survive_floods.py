"""Many tiny pieces, and answers that nobody reads: one peer's flood is not everybody's wait.

Everything here runs in one event loop, so the order of what happens is the order of its turns:
who is answered before the flood has passed did not wait for it.
"""

import asyncio

from support.raw_client import HANDSHAKE, RawClient, connect, request
from support.relaying import relaying
from support.running_gateway import RunningGateway
from support.scripted_upstream import OK, SWITCHED, UpstreamSide

from sandgate_router.client import ClientConnection

PIECES = 20_000
CHUNKS = b"1\r\nx\r\n" * PIECES + b"0\r\n\r\n"


async def pour_out(side: UpstreamSide) -> None:
    """Answer `/flood` with tiny chunks, all in one write, and everything else at once."""
    while head := await side.read_head():
        if b"/flood" in head:
            side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS)
        else:
            side.send(OK)


async def ask(client: RawClient) -> None:
    await client.send(request())
    assert (await client.read_answer()).body == b"ok"


async def test_tiny_chunks_of_a_sandbox_let_others_pass() -> None:
    async with relaying(pour_out) as (_upstream, gateway, client), connect(gateway.port) as other:
        await ask(other)
        await client.send(request(target="/flood"))
        flood = asyncio.create_task(client.read_answer())
        for _ in range(5):
            await ask(other)
            assert not flood.done()
        assert len((await flood).body) == PIECES
        await client.send(request())
        assert (await client.read_answer()).body == b"ok"


async def test_tiny_chunks_of_a_client_let_others_pass() -> None:
    sizes = asyncio.Queue[int]()

    async def swallow(side: UpstreamSide) -> None:
        while True:
            head, content = await side.read_request()
            if not head:
                return
            if b"/flood" in head:
                sizes.put_nowait(len(content))
            side.send(OK)

    async with relaying(swallow) as (_upstream, gateway, client), connect(gateway.port) as other:
        await ask(other)
        more = "Transfer-Encoding: chunked\r\n"
        await client.send(request(target="/flood", method="PUT", more=more) + CHUNKS)
        for _ in range(5):
            await ask(other)
            assert sizes.empty()
        assert (await client.read_answer()).body == b"ok"
        assert sizes.get_nowait() == PIECES


async def test_tiny_frames_of_a_sandbox_let_others_pass() -> None:
    frames = b"\x82\x00" * PIECES

    async def switch(side: UpstreamSide) -> None:
        while b"Upgrade" not in await side.read_head():
            if side.ended.is_set():
                return
            side.send(OK)
        side.send(SWITCHED + frames)
        await side.read()

    async with relaying(switch) as (_upstream, gateway, client), connect(gateway.port) as other:
        await ask(other)
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        arriving = asyncio.create_task(client.reader.readexactly(len(frames)))
        for _ in range(5):
            await ask(other)
            assert not arriving.done()
        assert await arriving == frames


async def test_tiny_frames_of_a_client_let_others_pass() -> None:
    frames = b"\x82\x80abcd" * PIECES
    arriving: list[asyncio.Task[bytes]] = []

    async def switch(side: UpstreamSide) -> None:
        while b"Upgrade" not in await side.read_head():
            if side.ended.is_set():
                return
            side.send(OK)
        side.send(SWITCHED)
        arriving.append(asyncio.create_task(side.read_exactly(len(frames))))
        await arriving[0]

    async with relaying(switch) as (_upstream, gateway, client), connect(gateway.port) as other:
        await ask(other)
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        client.writer.write(frames)
        for _ in range(5):
            await ask(other)
            assert not arriving[0].done()
        assert await arriving[0] == frames


async def test_pipelined_requests_that_are_answered_at_once_let_others_pass() -> None:
    star = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with relaying(pour_out) as (_upstream, gateway, client), connect(gateway.port) as other:
        await ask(other)
        client.writer.write(star * 1500)
        read = 0
        for _ in range(5):
            await ask(other)
        assert _answered(gateway.gateway.connections) < 1500
        for read in range(1500):
            assert (await client.read_answer()).status == 204, read


async def test_requests_whose_answers_nobody_reads_are_not_read_on() -> None:
    star = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with relaying(pour_out) as (_upstream, gateway, client), connect(gateway.port) as other:
        flood = asyncio.create_task(_write_for_ever(client, star * 1000))
        full: list[ClientConnection] = []
        async with asyncio.timeout(60):
            while not full:
                full = [each for each in gateway.gateway.connections if each.full]
                await asyncio.sleep(0.01)
        [connection] = full
        held = []
        for _ in range(5):
            await ask(other)
            held.append(connection.unsent)
        assert max(held) < 1024 * 1024
        assert not flood.done()  # the client's own socket is full
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)


async def test_a_client_that_is_full_gets_no_answer_more_until_it_reads() -> None:
    star = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with relaying(pour_out) as (_upstream, gateway, client), connect(gateway.port) as other:
        await client.send(star)
        assert (await client.read_answer()).status == 204
        [connection] = gateway.gateway.connections - await _others(gateway, other)
        connection.pause_writing()
        await client.send(star * 4)
        for _ in range(3):
            await ask(other)
        assert connection._inbox.data == star * 4
        connection.resume_writing()
        for _ in range(4):
            assert (await client.read_answer()).status == 204


async def _others(gateway: RunningGateway, other: RawClient) -> set[ClientConnection]:
    before = set(gateway.gateway.connections)
    await ask(other)
    ours = other.writer.get_extra_info("sockname")
    return {
        each
        for each in before | gateway.gateway.connections
        if each.transport.get_extra_info("peername") == ours
    }


async def _write_for_ever(client: RawClient, data: bytes) -> None:
    while True:
        client.writer.write(data)
        await client.writer.drain()


def _answered(connections: set[ClientConnection]) -> int:
    """Return how many requests of the connection with most bytes waiting were answered."""
    return 1500 - max(len(connection._inbox.data) for connection in connections) // 40
