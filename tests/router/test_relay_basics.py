"""One exchange after another: what the sandbox sees, what the client gets."""

import asyncio

import pytest
from support.raw_client import connect, request
from support.relaying import relaying
from support.running_gateway import running_gateway
from support.scripted_upstream import OK, ScriptedUpstream, UpstreamSide, answer_ok, answering


async def test_a_request_reaches_its_sandbox_and_the_answer_comes_back() -> None:
    async with (
        ScriptedUpstream(answer_ok).running() as upstream,
        running_gateway() as gateway,
        connect(gateway.port) as client,
    ):
        gateway.registry.add("sb", upstream.port, uid="u-1")
        await client.send(request("/hello?x=1", more="X-App: 1\r\nX-Sandbox-Token: t\r\n"))
        answer = await client.read_answer()
        assert (answer.status, answer.body) == (200, b"ok")
        [head] = upstream.heads
        assert head.split(b"\r\n") == [
            b"GET /hello?x=1 HTTP/1.1",
            b"Host: sb.default.svc.cluster.local:8888",
            b"X-App: 1",
            b"X-Forwarded-For: 127.0.0.1",
            b"X-Forwarded-Host: localhost",
            b"X-Forwarded-Proto: http",
            b"Via: 1.1 sandgate",
            b"X-Sandbox-Expect-UID: u-1",
            b"X-Sandbox-Expect-Name: default/sb",
            b"",
            b"",
        ]


async def test_both_connections_are_kept_and_used_again() -> None:
    async with relaying(answer_ok) as (upstream, _gateway, client):
        for _ in range(5):
            await client.send(request())
            assert (await client.read_answer()).body == b"ok"
        assert len(upstream.sides) == 1
        assert len(upstream.heads) == 5


async def test_a_connection_belongs_to_one_sandbox_even_at_one_address() -> None:
    async with (
        ScriptedUpstream(answer_ok).running() as upstream,
        running_gateway() as gateway,
        connect(gateway.port) as client,
    ):
        gateway.registry.add("a", upstream.port, uid="u-a")
        await client.send(request(sandbox="a"))
        await client.read_answer()
        gateway.registry.remove("a")
        gateway.registry.add("b", upstream.port, uid="u-b")
        await client.send(request(sandbox="b"))
        assert (await client.read_answer()).status == 200
        assert len(upstream.sides) == 2
        assert len(upstream.sides[0].heads) == 1
        await client.send(request(sandbox="a"))
        assert (await client.read_answer()).code == "sandbox_not_found"


METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "PURGE", "get", "X-OWN"]


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_passes_unchanged(method: str) -> None:
    async with relaying(answer_ok) as (upstream, _gateway, client):
        await client.send(request("/x", method=method))
        assert (await client.read_answer()).status == 200
        assert upstream.heads[0].startswith(f"{method} /x HTTP/1.1\r\n".encode())
        assert b"transfer-encoding" not in upstream.heads[0].lower()


@pytest.mark.parametrize("length", [0, 1, 70_000, 1_000_000])
async def test_content_of_known_length_arrives_whole(length: int) -> None:
    body = bytes(index % 251 for index in range(length))
    bodies = []

    async def script(side: UpstreamSide) -> None:
        bodies.append((await side.read_request())[1])
        side.send(OK)

    async with relaying(script) as (upstream, _gateway, client):
        more = f"Content-Length: {length}\r\n"
        await client.send(request(method="POST", more=more, body=body))
        assert (await client.read_answer()).status == 200
        assert bodies == [body]
        assert f"\r\nContent-Length: {length}\r\n".encode() in upstream.heads[0]


async def test_chunked_content_is_chunked_anew_and_extensions_end_here() -> None:
    bodies = []

    async def script(side: UpstreamSide) -> None:
        bodies.append((await side.read_request())[1])
        side.send(OK)

    async with relaying(script) as (upstream, _gateway, client):
        body = b"3;a=secret\r\nabc\r\n005\r\ndefgh\r\n0;z\r\n\r\n"
        await client.send(request(method="POST", more="Transfer-Encoding: chunked\r\n", body=body))
        assert (await client.read_answer()).status == 200
        assert bodies == [b"abcdefgh"]
        assert b"secret" not in upstream.received


async def test_a_get_with_content_is_forwarded_with_it() -> None:
    async with relaying(answer_ok) as (upstream, _gateway, client):
        for _ in range(2):
            await client.send(request(more="Content-Length: 2\r\n", body=b"hi"))
            assert (await client.read_answer()).status == 200
        assert upstream.received.count(b"\r\n\r\nhi") == 2


