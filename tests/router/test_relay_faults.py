"""Sandboxes and clients that break off: what the other side learns, and what is sent again."""

import asyncio
import socket

import pytest
from support.raw_client import connect, request
from support.relaying import relaying
from support.running_gateway import running_gateway
from support.scripted_upstream import (
    LASTING_OK,
    OK,
    ScriptedUpstream,
    UpstreamSide,
    answer_ok,
    answering,
)

from sandgate_router.registry.base import Endpoint


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_refused_connection_is_dialled_four_times_and_then_502() -> None:
    async with running_gateway() as gateway, connect(gateway.port) as client:
        gateway.registry.add("sb", unused_port())
        await client.send(request(method="POST", more="Content-Length: 2\r\n", body=b"hi"))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (502, "connection_refused")
        assert answer.json == {
            "detail": "Could not connect to the backend sandbox: sb",
            "code": "connection_refused",
            "reached": "no",
            "retry_safe": True,
        }
        samples = list(gateway.gateway.metrics.collect())
        retries = next(s for s in samples if s.name == "sandbox_router_upstream_retries")
        assert [sample.value for sample in retries.samples] == [3]
        await client.send(request("/healthz", sandbox=None))
        assert (await client.read_answer()).status == 200


async def test_a_sandbox_that_starts_to_listen_meanwhile_gets_the_request_once() -> None:
    port = unused_port()
    bodies = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await reader.readuntil(b"hello"))
        writer.write(OK)
        await reader.read()
        writer.close()

    async with running_gateway() as gateway, connect(gateway.port) as client:
        gateway.registry.add("sb", port)
        await client.send(request(method="POST", more="Content-Length: 5\r\n", body=b"hello"))
        async with asyncio.timeout(10):
            while not gateway.gateway.metrics._retries:
                await asyncio.sleep(0.001)
        server = await asyncio.start_server(script, "127.0.0.1", port)
        async with server:
            assert (await client.read_answer()).body == b"ok"
        assert len(bodies) == 1


async def test_a_sandbox_released_while_it_is_dialled_is_not_found() -> None:
    async with running_gateway() as gateway, connect(gateway.port) as client:
        gateway.registry.add("sb", unused_port())
        await client.send(request())
        while not gateway.registry.look_ups:
            await asyncio.sleep(0.001)
        gateway.registry.remove("sb")
        assert (await client.read_answer()).code == "sandbox_not_found"


SILENT_ENDS = [
    ("GET", "", b""),
    ("POST", "Content-Length: 2\r\n", b"hi"),
    ("DELETE", "", b""),
]


@pytest.mark.parametrize(("method", "more", "body"), SILENT_ENDS)
@pytest.mark.parametrize("reset", [False, True])
async def test_a_fresh_connection_that_dies_unanswered_is_502_and_not_tried_again(
    method: str, more: str, body: bytes, reset: bool
) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.reset() if reset else side.end()

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(method=method, more=more, body=body))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (502, "upstream_closed")
        assert answer.json["reached"] == "unknown"
        assert answer.json["retry_safe"] is (method != "POST")
        assert len(upstream.heads) == 1
        assert gateway.dials == 0


@pytest.mark.parametrize(
    ("method", "more", "body", "replayed"),
    [
        ("GET", "", b"", True),
        ("HEAD", "", b"", True),
        ("OPTIONS", "", b"", True),
        ("GET", "Content-Length: 2\r\n", b"hi", False),
        ("POST", "", b"", False),
        ("PUT", "Content-Length: 2\r\n", b"hi", False),
        ("DELETE", "", b"", False),
    ],
)
async def test_only_a_safe_request_without_content_is_replayed_and_only_on_a_reused_connection(
    method: str, more: str, body: bytes, replayed: bool
) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(OK if b"HEAD" not in side.received else OK[:-2])
        if len(upstream.sides) == 1:
            await side.read_request()
            side.end()

    async with relaying(script) as (upstream, _gateway, client):
        await client.send(request())
        assert (await client.read_answer()).status == 200
        await client.send(request("/again", method=method, more=more, body=body))
        answer = await client.read_answer(head_only=method == "HEAD")
        assert answer.status == (200 if replayed else 502)
        assert sum(b" /again " in head for head in upstream.heads) == (2 if replayed else 1)


