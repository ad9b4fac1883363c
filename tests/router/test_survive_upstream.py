"""Broken sandboxes: whatever one sends or leaves out, its client and all others survive it."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.raw_client import HANDSHAKE, RawClient, connect, request
from support.relaying import relaying
from support.running_gateway import RunningGateway, running_gateway
from support.scripted_upstream import (
    LASTING_OK,
    OK,
    SWITCHED,
    Script,
    ScriptedUpstream,
    UpstreamSide,
    answer_ok,
    answering,
)

from sandgate_router.registry.base import Endpoint

PATIENCE = 10.0


def first(raw: bytes, *, end: str = "") -> Script:
    """Return a script that gives the first request of all `raw`, and later ones 200."""
    given: list[bytes] = []

    async def script(side: UpstreamSide) -> None:
        while (await side.read_request())[0]:
            side.send(OK if given else raw)
            if given:
                continue
            given.append(raw)
            if end == "RST":
                await side.drain()
                side.reset()
            elif end == "FIN":
                side.end()
            if end:
                return

    return script


async def still_served(client: RawClient) -> None:
    """Assert that the client's connection was kept and is in step."""
    await client.send(request("/healthz", sandbox=None))
    assert (await client.read_answer()).body == b'{"status":"ok"}'


async def ended(upstream: ScriptedUpstream, index: int = 0) -> None:
    """Wait until the gateway has closed the connection with this index."""
    await asyncio.wait_for((await upstream.side(index)).ended.wait(), PATIENCE)


def upstream_errors(gateway: RunningGateway) -> dict[str, int]:
    return {reason: count for (_, reason), count in gateway.gateway.metrics._errors.items()}