RESPONSES = {
    "length": (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
    "chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\n\r\n",
        b"abc",
    ),
    "chunked with trailers": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n",
        b"abc",
    ),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "304 with length": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n", b""),
    "205": (b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n", b""),
    "error of its own": (b"HTTP/1.1 502 Bad\r\nContent-Length: 4\r\n\r\nmine", b"mine"),
    "unknown status": (b"HTTP/1.1 799 Odd\r\nContent-Length: 1\r\n\r\nx", b"x"),
}


@pytest.mark.parametrize(("raw", "body"), RESPONSES.values(), ids=RESPONSES.keys())
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_response_is_the_same_however_it_is_cut(raw: bytes, body: bytes, size: int) -> None:
    async def script(side: UpstreamSide) -> None:
        while (await side.read_request())[0]:
            for start in range(0, len(raw), size):
                side.send(raw[start : start + size])
                await asyncio.sleep(0)  # lets the loop send each piece by itself

    async with relaying(script) as (upstream, _gateway, client):
        for _ in range(2):
            await client.send(request())
            answer = await client.read_answer()
            assert (answer.status, answer.body) == (int(raw[9:12]), body)
            assert answer.code is None
            assert len(answer.all("Date")) == 1
        assert len(upstream.sides) == 1


async def test_content_that_ends_with_its_connection_becomes_chunked() -> None:
    script = answering(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nabc", end=True)
    async with relaying(script) as (_upstream, _gateway, client):
        for _ in range(2):
            await client.send(request())
            answer = await client.read_answer()
            assert answer.one("Transfer-Encoding") == "chunked"
            assert answer.body == b"abc"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.0 200 OK\r\n\r\nabc",
    ],
)
async def test_an_http_1_0_client_gets_no_chunks_and_is_closed(raw: bytes) -> None:
    async with relaying(answering(raw, end=True)) as (_upstream, _gateway, client):
        await client.send(b"GET / HTTP/1.0\r\nHost: localhost\r\nX-Sandbox-ID: sb\r\n\r\n")
        answer = await client.read_answer()
        assert answer.raw_head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.one("Transfer-Encoding") is None
        assert answer.one("Connection") == "close"
        assert answer.body == b"abc"
        assert await client.read_rest() == b""


async def test_a_head_request_gets_the_length_without_content() -> None:
    script = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n")
    async with relaying(script) as (upstream, _gateway, client):
        for _ in range(2):
            await client.send(request(method="HEAD"))
            answer = await client.read_answer(head_only=True)
            assert answer.one("Content-Length") == "1234"
        assert len(upstream.sides) == 1


async def test_interim_responses_pass_in_order_and_content_waits_for_the_client() -> None:
    async def script(side: UpstreamSide) -> None:
        head = await side.read_head()
        assert b"\r\nExpect: 100-continue\r\n" in head
        side.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        assert await side.read_exactly(4) == b"body"
        side.send(OK)

    async with relaying(script) as (_upstream, _gateway, client):
        more = "Content-Length: 4\r\nExpect: 100-continue\r\n"
        await client.send(request(method="PUT", more=more))
        assert (await client.read_answer()).status == 103
        assert (await client.read_answer()).status == 100
        await client.send(b"body")
        assert (await client.read_answer()).body == b"ok"


async def test_a_refusal_before_continue_reads_no_content() -> None:
    async with (
        ScriptedUpstream(answer_ok).running(),
        running_gateway() as gateway,
        connect(gateway.port) as client,
    ):
        more = "Content-Length: 4\r\nExpect: 100-continue\r\n"
        await client.send(request(method="PUT", more=more))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (404, "sandbox_not_found")
        assert answer.one("Connection") == "close"
        assert await client.read_rest() == b""