BAD_ANSWERS = {
    "T33 garbage": b"GARBAGE\r\n\r\n",
    "T33 garbage without an end": b"GARBAGE",
    "U07 end in the head": b"HTTP/1.1 200 OK\r\nContent-",
    "U12 endless head": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000,
    "U12 many fields": b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 20_000 + b"\r\n",
    "U13 bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "U13 HTTP/3.0": b"HTTP/3.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "U14 two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "U14 bad chunk at once": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "U20 too many interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 17,
    "U21 unasked 101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
}


@pytest.mark.parametrize("raw", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_what_is_no_response_is_502_and_its_connection_is_closed(raw: bytes) -> None:
    async with relaying(answering(raw, end=True)) as (_upstream, gateway, client):
        await client.send(request())
        answer = await client.read_answer()
        while answer.status == 100:
            answer = await client.read_answer()
        assert (answer.status, answer.code) == (502, "bad_upstream_response")
        assert answer.json["reached"] == "yes"
        assert gateway.dials == 0


BROKEN_OFF = {
    "U08 length": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "U08 chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
}


@pytest.mark.parametrize("raw", BROKEN_OFF.values(), ids=BROKEN_OFF.keys())
@pytest.mark.parametrize("reset", [False, True])
async def test_a_response_that_breaks_off_never_ends_cleanly(raw: bytes, reset: bool) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(raw)
        await passed.wait()
        side.reset() if reset else side.end()

    passed = asyncio.Event()
    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(request())
        await client.reader.readuntil(b"abc")
        passed.set()
        with pytest.raises(ConnectionResetError):
            await client.read_rest()


async def test_a_reset_of_close_delimited_content_is_no_clean_end() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        await passed.wait()
        side.reset()

    passed = asyncio.Event()
    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(b"GET / HTTP/1.0\r\nX-Sandbox-ID: sb\r\nHost: localhost\r\n\r\n")
        await client.reader.readuntil(b"abc")
        passed.set()
        with pytest.raises(ConnectionResetError):
            await client.read_rest()


SURPLUS = {
    "U15 beyond the length": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokSURPLUS",
    "U15 second response": OK + OK,
    "U22 204 with content": b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\nSURPLUS",
    "U22 304 with content": b"HTTP/1.1 304 Not Modified\r\n\r\nSURPLUS",
    "U22 205 with content": b"HTTP/1.1 205 Reset\r\nContent-Length: 7\r\n\r\nSURPLUS",
    "U14 length and chunked": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\n\r\n"
    ),
}


@pytest.mark.parametrize("raw", SURPLUS.values(), ids=SURPLUS.keys())
async def test_surplus_never_reaches_a_client_and_ends_the_connection(raw: bytes) -> None:
    async with relaying(answering(raw)) as (upstream, _gateway, client):
        for _ in range(2):
            await client.send(request())
            answer = await client.read_answer()
            assert answer.status == int(raw[9:12])
            assert b"SURPLUS" not in answer.body
        assert len(upstream.sides) == 2


async def test_bytes_on_an_idle_connection_end_it() -> None:
    async with relaying(answering(LASTING_OK)) as (upstream, _gateway, client):
        await client.send(request())
        assert (await client.read_answer()).body == b"ok"
        side = await upstream.side()
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await asyncio.wait_for(side.ended.wait(), 10)
        await client.send(request())
        assert (await client.read_answer()).body == b"ok"
        assert len(upstream.sides) == 2


async def test_an_early_answer_is_passed_at_once_and_ends_the_upload() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(b"HTTP/1.1 413 No\r\nContent-Length: 3\r\n\r\nbig")

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(method="PUT", more="Content-Length: 1000000\r\n", body=b"x"))
        answer = await client.read_answer()
        assert (answer.status, answer.body) == (413, b"big")
        assert await client.read_rest() == b""
        await asyncio.wait_for((await upstream.side()).ended.wait(), 10)
        assert gateway.dials == 0


