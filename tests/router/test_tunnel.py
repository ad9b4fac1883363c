"""WebSockets through the gateway, with a real client and a real server on both sides."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from support.raw_client import RawClient, connect, request
from support.relaying import relaying
from support.running_gateway import RunningGateway, running_gateway
from support.scripted_upstream import ScriptedUpstream, UpstreamSide, answer_ok
from websockets.asyncio.client import connect as open_websocket
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

Handler = Callable[[ServerConnection], Awaitable[None]]


async def echo(websocket: ServerConnection) -> None:
    async for message in websocket:
        await websocket.send(message)


@contextlib.asynccontextmanager
async def tunnelling(
    handler: Handler, subprotocols: list[Subprotocol] | None = None, /, **settings: str
) -> AsyncIterator[tuple[RunningGateway, Callable[..., open_websocket]]]:
    """Run a WebSocket server behind a gateway; yield the gateway and what opens a client."""
    async with (
        serve(
            handler,
            "127.0.0.1",
            0,
            subprotocols=subprotocols,
            max_size=None,
        ) as server,
        running_gateway(**settings) as gateway,
    ):
        port = next(iter(server.sockets)).getsockname()[1]
        gateway.registry.add("sb", port)

        def open_client(path: str = "/", **options: object) -> open_websocket:
            fields = {"X-Sandbox-ID": "sb", **options.pop("fields", {})}  # type: ignore[dict-item]
            return open_websocket(
                f"ws://127.0.0.1:{gateway.port}{path}",
                additional_headers=fields,
                max_size=None,
                proxy=None,
                **options,  # type: ignore[arg-type]
            )

        yield gateway, open_client


async def test_text_and_binary_pass_both_ways_and_the_subprotocol_is_the_servers() -> None:
    served = [Subprotocol("b"), Subprotocol("a")]
    async with tunnelling(echo, served) as (gateway, open_client):
        websocket = await open_client(subprotocols=["a", "b"])
        assert websocket.subprotocol == "b"
        for message in ("text ✓", b"\x00\xff", "", "x" * 100_000):
            await websocket.send(message)
            assert await websocket.recv() == message
        assert len(gateway.gateway.relay.tunnels.live) == 1
        await (await websocket.ping())
        await websocket.close()
        await settled(gateway)


async def settled(gateway: RunningGateway) -> None:
    """Wait until nothing of a tunnel is left."""
    tunnels = gateway.gateway.relay.tunnels
    async with asyncio.timeout(10):
        while tunnels.live or tunnels.counts or gateway.gateway.connections or gateway.dials:
            await asyncio.sleep(0.002)
    assert gateway.gateway.metrics.inflight == 0


async def test_the_handshake_reaches_the_sandbox_without_origin_and_routing() -> None:
    seen: list[Request] = []

    async def handler(websocket: ServerConnection) -> None:
        assert websocket.request is not None
        seen.append(websocket.request)

    async with tunnelling(handler) as (gateway, open_client):
        origin = f"http://127.0.0.1:{gateway.port}"
        async with open_client("/chat?x=1", fields={"X-App": "1"}, origin=origin) as websocket:
            await websocket.wait_closed()
    [head] = seen
    assert head.path == "/chat?x=1"
    assert head.headers["Host"] == "sb.default.svc.cluster.local:8888"
    assert head.headers["X-App"] == "1"
    assert "Origin" not in head.headers
    assert "X-Sandbox-ID" not in head.headers


async def test_origin_passes_where_it_is_to_be_kept() -> None:
    seen: list[str] = []

    async def handler(websocket: ServerConnection) -> None:
        assert websocket.request is not None
        seen.append(websocket.request.headers["Origin"])

    async with tunnelling(handler, SANDGATE_KEEP_ORIGIN="true") as (gateway, open_client):
        origin = f"http://127.0.0.1:{gateway.port}"
        async with open_client(origin=origin) as websocket:
            await websocket.wait_closed()
        assert seen == [origin]


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (4001, "mine"), (1011, "broken")])
async def test_a_close_of_the_sandbox_reaches_the_client_as_it_is(code: int, reason: str) -> None:
    async def handler(websocket: ServerConnection) -> None:
        await websocket.close(code, reason)

    async with tunnelling(handler) as (gateway, open_client):
        async with open_client() as websocket:
            with pytest.raises(ConnectionClosed):
                await websocket.recv()
            assert (websocket.close_code, websocket.close_reason) == (code, reason)
        await settled(gateway)


async def test_a_close_of_the_client_reaches_the_sandbox_as_it_is() -> None:
    codes: asyncio.Future[tuple[int | None, str | None]] = asyncio.Future()

    async def handler(websocket: ServerConnection) -> None:
        await websocket.wait_closed()
        codes.set_result((websocket.close_code, websocket.close_reason))

    async with tunnelling(handler) as (gateway, open_client):
        async with open_client() as websocket:
            await websocket.close(4002, "enough")
        assert await asyncio.wait_for(codes, 10) == (4002, "enough")
        await settled(gateway)


async def test_a_client_that_vanishes_takes_its_sandbox_along() -> None:
    gone = asyncio.Event()

    async def handler(websocket: ServerConnection) -> None:
        await websocket.wait_closed()
        gone.set()

    async with tunnelling(handler) as (gateway, open_client):
        websocket = await open_client()
        websocket.transport.abort()
        await asyncio.wait_for(gone.wait(), 10)
        await settled(gateway)


async def test_a_refusal_of_the_sandbox_reaches_the_client_with_its_body() -> None:
    async def refuse(connection: ServerConnection, request: Request) -> Response:
        del request
        return connection.respond(401, "who are you\n")

    async with (
        serve(echo, "127.0.0.1", 0, process_request=refuse) as server,
        running_gateway() as gateway,
    ):
        gateway.registry.add("sb", next(iter(server.sockets)).getsockname()[1])
        url = f"ws://127.0.0.1:{gateway.port}/"
        with pytest.raises(InvalidStatus) as caught:
            await open_websocket(url, additional_headers={"X-Sandbox-ID": "sb"}, proxy=None)
        assert caught.value.response.status_code == 401
        assert caught.value.response.body == b"who are you\n"
        await settled(gateway)


async def test_an_unknown_sandbox_is_refused_before_any_upgrade() -> None:
    async with tunnelling(echo) as (gateway, open_client):
        with pytest.raises(InvalidStatus) as caught:
            await open_client(fields={"X-Sandbox-ID": "unknown"})
        response = caught.value.response
        assert (response.status_code, response.headers["X-Sandbox-Error"]) == (
            404,
            "sandbox_not_found",
        )
        await settled(gateway)


async def test_a_release_says_1001_to_both_sides() -> None:
    code: asyncio.Future[int | None] = asyncio.Future()

    async def handler(websocket: ServerConnection) -> None:
        await websocket.wait_closed()
        code.set_result(websocket.close_code)

    async with tunnelling(handler) as (gateway, open_client):
        async with open_client() as websocket:
            gateway.registry.remove("sb")
            with pytest.raises(ConnectionClosed):
                await websocket.recv()
            assert (websocket.close_code, websocket.close_reason) == (
                1001,
                "the sandbox was released",
            )
        assert await asyncio.wait_for(code, 10) == 1001
        await settled(gateway)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("WEBSOCKET_IDLE_TIMEOUT_SECONDS", "idle timeout exceeded"),
        ("WEBSOCKET_MAX_LIFETIME_SECONDS", "max lifetime exceeded"),
    ],
)
async def test_a_tunnel_ends_by_silence_and_by_age(setting: str, reason: str) -> None:
    settings = {setting: "0.3"}
    async with tunnelling(echo, None, **settings) as (gateway, open_client):
        async with open_client(ping_interval=None) as websocket:
            with pytest.raises(ConnectionClosed):
                await websocket.recv()
            assert (websocket.close_code, websocket.close_reason) == (1001, reason)
        await settled(gateway)


async def test_any_byte_keeps_a_tunnel_from_being_silent() -> None:
    async with tunnelling(echo, WEBSOCKET_IDLE_TIMEOUT_SECONDS="0.5") as (_, open_client):
        websocket = await open_client(ping_interval=None)
        async with websocket:
            for _ in range(10):
                await (await websocket.ping())
                await asyncio.sleep(0.1)
            await websocket.send("still here")
            assert await websocket.recv() == "still here"


async def test_one_client_has_only_so_many_tunnels_and_each_end_frees_one() -> None:
    async with tunnelling(echo, WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT="2") as (gateway, open_client):
        for _ in range(3):
            first, second = await open_client(), await open_client()
            with pytest.raises(InvalidStatus) as caught:
                await open_client()
            assert caught.value.response.status_code == 429
            assert b"(limit: 2)" in caught.value.response.body
            await asyncio.gather(first.close(), second.close())
            await settled(gateway)


async def test_a_message_of_100_mb_passes_in_little_memory() -> None:
    piece = bytes(range(256)) * 256
    count = 1600
    digest = hashlib.sha256()

    async def handler(websocket: ServerConnection) -> None:
        async for part in websocket.recv_streaming():
            assert isinstance(part, bytes)
            digest.update(part)
        await websocket.send(digest.hexdigest())

    most = 0
    async with tunnelling(handler) as (gateway, open_client), open_client() as websocket:

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal most
            for _ in range(count):
                yield piece
                tunnels = gateway.gateway.relay.tunnels.live
                most = max(most, *(tunnel._connection.unsent for tunnel in tunnels))

        await websocket.send(pieces())
        assert await websocket.recv() == hashlib.sha256(piece * count).hexdigest()
        assert most <= 64 * 1024 + 256 * 1024


HANDSHAKE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
NO_HANDSHAKE = {
    "POST": (request(method="POST", more=HANDSHAKE), 400),
    "content": (request(more=HANDSHAKE + "Content-Length: 2\r\n", body=b"hi"), 400),
    "version 8": (request(more=HANDSHAKE.replace("13", "8")), 426),
    "no version": (request(more=HANDSHAKE.replace("Sec-WebSocket-Version: 13\r\n", "")), 426),
    "short key": (request(more=HANDSHAKE.replace("dGhl", "")), 400),
    "no Connection": (request(more=HANDSHAKE.replace("Connection: Upgrade\r\n", "")), 400),
    "two Upgrades": (request(more=HANDSHAKE + "Upgrade: websocket\r\n"), 400),
}


@pytest.mark.parametrize(("raw", "status"), NO_HANDSHAKE.values(), ids=NO_HANDSHAKE.keys())
async def test_what_is_no_handshake_is_refused(raw: bytes, status: int) -> None:
    async with relaying(answer_ok) as (upstream, gateway, client):
        await client.send(raw)
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (status, "bad_request")
        assert answer.one("Sec-WebSocket-Version") == ("13" if status == 426 else None)
        assert await client.read_rest() == b""
        assert upstream.sides == []
        assert gateway.registry.look_ups == []


@pytest.mark.parametrize(
    "more",
    [
        "Upgrade: foo\r\nConnection: Upgrade\r\n",
        "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: x\r\n",
        "Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n",
    ],
)
async def test_another_upgrade_is_stripped_and_what_follows_is_http(more: str) -> None:
    async with relaying(answer_ok) as (upstream, _gateway, client):
        await client.send(request("/1", more=more) + request("/2"))
        assert [(await client.read_answer()).status for _ in range(2)] == [200, 200]
        assert b"pgrade" not in upstream.received
        assert len(upstream.heads) == 2


ACCEPTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSet-Cookie: a=1\r\n\r\n"
)


async def opened(client: RawClient) -> None:
    await client.send(request(more=HANDSHAKE))
    assert (await client.read_answer()).status == 101


async def test_bytes_glued_to_the_101_arrive_behind_it() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(ACCEPTED + b"\x81\x02hi")
        await side.read_exactly(6)
        side.send(b"\x81\x01!")

    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(request(more=HANDSHAKE))
        answer = await client.read_answer()
        assert (answer.status, answer.one("Set-Cookie")) == (101, "a=1")
        assert await client.reader.readexactly(4) == b"\x81\x02hi"
        await client.send(b"\x81\x80abcd")
        assert await client.reader.readexactly(3) == b"\x81\x01!"


@pytest.mark.parametrize(
    "raw",
    [
        ACCEPTED.replace(b"Upgrade: websocket", b"Upgrade: other"),
        ACCEPTED.replace(b"Connection: Upgrade\r\n", b""),
    ],
)
async def test_a_101_to_something_else_is_a_bad_response(raw: bytes) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(raw)

    async with relaying(script) as (_upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (502, "bad_upstream_response")
        assert gateway.gateway.relay.tunnels.counts == {}


async def test_the_end_of_one_side_is_passed_on_and_the_other_may_go_on() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(ACCEPTED)
        await side.wait_ended()
        side.send(b"\x81\x03bye")

    async with relaying(script) as (_upstream, gateway, client):
        await opened(client)
        client.writer.write_eof()
        assert await client.read_rest() == b"\x81\x03bye"
        await settled(gateway)


async def test_a_reset_of_the_sandbox_is_a_reset_for_the_client() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(ACCEPTED)
        await side.read_exactly(1)
        side.reset()

    async with relaying(script) as (_upstream, gateway, client):
        await opened(client)
        await client.send(b"x")
        with pytest.raises(ConnectionResetError):
            await client.read_rest()
        await settled(gateway)


async def test_no_close_frame_is_put_into_the_middle_of_a_frame() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(ACCEPTED + b"\x81\x05hal")
        await side.wait_ended()

    async with ScriptedUpstream(script).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        async with connect(gateway.port) as client:
            await opened(client)
            assert await client.reader.readexactly(5) == b"\x81\x05hal"
            gateway.registry.remove("sb")
            assert await client.read_rest() == b""
        side = await upstream.side()
        await asyncio.wait_for(side.ended.wait(), 10)
        head, _, frames = side.received.partition(b"\r\n\r\n")
        assert head.startswith(b"GET / ")
        assert frames[0] == 0x88  # towards the sandbox no frame is cut, so it is told
        await settled(gateway)


async def test_a_sandbox_that_does_not_read_pauses_its_client() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(ACCEPTED)
        await asyncio.Event().wait()

    async with relaying(script) as (_upstream, gateway, client):
        await opened(client)
        sending = asyncio.create_task(client.send(b"x" * 100_000_000))
        [connection] = gateway.gateway.connections
        async with asyncio.timeout(20):
            while not connection._content_paused:
                await asyncio.sleep(0.001)
        [tunnel] = gateway.gateway.relay.tunnels.live
        assert tunnel._connection.unsent <= 64 * 1024 + 256 * 1024
        sending.cancel()