# U01, U04: no connection.


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def blackhole() -> Iterator[int]:
    """Give a port of this machine at which a connection is neither taken nor refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("method", "more", "body"),
    [("GET", "", b""), ("POST", "Content-Length: 2\r\n", b"hi")],
    ids=["U01 GET", "U01 POST with content"],
)
async def test_a_refused_connection_is_tried_four_times_whatever_the_method(
    method: str, more: str, body: bytes
) -> None:
    async with running_gateway() as gateway, connect(gateway.port) as client:
        gateway.registry.add("sb", unused_port())
        await client.send(request(method=method, more=more, body=body))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (502, "connection_refused")
        assert (answer.json["reached"], answer.json["retry_safe"]) == ("no", True)
        assert answer.json["detail"] == "Could not connect to the backend sandbox: sb"
        assert gateway.gateway.metrics._retries == {"default": 3}
        assert upstream_errors(gateway) == {"dial": 1}
        assert len(gateway.registry.look_ups) == 1
        await still_served(client)
        await gateway.settled(clients=1)


@pytest.mark.parametrize(
    ("more", "least"),
    [("", 4.9), ("X-Sandbox-Timeout: 0.3\r\n", 0.2)],
    ids=["U04 five seconds", "U04 the client's own limit"],
)
async def test_a_connection_that_nobody_takes_ends_in_time(more: str, least: float) -> None:
    with blackhole() as port:
        async with running_gateway() as gateway, connect(gateway.port) as client:
            gateway.registry.add("sb", port)
            before = asyncio.get_running_loop().time()
            await client.send(request(method="POST", more=f"Content-Length: 2\r\n{more}"))
            await client.send(b"hi")
            answer = await client.read_answer()
            assert (answer.status, answer.code) == (504, "connection_timeout")
            assert answer.json["reached"] == "no"
            assert least <= asyncio.get_running_loop().time() - before <= 10 * (least + 0.1)
            await still_served(client)
            await gateway.settled(clients=1)


async def test_u04_a_port_in_a_sandbox_that_cannot_be_reached_in_time_is_504() -> None:
    async def timed_out(side: UpstreamSide) -> None:
        await side.read_exactly(2)
        side.send(b"\x02")

    async with relaying(timed_out) as (upstream, gateway, client):
        gateway.registry.endpoints["default", "sb", 8888] = Endpoint(
            uid=None, name="default/sb", host="127.0.0.1", port=upstream.port, relay_port=8888
        )
        await client.send(request())
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (504, "connection_timeout")
        assert [side.received for side in upstream.sides] == [b"\x22\xb8"] * 4


# U05, U06, T32: the connection dies unanswered.


@pytest.mark.parametrize("end", ["FIN", "RST"])
@pytest.mark.parametrize(
    ("method", "more", "body"),
    [("GET", "", b""), ("POST", "Content-Length: 2\r\n", b"hi"), ("DELETE", "", b"")],
    ids=["U05 GET", "U05 T32 POST", "U05 DELETE"],
)
async def test_a_fresh_connection_that_dies_unanswered_is_502_and_nothing_is_sent_again(
    method: str, more: str, body: bytes, end: str
) -> None:
    async with relaying(first(b"", end=end)) as (upstream, gateway, client):
        await client.send(request(method=method, more=more, body=body))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (502, "upstream_closed")
        assert answer.json["reached"] == "unknown"
        assert answer.json["retry_safe"] is (method != "POST")
        assert len(upstream.sides) == len(upstream.heads) == 1
        assert len(gateway.registry.look_ups) == 1
        assert upstream_errors(gateway) == {"eof": 1}
        await still_served(client)
        await gateway.settled(clients=1)


@pytest.mark.parametrize("end", ["FIN", "RST"])
@pytest.mark.parametrize(
    ("method", "more", "body", "again"),
    [
        ("GET", "", b"", True),
        ("OPTIONS", "", b"", True),
        ("GET", "Content-Length: 2\r\n", b"hi", False),
        ("POST", "", b"", False),
        ("POST", "Content-Length: 2\r\n", b"hi", False),
        ("PUT", "", b"", False),
        ("DELETE", "", b"", False),
        ("PROPFIND", "", b"", False),
    ],
    ids=lambda value: f"U06 {value}" if isinstance(value, str) and value.isupper() else "",
)
async def test_a_reused_connection_that_dies_unanswered_is_replaced_once_for_what_is_safe(
    method: str, more: str, body: bytes, *, again: bool, end: str
) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(OK)
        if len(upstream.sides) == 1:
            await side.read_request()
            side.reset() if end == "RST" else side.end()

    async with relaying(script) as (upstream, _gateway, client):
        await client.send(request("/first"))
        assert (await client.read_answer()).status == 200
        await client.send(request("/second", method=method, more=more, body=body))
        answer = await client.read_answer()
        assert answer.status == (200 if again else 502)
        assert answer.code == (None if again else "upstream_closed")
        assert sum(b" /second " in head for head in upstream.heads) == 1 + again
        assert len(upstream.sides) == 1 + again
        await still_served(client)


async def test_u06_a_replayed_request_is_not_replayed_again() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        if len(upstream.sides) == 1:
            side.send(OK)
            await side.read_request()
        side.end()

    async with relaying(script) as (upstream, _gateway, client):
        await client.send(request("/first"))
        assert (await client.read_answer()).status == 200
        await client.send(request("/second"))
        assert (await client.read_answer()).code == "upstream_closed"
        assert len(upstream.sides) == 2


async def test_u06_no_get_is_lost_to_a_sandbox_that_closes_after_every_answer() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(OK)
        side.end()

    async with relaying(script) as (upstream, _gateway, client):
        for number in range(200):
            await client.send(request(f"/{number}"))
            assert (await client.read_answer()).body == b"ok"
        assert len({head.split(b" ")[1] for head in upstream.heads}) == 200


# U07, U12, U13, U14, U20, U21, T33: no response at all.

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EMPTY = b"Content-Length: 0\r\n\r\n"

NO_RESPONSES = {
    "T33 garbage": b"GARBAGE\r\n\r\n",
    "T33 garbage without an end": b"GARBAGE",
    "U12 head of 300 KiB": HEAD + (b"X: " + b"a" * 1000 + b"\r\n") * 300 + b"\r\n",
    "U12 endless line": HEAD + b"X: " + b"a" * 300_000,
    "U12 20,000 fields": HEAD + b"X: 1\r\n" * 20_000 + b"\r\n",
    "U12 501 fields": HEAD + b"X: 1\r\n" * 501 + b"\r\n",
    "U13 bare LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "U13 bare LF in a field": HEAD + b"X: a\nY: b\r\n" + EMPTY,
    "U13 bare CR in a field": HEAD + b"X: a\rb\r\n" + EMPTY,
    "U13 folded line": HEAD + b"X: a\r\n b\r\n" + EMPTY,
    "U13 NUL": HEAD + b"X: a\x00b\r\n" + EMPTY,
    "U13 control byte": HEAD + b"X: a\x01b\r\n" + EMPTY,
    "U13 DEL": HEAD + b"X: a\x7fb\r\n" + EMPTY,
    "U13 space before the colon": HEAD + b"X : a\r\n" + EMPTY,
    "U13 no colon": HEAD + b"X\r\n" + EMPTY,
    "U13 control byte in the reason": b"HTTP/1.1 200 O\x01K\r\n" + EMPTY,
    "U13 status 99": b"HTTP/1.1 99 Odd\r\n" + EMPTY,
    "U13 status 099": b"HTTP/1.1 099 Odd\r\n" + EMPTY,
    "U13 status 1000": b"HTTP/1.1 1000 Odd\r\n" + EMPTY,
    "U13 status +200": b"HTTP/1.1 +200 Odd\r\n" + EMPTY,
    "U13 no status": b"HTTP/1.1 OK\r\n" + EMPTY,
    "U13 HTTP/3.0": b"HTTP/3.0 200 OK\r\n" + EMPTY,
    "U13 HTTP/2": b"HTTP/2 200 OK\r\n" + EMPTY,
    "U13 lower case": b"http/1.1 200 OK\r\n" + EMPTY,
    "U14 length with a sign": HEAD + b"Content-Length: +2\r\n\r\nok",
    "U14 negative length": HEAD + b"Content-Length: -2\r\n\r\n",
    "U14 list of lengths": HEAD + b"Content-Length: 2, 2\r\n\r\nok",
    "U14 two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "U14 two equal lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    "U14 huge length": HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
    "U14 gzip, chunked": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "U14 chunked twice": HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
    "U14 chunked in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "U14 bad chunk at once": CHUNKED + b"zz\r\n",
    "U20 17 interim responses": b"HTTP/1.1 100 Continue\r\n\r\n" * 17,
    "U20 10,000 interim responses": b"HTTP/1.1 102 Processing\r\n\r\n" * 10_000,
    "U21 101 not asked for": SWITCHED,
}


@pytest.mark.parametrize("raw", NO_RESPONSES.values(), ids=NO_RESPONSES.keys())
async def test_what_is_no_response_is_502_and_nothing_of_it_is_passed_on(raw: bytes) -> None:
    async with relaying(first(raw)) as (upstream, gateway, client):
        await client.send(request(method="POST"))
        answer = await client.read_answer()
        interim = 0
        while answer.status < 200:
            interim += 1
            answer = await client.read_answer()
        assert interim <= 16
        assert (answer.status, answer.code) == (502, "bad_upstream_response")
        assert answer.json["reached"] == "yes"
        await ended(upstream)
        assert len(upstream.sides) == len(upstream.heads) == len(gateway.registry.look_ups) == 1
        assert upstream_errors(gateway) == {"other": 1}
        await still_served(client)
        await gateway.settled(clients=1)


@pytest.mark.parametrize("end", ["FIN", "RST"], ids=["U07 FIN", "U07 RST"])
@pytest.mark.parametrize("raw", [b"H", HEAD, HEAD + b"Content-Length: 2\r\n\r"])
async def test_an_end_in_the_head_is_502(raw: bytes, end: str) -> None:
    async with relaying(first(raw, end=end)) as (upstream, gateway, client):
        await client.send(request())
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (502, "bad_upstream_response")
        assert len(upstream.sides) == 1
        await still_served(client)
        await gateway.settled(clients=1)


# U08, U09: the response breaks off.

BROKEN_OFF = {
    "length": HEAD + b"Content-Length: 10\r\n\r\nabc",
    "chunked": CHUNKED + b"3\r\nabc\r\n",
    "in a chunk": CHUNKED + b"5\r\nabc",
    "in the last chunk": CHUNKED + b"3\r\nabc\r\n0\r\n",
}


@pytest.mark.parametrize("end", ["U08 FIN", "U09 RST"])
@pytest.mark.parametrize("raw", BROKEN_OFF.values(), ids=BROKEN_OFF.keys())
async def test_a_response_that_breaks_off_is_a_reset_for_its_client(raw: bytes, end: str) -> None:
    passed = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(raw)
        await passed.wait()
        side.reset() if end.endswith("RST") else side.end()

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request())
        await client.reader.readuntil(b"abc")
        passed.set()
        with pytest.raises(ConnectionResetError):
            assert await client.read_rest() == b"\r\n"  # of the chunk; never a last one
        assert len(upstream.sides) == 1
        assert upstream_errors(gateway) == {"eof": 1}
        await gateway.settled()


@pytest.mark.parametrize("version", ["U09 1.0", "U09 1.1"])
async def test_a_reset_of_content_that_ends_with_its_connection_is_no_end(version: str) -> None:
    passed = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(HEAD + b"\r\nabc")
        await passed.wait()
        side.reset()

    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(request().replace(b"HTTP/1.1", b"HTTP/" + version[-3:].encode()))
        await client.reader.readuntil(b"abc")
        passed.set()
        with pytest.raises(ConnectionResetError):
            assert await client.read_rest() == b"\r\n"


async def test_u14_a_bad_chunk_on_the_way_is_a_reset_and_ends_both_connections() -> None:
    passed = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(CHUNKED + b"3\r\nabc\r\n")
        await passed.wait()
        side.send(b"zz\r\n")

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request())
        await client.reader.readuntil(b"abc\r\n")
        passed.set()
        with pytest.raises(ConnectionResetError):
            assert await client.read_rest() == b""
        await ended(upstream)
        await gateway.settled()


# U10, U11, T35, T36: time.


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ("", 180.0),
        ("X-Sandbox-Timeout: 2\r\n", 2.0),
        ("X-Sandbox-Timeout: 999999\r\n", 180.0),
    ],
    ids=["T35 absent", "T35 two seconds", "T35 above the cap"],
)
async def test_a_sandbox_that_never_answers_is_504_when_the_limit_is_over(
    more: str, limit: float
) -> None:
    async with relaying(first(b"")) as (upstream, gateway, client):
        await client.send(request(more=more))
        await upstream.side()
        gateway.skip(limit - 1.0)
        assert len(gateway.gateway.relay.exchanges) == 1
        gateway.skip(2.0)
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (504, "upstream_timeout")
        assert answer.json["reached"] == "unknown"
        await ended(upstream)
        assert len(upstream.sides) == 1
        await still_served(client)


@pytest.mark.parametrize("value", ["T35 0", "T35 nan", "T35 -1", "T35 inf"])
async def test_a_limit_that_is_no_number_of_seconds_is_refused(value: str) -> None:
    async with relaying(answer_ok) as (upstream, gateway, client):
        await client.send(request(more=f"X-Sandbox-Timeout: {value[4:]}\r\n"))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (400, "invalid_timeout")
        assert await client.read_rest() == b""
        assert (upstream.sides, gateway.registry.look_ups) == ([], [])


async def trickle(side: UpstreamSide, pieces: list[bytes], more: asyncio.Event) -> None:
    """Send a piece at once, and one each time that more is wanted."""
    side.send(pieces[0])
    for piece in pieces[1:]:
        await more.wait()
        more.clear()
        side.send(piece)


async def test_u10_a_head_that_trickles_does_not_extend_its_limit() -> None:
    more = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        await trickle(side, [bytes([byte]) for byte in HEAD[:10]], more)

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(more="X-Sandbox-Timeout: 10\r\n"))
        await upstream.side()
        for _ in range(9):
            gateway.skip(1.0)
            more.set()
            await asyncio.sleep(0.005)  # the byte is on its way; none of them matters
        [exchange] = gateway.gateway.relay.exchanges
        assert exchange._reader.begun
        gateway.skip(2.0)
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (504, "upstream_timeout")
        await ended(upstream)


async def test_t36_a_stream_of_one_byte_every_20_seconds_is_none_too_slow_and_a_gap_ends_it() -> (
    None
):
    more = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(CHUNKED)
        await trickle(side, [b"1\r\nx\r\n"] * 16, more)

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(more="X-Sandbox-Timeout: 30\r\n"))
        await client.reader.readuntil(b"\r\n\r\n")
        for _ in range(15):
            assert await client.reader.readexactly(6) == b"1\r\nx\r\n"
            gateway.skip(20.0)
            more.set()
        assert await client.reader.readexactly(6) == b"1\r\nx\r\n"
        gateway.skip(31.0)
        with pytest.raises(ConnectionResetError):
            assert await client.read_rest() == b""
        await ended(upstream)
        await gateway.settled()


async def test_u11_a_sandbox_that_stalls_in_its_content_is_a_reset_after_the_gap() -> None:
    async with relaying(first(HEAD + b"Content-Length: 10\r\n\r\nabc")) as (
        upstream,
        gateway,
        client,
    ):
        await client.send(request())
        await client.reader.readuntil(b"abc")
        gateway.skip(179.0)
        assert len(gateway.gateway.relay.exchanges) == 1
        gateway.skip(2.0)
        with pytest.raises(ConnectionResetError):
            assert await client.read_rest() == b""
        await ended(upstream)
        await gateway.settled()


async def test_t41_the_head_and_each_ping_are_out_before_the_next_is_sent() -> None:
    more = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(HEAD + b"Content-Type: text/event-stream\r\n\r\n")
        await more.wait()
        more.clear()
        await trickle(side, [b": ping\n\n"] * 10, more)

    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(request())
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head
        for _ in range(10):
            more.set()
            assert await client.reader.readexactly(13) == b"8\r\n: ping\n\n\r\n"


# U13 to U15, U22 to U29: odd responses that pass.


class Passed(NamedTuple):
    """A response, what the client gets of it, and whether its connection is used again."""

    raw: bytes
    body: bytes = b""
    lines: tuple[bytes, ...] = ()
    """Field lines that must arrive, in this order."""
    absent: tuple[str, ...] = ()
    kept: bool = True
    method: str = "GET"
    end: str = ""


PASSED = {
    "U13 no reason": Passed(b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok", b"ok"),
    "U13 not even its space": Passed(b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok"),
    "U14 length and chunked": Passed(
        HEAD + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"ok",
        absent=("Content-Length",),
        kept=False,
    ),
    "U15 more than its length": Passed(
        HEAD + b"Content-Length: 2\r\n\r\nokSURPLUS", b"ok", kept=False
    ),
    "U15 more than its last chunk": Passed(
        CHUNKED + b"2\r\nok\r\n0\r\n\r\nSURPLUS", b"ok", kept=False
    ),
    "U15 a second response": Passed(
        OK + HEAD + b"Content-Length: 4\r\n\r\nevil", b"ok", kept=False
    ),
    "U22 HEAD with content": Passed(
        HEAD + b"Content-Length: 7\r\n\r\nSURPLUS", method="HEAD", kept=False
    ),
    "U22 204 with content": Passed(
        b"HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\nSURPLUS",
        absent=("Content-Length", "Transfer-Encoding"),
        kept=False,
    ),
    "U22 204 with a length alone": Passed(
        b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", absent=("Content-Length",)
    ),
    "U22 204 with chunks": Passed(
        b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        absent=("Content-Length", "Transfer-Encoding"),
        kept=False,
    ),
    "U22 205 with content": Passed(
        b"HTTP/1.1 205 Reset Content\r\nContent-Length: 7\r\n\r\nSURPLUS", kept=False
    ),
    "U22 304 with content": Passed(
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\nSURPLUS", kept=False
    ),
    "U22 100 with a length": Passed(
        b"HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n" + OK, b"ok"
    ),
    "U23 HEAD with a length": Passed(
        HEAD + b"Content-Length: 1234\r\n\r\n", lines=(b"Content-Length: 1234",), method="HEAD"
    ),
    "U23 HEAD of chunks": Passed(CHUNKED, method="HEAD", absent=("Content-Length",)),
    "U23 304 with a length": Passed(
        b"HTTP/1.1 304 Not Modified\r\nETag: a\r\nContent-Length: 1234\r\n\r\n",
        lines=(b"ETag: a", b"Content-Length: 1234"),
    ),
    "U24 ended by its connection": Passed(
        HEAD + b"\r\nok", b"ok", (b"Transfer-Encoding: chunked",), kept=False, end="FIN"
    ),
    "U24 HTTP/1.0 ended by its connection": Passed(
        b"HTTP/1.0 200 OK\r\n\r\nok", b"ok", (b"Transfer-Encoding: chunked",), kept=False, end="FIN"
    ),
    "U24 HTTP/1.0 with a length": Passed(
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", kept=False
    ),
    "U24 HTTP/1.0 kept alive": Passed(
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", b"ok"
    ),
    "U25 gzip": Passed(
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\n\x1f\x8b\x00\xff\r\n",
        b"\x1f\x8b\x00\xff\r\n",
        (b"Content-Encoding: gzip", b"Content-Length: 6"),
    ),
    "U25 br in chunks": Passed(
        HEAD + b"Content-Encoding: br\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\n\x00\xff\n\r\n0\r\n\r\n",
        b"\x00\xff\n",
        (b"Content-Encoding: br",),
    ),
    "U25 zstd, unknown": Passed(
        HEAD + b"Content-Encoding: zstd, mine\r\nContent-Length: 1\r\n\r\n\xfd",
        b"\xfd",
        (b"Content-Encoding: zstd, mine",),
    ),
    "U26 repeated fields": Passed(
        HEAD + b"Set-Cookie: a=1; Expires=Mon, 01 Jan 2035 00:00:00 GMT\r\nLink: </a>\r\n"
        b"WWW-Authenticate: Basic\r\nSet-Cookie: b=2\r\nLink: </b>\r\nWWW-Authenticate: Digest\r\n"
        + EMPTY,
        lines=(
            b"Set-Cookie: a=1; Expires=Mon, 01 Jan 2035 00:00:00 GMT",
            b"Link: </a>",
            b"WWW-Authenticate: Basic",
            b"Set-Cookie: b=2",
            b"Link: </b>",
            b"WWW-Authenticate: Digest",
        ),
    ),
    "U27 trailers": Passed(
        HEAD + b"Trailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nok\r\n0\r\nX-T: 1\r\nSet-Cookie: evil=1\r\n\r\n",
        b"ok",
        absent=("Trailer", "X-T", "Set-Cookie"),
    ),
    "U28 Connection: close": Passed(
        HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
        b"ok",
        absent=("Connection",),
        kept=False,
    ),
    "U28 Keep-Alive": Passed(
        HEAD + b"Keep-Alive: timeout=9\r\nContent-Length: 2\r\n\r\nok",
        b"ok",
        absent=("Keep-Alive",),
    ),
    "U29 redirect inwards": Passed(
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/\r\n" + EMPTY,
        lines=(b"Location: http://169.254.169.254/latest/",),
    ),
    "U29 redirect by another name": Passed(
        b"HTTP/1.1 307 Temporary\r\nLocation: //metadata/\r\n" + EMPTY,
        lines=(b"Location: //metadata/",),
    ),
}


@pytest.mark.parametrize("row", PASSED.values(), ids=PASSED.keys())
async def test_an_odd_response_passes_and_the_next_request_is_unaffected(row: Passed) -> None:
    async with relaying(first(row.raw, end=row.end)) as (upstream, gateway, client):
        await client.send(request(method=row.method))
        head_only = row.method == "HEAD"
        answer = await client.read_answer(head_only=head_only)
        if answer.status < 200:
            assert answer.one("Content-Length") is None
            answer = await client.read_answer()
        assert answer.status == int(row.raw[9:12]) or row.raw[9:12] == b"103"
        assert answer.body == row.body
        assert answer.code is None
        lines = answer.raw_head.split(b"\r\n")
        assert [line for line in lines if line in row.lines] == list(row.lines)
        assert all(answer.one(name) is None for name in row.absent)
        for _ in range(2):
            await client.send(request())
            assert (await client.read_answer()).body == b"ok"
        assert len(upstream.heads) == 3
        assert len(upstream.sides) == (1 if row.kept else 2)
        assert b"SURPLUS" not in await rest_of(client)
        assert {target.sandbox for target in gateway.registry.look_ups} == {"sb"}


async def rest_of(client: RawClient) -> bytes:
    """Ask for the end of the connection, and return what came before it."""
    await client.send(request("/healthz", sandbox=None, more="Connection: close\r\n"))
    return await client.read_rest()


@pytest.mark.parametrize(
    ("keep_alive", "seconds", "kept"),
    [
        (b"", 3.0, True),
        (b"", 5.0, False),
        (b"Keep-Alive: timeout=10\r\n", 8.0, True),
        (b"Keep-Alive: timeout=10\r\n", 9.5, False),
        (b"Keep-Alive: max=5, timeout=10\r\n", 8.0, True),
        (b"Keep-Alive: timeout=1\r\n", 0.5, False),
        (b"Keep-Alive: timeout=0\r\n", 0.5, False),
        (b"Keep-Alive: timeout=100000\r\n", 74.0, True),
        (b"Keep-Alive: timeout=100000\r\n", 76.0, False),
        (b"Keep-Alive: timeout=x\r\n", 5.0, False),
    ],
    ids=lambda value: f"U28 {value.decode().strip()}" if isinstance(value, bytes) else str(value),
)
async def test_an_idle_connection_is_kept_for_less_than_the_sandbox_says(
    keep_alive: bytes, seconds: float, *, kept: bool
) -> None:
    raw = HEAD + keep_alive + b"Content-Length: 2\r\n\r\nok"
    async with relaying(first(raw)) as (upstream, gateway, client):
        await client.send(request())
        await client.read_answer()
        gateway.skip(seconds)
        await client.send(request())
        assert (await client.read_answer()).body == b"ok"
        assert len(upstream.sides) == (1 if kept else 2)


@pytest.mark.parametrize(
    "raw",
    [OK, b"x", b"HTTP/1.1 408 Request Timeout\r\n\r\n"],
    ids=["U16 answer", "U16 x", "U16 408"],
)
async def test_what_comes_on_an_idle_connection_ends_it_and_reaches_nobody(raw: bytes) -> None:
    async with relaying(answering(LASTING_OK)) as (upstream, gateway, client):
        await client.send(request())
        assert (await client.read_answer()).body == b"ok"
        (await upstream.side()).send(raw)
        await ended(upstream)
        await gateway.settled(clients=1)
        await client.send(request(method="POST"))
        assert (await client.read_answer()).body == b"ok"
        assert len(upstream.sides) == 2
        await still_served(client)


@pytest.mark.parametrize("end", ["U16 FIN", "U16 RST"])
async def test_an_idle_connection_that_ends_is_forgotten_at_once(end: str) -> None:
    async with relaying(answering(LASTING_OK)) as (upstream, gateway, client):
        await client.send(request())
        assert (await client.read_answer()).body == b"ok"
        side = await upstream.side()
        side.reset() if end.endswith("RST") else side.end()
        await gateway.settled(clients=1)
        await client.send(request(method="POST"))  # not replayed, so the old one is not tried
        assert (await client.read_answer()).body == b"ok"


# U17, U18: answers before the request has ended.

EARLY = {
    "U17 401": b"HTTP/1.1 401 No\r\nContent-Length: 3\r\n\r\nwho",
    "U17 413": b"HTTP/1.1 413 No\r\nContent-Length: 3\r\n\r\nbig",
    "U17 500 in chunks": (
        b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n"
    ),
}
FRAMINGS = {
    "length": ("Content-Length: 10000000\r\n", b"x" * 10_000),
    "chunked": ("Transfer-Encoding: chunked\r\n", b"5\r\nabcde\r\n"),
}


@pytest.mark.parametrize(("more", "body"), FRAMINGS.values(), ids=FRAMINGS.keys())
@pytest.mark.parametrize("raw", EARLY.values(), ids=EARLY.keys())
async def test_an_early_answer_is_passed_at_once_and_both_connections_end(
    raw: bytes, more: str, body: bytes
) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(raw)

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(method="PUT", more=more, body=body))
        answer = await client.read_answer()
        assert answer.status == int(raw[9:12])
        await client.send(body)  # a client that had not noticed yet
        assert await client.read_rest() == b""
        await ended(upstream)
        assert not (await upstream.side()).received.endswith(b"0\r\n\r\n")
        await gateway.settled()


async def test_u17_an_early_answer_arrives_though_the_sandbox_has_stopped_reading() -> None:
    stuck = asyncio.Event()

    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        await stuck.wait()
        side.send(EARLY["U17 413"])
        await asyncio.Event().wait()

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(method="PUT", more="Content-Length: 100000000\r\n"))
        sending = asyncio.create_task(client.send(b"x" * 50_000_000))
        [connection] = gateway.gateway.connections
        async with asyncio.timeout(PATIENCE):
            while not connection._content_paused:
                await asyncio.sleep(0.001)
        stuck.set()
        answer = await client.read_answer()
        assert (answer.status, answer.body) == (413, b"big")
        client.reset()
        await sending
        await gateway.settled()
        assert len(upstream.sides) == 1


async def test_u17_an_early_answer_is_not_lost_to_the_reset_behind_it() -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        async with running_gateway() as gateway, connect(gateway.port) as client:
            gateway.registry.add("sb", listener.getsockname()[1])
            await client.send(request(method="PUT", more="Content-Length: 100\r\n", body=b"x"))
            sandbox, _ = await loop.sock_accept(listener)
            with sandbox:
                received = b""
                while not received.endswith(b"\r\n\r\nx"):
                    received += await loop.sock_recv(sandbox, 65536)
                sandbox.send(EARLY["U17 413"])
                sandbox.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # More content meets the reset before the loop has read the answer.
            [connection] = gateway.gateway.connections
            connection.data_received(b"x")
            answer = await client.read_answer()
            assert (answer.status, answer.body) == (413, b"big")
            assert await client.read_rest() == b""
            await gateway.settled()


@pytest.mark.parametrize(("more", "body"), FRAMINGS.values(), ids=["U18 length", "U18 chunked"])
async def test_content_flows_both_ways_at_once_after_an_early_head(more: str, body: bytes) -> None:
    pieces = 10

    async def echo(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(CHUNKED)
        for _ in range(pieces):
            await side.read_exactly(len(body))
            side.send(b"1\r\n.\r\n")

    more = more.replace("10000000", str(pieces * len(body)))
    async with relaying(echo) as (_upstream, _gateway, client):
        await client.send(request(method="POST", more=more))
        await client.reader.readuntil(b"\r\n\r\n")
        for _ in range(pieces):
            await client.send(body)
            assert await client.reader.readexactly(6) == b"1\r\n.\r\n"


# U19, U21: interim responses and upgrades.

INTERIM = (
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nProxy-Status: evil\r\n\r\n"
    b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
)


@pytest.mark.parametrize("expect", ["", "Expect: 100-continue\r\n"], ids=["U19", "U19 Expect"])
async def test_interim_responses_pass_in_order_before_content_is_sent(expect: str) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(INTERIM)
        assert await side.read_exactly(2) == b"hi"
        side.send(OK)

    async with relaying(script) as (_upstream, _gateway, client):
        await client.send(request(method="PUT", more=f"Content-Length: 2\r\n{expect}"))
        answers = [await client.read_answer() for _ in range(3)]
        assert [answer.status for answer in answers] == [103, 102, 100]
        assert answers[0].fields == [("Link", "</a>")]
        await client.send(b"hi")
        assert (await client.read_answer()).body == b"ok"


async def test_u19_no_interim_response_goes_to_an_http_1_0_client() -> None:
    async with relaying(first(INTERIM + OK)) as (_upstream, _gateway, client):
        await client.send(request().replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await client.read_answer()
        assert (answer.status, answer.body) == (200, b"ok")
        assert await client.read_rest() == b""


async def test_u20_sixteen_interim_responses_are_none_too_many() -> None:
    raw = b"HTTP/1.1 102 Processing\r\n\r\n" * 16 + OK
    async with relaying(first(raw)) as (_upstream, _gateway, client):
        await client.send(request())
        answers = [await client.read_answer() for _ in range(17)]
        assert [answer.status for answer in answers] == [102] * 16 + [200]


BAD_SWITCHES = {
    "U21 another protocol": SWITCHED.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
    "U21 no Upgrade": SWITCHED.replace(b"Upgrade: websocket\r\n", b""),
    "U21 no Connection": SWITCHED.replace(b"Connection: Upgrade\r\n", b""),
    "U21 with a length": SWITCHED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"),
}


@pytest.mark.parametrize("raw", BAD_SWITCHES.values(), ids=BAD_SWITCHES.keys())
async def test_a_101_to_something_else_is_502_and_no_tunnel(raw: bytes) -> None:
    async with relaying(first(raw)) as (upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (502, "bad_upstream_response")
        await ended(upstream)
        await still_served(client)
        await gateway.settled(clients=1)


async def test_u21_a_200_to_an_upgrade_is_an_ordinary_response() -> None:
    async with relaying(answer_ok) as (upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        answer = await client.read_answer()
        assert (answer.status, answer.body) == (200, b"ok")
        await client.send(request("/next"))
        assert (await client.read_answer()).body == b"ok"
        assert len(upstream.sides) == 1
        assert len(upstream.heads) == 2
        await gateway.settled(clients=1, dials=1)


async def test_u21_bytes_glued_to_the_101_arrive_behind_it() -> None:
    async with relaying(first(SWITCHED + b"\x81\x02hi")) as (_upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        assert await client.reader.readexactly(4) == b"\x81\x02hi"
        client.end()
        await gateway.settled()


# U30, T44, T46: WebSockets.

FRAMES = {
    "U30 close 1011": b"\x88\x02\x03\xf3",
    "U30 bad UTF-8": b"\x81\x02\xff\xfe",
    "U30 reserved opcode and bits": b"\xff\x00",
    "U30 start of 100 MB": b"\x82\x7f" + (100_000_000).to_bytes(8, "big") + b"x" * 1000,
    "U30 continuation of nothing": b"\x00\x01x",
    "U30 no frame at all": b"HTTP/1.1 200 OK\r\n\r\n",
}


@pytest.mark.parametrize("raw", FRAMES.values(), ids=FRAMES.keys())
async def test_what_a_sandbox_sends_in_a_tunnel_passes_byte_for_byte(raw: bytes) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(SWITCHED + raw)
        side.end()

    async with relaying(script) as (_upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        assert await client.read_rest() == raw
        client.end()
        await gateway.settled()


async def test_u30_a_sandbox_that_answers_no_ping_is_ended_by_silence_alone() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(SWITCHED)

    async with relaying(script) as (upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        await client.send(b"\x89\x80abcd")
        side = await upstream.side()
        async with asyncio.timeout(PATIENCE):
            while not side.received.endswith(b"\x89\x80abcd"):
                await asyncio.sleep(0.001)
        gateway.skip(3590.0)
        assert len(gateway.gateway.relay.tunnels.live) == 1
        gateway.skip(20.0)
        rest = await client.read_rest()
        assert rest[:1] == b"\x88"  # the gateway sent no ping of its own
        assert rest[2:4] == (1001).to_bytes(2, "big")
        await gateway.settled()


async def test_u30_a_sandbox_that_reads_nothing_is_let_go_with_its_tunnel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sandgate_router.upstream.CLOSE_SECONDS", 0.05)

    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(SWITCHED)
        await asyncio.Event().wait()

    async with relaying(script) as (_upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        assert (await client.read_answer()).status == 101
        sending = asyncio.create_task(client.send(b"x" * 50_000_000))
        [connection] = gateway.gateway.connections
        async with asyncio.timeout(PATIENCE):
            while not connection._content_paused:
                await asyncio.sleep(0.001)
        gateway.registry.remove("sb")
        client.reset()
        await sending
        await gateway.settled()


@pytest.mark.parametrize("status", ["T44 401", "U30 403"])
async def test_a_refused_upgrade_passes_with_its_body(status: str) -> None:
    raw = b"HTTP/1.1 %b No\r\nContent-Length: 3\r\n\r\nwho" % status[4:].encode()
    async with relaying(first(raw)) as (_upstream, gateway, client):
        await client.send(request(more=HANDSHAKE))
        answer = await client.read_answer()
        assert (str(answer.status), answer.body, answer.code) == (status[4:], b"who", None)
        await still_served(client)
        await gateway.settled(clients=1, dials=1)


async def test_t44_the_subprotocol_is_the_sandboxs_choice() -> None:
    raw = SWITCHED[:-2] + b"Sec-WebSocket-Protocol: b\r\n\r\n"
    async with relaying(first(raw)) as (upstream, _gateway, client):
        await client.send(request(more=HANDSHAKE + "Sec-WebSocket-Protocol: a, b\r\n"))
        assert (await client.read_answer()).one("Sec-WebSocket-Protocol") == "b"
        assert b"\r\nSec-WebSocket-Protocol: a, b\r\n" in upstream.received


async def test_t46_an_unknown_sandbox_answers_a_websocket_as_it_answers_http() -> None:
    async with running_gateway() as gateway, connect(gateway.port) as client:
        bodies = []
        for more in (HANDSHAKE, ""):
            await client.send(request(more=more))
            answer = await client.read_answer()
            assert (answer.status, answer.code) == (404, "sandbox_not_found")
            bodies.append(answer.body)
        assert bodies[0] == bodies[1]
        await gateway.settled(clients=1)


# U31: one among many.


async def test_u31_one_dead_sandbox_among_1000_fails_fast_and_holds_up_nobody() -> None:
    limit, others = 8, 999
    with blackhole() as port:
        async with (
            ScriptedUpstream(answer_ok).running() as upstream,
            running_gateway(SANDGATE_MAX_INFLIGHT_PER_SANDBOX=str(limit)) as gateway,
            contextlib.AsyncExitStack() as stack,
        ):
            gateway.registry.add("dead", port)
            for number in range(others):
                gateway.registry.add(f"sb-{number}", upstream.port)
            clients = [await stack.enter_async_context(connect(gateway.port)) for _ in range(16)]
            waiting, asking = clients[:limit], clients[limit:]
            for client in waiting:
                await client.send(request(sandbox="dead"))
            async with asyncio.timeout(PATIENCE):
                while len(gateway.gateway.relay.exchanges) < limit:
                    await asyncio.sleep(0.001)
            for number in range(others):
                client = asking[number % len(asking)]
                await client.send(request(sandbox=f"sb-{number}"))
                assert (await client.read_answer()).status == 200
                if number % 100 == 0:
                    await client.send(request(sandbox="dead"))
                    answer = await client.read_answer()
                    assert (answer.status, answer.code) == (429, "too_many_requests")
            assert len(upstream.heads) == others
            for client in waiting:
                assert (await client.read_answer()).status == 504