async def test_content_flows_both_ways_at_once() -> None:
    async def echo(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            piece = await side.read_exactly(len(b"1\r\nx\r\n"))
            side.send(piece)
        await side.read_exactly(len(b"0\r\n\r\n"))
        side.send(b"0\r\n\r\n")

    async with relaying(echo) as (_upstream, _gateway, client):
        await client.send(request(method="POST", more="Transfer-Encoding: chunked\r\n"))
        await client.reader.readuntil(b"\r\n\r\n")
        for letter in (b"a", b"b", b"c"):
            await client.send(b"1\r\n" + letter + b"\r\n")
            # Each piece comes back before the next is sent: nothing waits in the gateway.
            assert await client.reader.readexactly(6) == b"1\r\n" + letter + b"\r\n"
        await client.send(b"0\r\n\r\n")
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"


async def test_each_piece_of_a_stream_is_out_before_the_next_is_sent() -> None:
    seen = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(5):
            await seen.wait()
            seen.clear()
            side.send(b": ping %d\n\n" % number)
        await seen.wait()
        side.end()

    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(request())
        await client.reader.readuntil(b"\r\n\r\n")
        for number in range(5):
            seen.set()
            expected = b": ping %d\n\n" % number
            chunk = b"%x\r\n%b\r\n" % (len(expected), expected)
            assert await client.reader.readexactly(len(chunk)) == chunk
        seen.set()
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"


async def test_compressed_bytes_and_their_fields_are_not_touched() -> None:
    raw = (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\nContent-Length: 6\r\n"
        b"Set-Cookie: a=1; Expires=Mon, 01 Jan 2035 00:00:00 GMT\r\nSet-Cookie: b=2\r\n"
        b"Date: then\r\nServer: mine\r\n\r\n\x1f\x8b\x00\xff\r\n"
    )
    async with relaying(answering(raw)) as (_upstream, _gateway, client):
        await client.send(request())
        answer = await client.read_answer()
        assert answer.body == b"\x1f\x8b\x00\xff\r\n"
        assert answer.fields == [
            ("Content-Encoding", "gzip, gzip"),
            ("Set-Cookie", "a=1; Expires=Mon, 01 Jan 2035 00:00:00 GMT"),
            ("Set-Cookie", "b=2"),
            ("Date", "then"),
            ("Server", "mine"),
            ("Content-Length", "6"),
        ]


async def test_relay_and_control_requests_alternate_on_one_connection() -> None:
    async with relaying(answer_ok) as (_upstream, _gateway, client):
        healthz, pools = request("/healthz", sandbox=None), request("/v1/pools", sandbox=None)
        await client.send(request() + healthz + request() + pools + healthz + request())
        bodies = [(await client.read_answer()).body for _ in range(6)]
        assert bodies == [b"ok", b'{"status":"ok"}', b"ok", b'{"pools":[]}', bodies[1], b"ok"]


async def test_pipelined_requests_are_answered_in_order_and_a_refused_one_last() -> None:
    async with relaying(answer_ok) as (upstream, _gateway, client):
        bad = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: sb\r\nX : 1\r\n\r\n"
        await client.send(request("/1") + request("/2") + bad + request("/3"))
        answers = [await client.read_answer() for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 400]
        assert await client.read_rest() == b""
        assert len(upstream.heads) == 2


async def test_thousands_of_pipelined_requests_are_all_answered() -> None:
    async with relaying(answer_ok) as (upstream, _gateway, client):
        sending = asyncio.create_task(client.send(request() * 3000))
        for _ in range(3000):
            assert (await client.read_answer()).body == b"ok"
        await sending
        assert len(upstream.sides) == 1


async def test_the_gateways_own_paths_belong_to_the_sandbox_when_one_is_named() -> None:
    async with (
        ScriptedUpstream(
            answering(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmine")
        ).running() as upstream,
        running_gateway() as gateway,
        connect(gateway.port) as client,
    ):
        gateway.registry.add("sb", upstream.port)
        for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/v1/claims"):
            await client.send(request(path))
            assert (await client.read_answer()).body == b"mine"
        await client.send(request("/docs", sandbox=None))
        assert (await client.read_answer()).code == "sandbox_id_required"


async def test_options_star_is_answered_by_the_gateway() -> None:
    async with running_gateway() as gateway, connect(gateway.port) as client:
        for _ in range(2):
            await client.send(request("*", method="OPTIONS"))
            answer = await client.read_answer()
            assert answer.status == 204
            assert "PATCH" in (answer.one("Allow") or "")
        assert gateway.registry.look_ups == []


async def test_connection_close_is_obeyed_and_what_follows_is_ignored() -> None:
    async with relaying(answer_ok) as (upstream, _gateway, client):
        await client.send(request(more="Connection: close\r\n") + request("/never"))
        answer = await client.read_answer()
        assert (answer.status, answer.one("Connection")) == (200, "close")
        assert await client.read_rest() == b""
        assert len(upstream.heads) == 1