async def test_a_sandbox_that_never_answers_is_504_at_the_clients_own_limit() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()

    async with relaying(script) as (upstream, _gateway, client):
        await client.send(request(more="X-Sandbox-Timeout: 0.2\r\n"))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (504, "upstream_timeout")
        assert answer.json["detail"] == "Timed out waiting for the backend sandbox: sb"
        await asyncio.wait_for((await upstream.side()).ended.wait(), 10)


async def test_a_head_that_trickles_does_not_extend_its_limit() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1000:
            side.send(bytes([byte]))
            await asyncio.sleep(0.02)

    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(request(more="X-Sandbox-Timeout: 0.3\r\n"))
        assert (await client.read_answer()).status == 504


async def test_a_stream_that_still_flows_has_no_limit_and_a_gap_ends_it() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(12):
            side.send(b"1\r\na\r\n")
            await asyncio.sleep(0.1)

    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(request(more="X-Sandbox-Timeout: 0.5\r\n"))
        await client.reader.readuntil(b"\r\n\r\n")
        assert await client.reader.readexactly(12 * 6) == b"1\r\na\r\n" * 12
        with pytest.raises(ConnectionResetError):
            assert await client.read_rest() == b""


async def test_an_upload_that_stalls_is_408() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()

    async with relaying(script) as (upstream, _gateway, client):
        more = "Content-Length: 10\r\nX-Sandbox-Timeout: 0.2\r\n"
        await client.send(request(method="PUT", more=more, body=b"half"))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (408, "request_timeout")
        await asyncio.wait_for((await upstream.side()).ended.wait(), 10)


@pytest.mark.parametrize("stage", ["before the head", "in the content", "while dialling"])
async def test_a_client_that_leaves_takes_its_sandbox_connection_along(stage: str) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        if stage == "in the content":
            side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")

    async with ScriptedUpstream(script).running() as upstream, running_gateway() as gateway:
        port = unused_port() if stage == "while dialling" else upstream.port
        gateway.registry.add("sb", port)
        for count in range(20):
            async with connect(gateway.port) as client:
                await client.send(request())
                if stage == "in the content":
                    await client.reader.readuntil(b"abc")
                elif stage == "before the head":
                    await upstream.side(count)
                else:
                    while len(gateway.registry.look_ups) <= count:
                        await asyncio.sleep(0.001)
        for side in upstream.sides:
            await asyncio.wait_for(side.ended.wait(), 10)
        relay = gateway.gateway.relay
        async with asyncio.timeout(10):
            while relay.tasks or relay.exchanges or gateway.gateway.connections:
                await asyncio.sleep(0.001)
        assert gateway.dials == 0
        assert gateway.gateway.metrics.inflight == 0


async def test_a_client_that_leaves_in_its_upload_leaves_no_whole_request() -> None:
    async with ScriptedUpstream(answer_ok).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        async with connect(gateway.port) as client:
            await client.send(request(method="POST", more="Transfer-Encoding: chunked\r\n"))
            await client.send(b"3\r\nabc\r\n")
            side = await upstream.side()
        await asyncio.wait_for(side.ended.wait(), 10)
        assert b"0\r\n\r\n" not in side.received


async def test_release_ends_a_stream_under_way() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request())
        await client.reader.readuntil(b"abc")
        gateway.registry.remove("sb")
        with pytest.raises(ConnectionResetError):
            await client.read_rest()
        await asyncio.wait_for((await upstream.side()).ended.wait(), 10)


async def test_a_port_behind_the_relay_in_a_sandbox_is_asked_for_first() -> None:
    seen = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = int.from_bytes(await reader.readexactly(2), "big")
        seen.append(port)
        if port != 3000:
            writer.write(b"\x01")
            writer.close()
            return
        writer.write(b"\x00")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[1]
    async with server, running_gateway() as gateway, connect(gateway.port) as client:
        for port in (3000, 4000):
            gateway.registry.endpoints["default", "sb", port] = Endpoint(
                uid=None, name="default/sb", host="127.0.0.1", port=address, relay_port=port
            )
        await client.send(request(more="X-Sandbox-Port: 3000\r\n"))
        assert (await client.read_answer()).body == b"ok"
        await client.send(request(more="X-Sandbox-Port: 4000\r\n"))
        assert (await client.read_answer()).code == "connection_refused"
        assert seen == [3000, 4000, 4000, 4000, 4000]
