"""What may be thrown at the gateway, section 2A: malformed requests and smuggling.

Every case is raw bytes on a socket, sent whole, byte by byte and cut around its line ends, and
must come to one end however it arrives. Its row is in the name of the case.
"""

import asyncio
import functools
import logging
import time

import pytest
from support.raw_client import connect, request
from support.scripted_upstream import UpstreamSide, answering
from support.survive_heads import (
    ALIASES,
    CODES,
    FRAMING,
    HOSTS,
    LINES,
    NOMINATED,
    OTHER_CODINGS,
    REQUEST_LINES,
    get,
    head,
    hosted,
    post,
)
from support.survive_probe import (
    EVERY_WAY,
    SMUGGLED,
    Cut,
    assert_closed,
    assert_own_answer,
    assert_refused,
    byte_by_byte,
    cut_at,
    forwarded,
    in_pieces,
    send_pieces,
    stage,
    until,
    whole,
)

from sandgate_router.client import ClientConnection
from sandgate_router.head import MAX_FIELDS, MAX_HEAD_BYTES, MAX_REQUEST_LINE_BYTES

MALFORMED = FRAMING | LINES | HOSTS | NOMINATED


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_head_that_two_readers_could_take_differently_is_refused(raw: bytes) -> None:
    await assert_refused(raw, 400, "bad_request")


@pytest.mark.parametrize(("line", "status"), REQUEST_LINES.values(), ids=REQUEST_LINES.keys())
async def test_a_request_line_in_doubt_is_refused(line: str, status: int) -> None:
    answer = await assert_refused(head(line), status, CODES[status])
    assert answer.one("Allow") == (
        "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS" if status == 405 else None
    )


@pytest.mark.parametrize("raw", OTHER_CODINGS.values(), ids=OTHER_CODINGS.keys())
async def test_a_coding_that_is_not_decoded_here_is_not_implemented(raw: bytes) -> None:
    await assert_refused(raw, 501, "not_implemented")


@pytest.mark.parametrize("raw", ALIASES.values(), ids=ALIASES.keys())
async def test_a_second_spelling_of_a_routing_field_is_ambiguous(raw: bytes) -> None:
    await assert_refused(raw, 400, "ambiguous_routing")


@pytest.mark.parametrize("method", ["TRACE", "CONNECT"], ids=["M36", "M35"])
async def test_a_refused_method_echoes_no_secret(method: str) -> None:
    secrets = ("Authorization: Bearer s3cret", "Cookie: s3cret", "X-Sandbox-Token: s3cret")
    answer = await assert_refused(head(f"{method} / HTTP/1.1", *secrets), 405, "method_not_allowed")
    assert b"s3cret" not in answer.raw_head + answer.body


def line_of(length: int) -> bytes:
    """Return a request whose request line has this many bytes."""
    return get().replace(b"GET / ", b"GET /" + b"a" * (length - 14) + b" ")


def head_of(length: int) -> bytes:
    """Return a request whose head has this many bytes, without its empty line."""
    return get("X: " + "a" * (length - len(get("X: ")) + 2))


TOO_LARGE = {
    "M47 query of 60 KiB": (request("/?" + "a=1&" * 15_000), 414),
    "M48 request line above 8 KiB": (line_of(MAX_REQUEST_LINE_BYTES + 1), 414),
    "M48 request line of 200 KiB": (line_of(200 * 1024), 414),
    "M48 request line without end": (b"GET /" + b"a" * 9000, 414),
    "M49 head above 32 KiB": (head_of(MAX_HEAD_BYTES + 1), 431),
    "M49 head of 60 KiB": (head_of(60 * 1024), 431),
    "M49 head of 1 MiB": (head_of(1000 * 1024), 431),
    "M49 head without end": (b"GET / HTTP/1.1\r\nX: " + b"a" * 60_000, 431),
    "M49 10,000 fields": (get(*["X: 1"] * 10_000), 431),
    "M49 one field too many": (get(*["X: 1"] * (MAX_FIELDS - 1)), 431),
}
LARGEST = {
    "M47 query of 7 KiB": request("/?" + "a=1;&b=%x&" * 700),
    "M48 request line of 8 KiB": line_of(MAX_REQUEST_LINE_BYTES),
    "M48 request line of 8 KiB behind an empty line": b"\r\n" + line_of(MAX_REQUEST_LINE_BYTES),
    "M49 head of 32 KiB": head_of(MAX_HEAD_BYTES),
    "M49 head of 32 KiB behind an empty line": b"\r\n" + head_of(MAX_HEAD_BYTES),
    "M49 100 fields": get(*["X: 1"] * (MAX_FIELDS - 2)),
}


@pytest.mark.parametrize(("raw", "status"), TOO_LARGE.values(), ids=TOO_LARGE.keys())
async def test_a_limit_holds_however_the_head_arrives(raw: bytes, status: int) -> None:
    ways: tuple[Cut, ...] = (whole, in_pieces(1000), in_pieces(1021))
    if len(raw) < 40_000:
        ways += (byte_by_byte,)
    code = {414: "uri_too_long", 431: "head_too_large"}[status]
    await assert_refused(raw, status, code, ways=ways)


@pytest.mark.parametrize("raw", LARGEST.values(), ids=LARGEST.keys())
async def test_what_is_just_within_a_limit_passes_however_it_arrives(raw: bytes) -> None:
    # The last bytes are where an incomplete head could be counted otherwise than a whole one.
    at = [len(raw) - n for n in range(6)] + [MAX_REQUEST_LINE_BYTES + n for n in range(5)]
    ways: list[Cut] = [whole, byte_by_byte]
    ways += [cut_at(place) for place in at]
    lines, _ = await forwarded(raw, ways=ways)
    assert b"\r\n".join(lines[:1]) == raw.removeprefix(b"\r\n").split(b"\r\n")[0]


async def test_m49_memory_for_a_head_that_is_too_large_is_bounded() -> None:
    async with stage() as here, connect(here.port) as client:
        await client.send(b"GET / HTTP/1.1\r\n")
        held = 0
        for _ in range(600):
            await client.send(b"X: 1" + b"\t" * 100)
            await asyncio.sleep(0)
            if here.gateway.gateway.connections:
                held = max(held, len(here.connection()._inbox.data))
        assert_own_answer(await client.read_answer(), 431, "head_too_large")
        assert held <= MAX_HEAD_BYTES + 64 * 1024


SPLIT = {
    "M50 good": (post("X: \xe9", "Content-Length: 2", body=b"hi"), 200),
    "M50 chunked": (post("Transfer-Encoding: chunked", body=b"2\r\nhi\r\n0\r\n\r\n"), 200),
    "M50 empty line first": (b"\r\n" + get("X:"), 200),
    "M50 two lengths": (post("Content-Length: 2", "Content-Length: 2", body=b"hi"), 400),
    "M50 bare CR": (get("X: a\rb"), 400),
    "M50 fold": (get("X: a\r\n b"), 400),
    "M50 HTTP/2.0": (head("GET / HTTP/2.0"), 505),
    "M50 HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "M50 CONNECT with a bad field": (head("CONNECT a:1 HTTP/1.1", "X : 1"), 405),
    "M50 unknown expectation": (get("Expect: foo"), 417),
}


def has_taken(connection: ClientConnection, size: int) -> bool:
    """Tell whether the gateway holds that many bytes of a head, or has decided already."""
    return len(connection._inbox.data) == size or (
        connection._lingering is not None or connection._exchange is not None
    )


@pytest.mark.parametrize(("raw", "status"), SPLIT.values(), ids=SPLIT.keys())
async def test_a_request_split_at_every_byte_has_one_outcome(raw: bytes, status: int) -> None:
    async with stage() as here:
        answers = set()
        for split in range(1, len(raw)):
            async with connect(here.port) as client:
                await client.send(raw[:split])
                await until(lambda: here.gateway.gateway.connections != set())
                await until(functools.partial(has_taken, here.connection(), split))
                await client.send(raw[split:])
                answer = await client.read_answer()
                answers.add((answer.status, answer.code, answer.body))
            await until(lambda: here.gateway.gateway.connections == set())
        assert len(answers) == 1
        assert answers.pop()[0] == status
        if status == 200:
            assert len({*here.upstream.heads}) == 1
            assert len(here.upstream.heads) == len(raw) - 1
        else:
            here.assert_untouched()


# Content that goes wrong after its request has been forwarded.

OK_CHUNK = b"1\r\na\r\n"
BROKEN = {
    **{
        f"M15 size {size!r}": size + b"\r\nok\r\n0\r\n\r\n"
        for size in (
            b"+2", b"-2", b"0x2", b"1_0", b" 2", b"\t2", b"", b"1" * 17, b"0" * 16 + b"2", b"g",
            "２".encode(), b"2.0", b"2\xa0",
        )
    },
    "M16 trailing space": b"2 \r\nok\r\n0\r\n\r\n",
    "M16 trailing tab": b"2\t\r\nok\r\n0\r\n\r\n",
    "M16 bare semicolon": b"2;\r\nok\r\n0\r\n\r\n",
    "M16 space before an extension": b"2 ;a\r\nok\r\n0\r\n\r\n",
    "M17 line ended by LF": b"2\nok\r\n0\r\n\r\n",
    "M17 line ended by CR X": b"2\rXok\r\n0\r\n\r\n",
    "M17 line ended by nothing": b"2ok\r\n0\r\n\r\n",
    "M17 data ended by LF": b"2\r\nok\n0\r\n\r\n",
    "M17 data ended by CR X": b"2\r\nok\rX0\r\n\r\n",
    "M17 data ended by nothing": b"2\r\nok0\r\n\r\n",
    "M17 data ended by XX": b"2\r\nokXX0\r\n\r\n",
    "M18 LF in an extension": b"2;a\nb\r\nok\r\n0\r\n\r\n",
    "M18 CR in an extension": b"2;a\rb\r\nok\r\n0\r\n\r\n",
    "M18 NUL in an extension": b"2;a\x00b\r\nok\r\n0\r\n\r\n",
    "M18 CR in a quoted extension": b'2;a="\r"\r\nok\r\n0\r\n\r\n',
    "M18 LF in a quoted extension": b'2;a="x\n0\r\n\r\n"\r\nok\r\n0\r\n\r\n',
    "M19 extension of 20 KiB": b"2;" + b"a" * 20_000 + b"\r\nok\r\n0\r\n\r\n",
    "M19 chunk line without end": b"2;" + b"a" * 20_000,
    "M19 size without end": b"0" * 20_000,
    "M19 more extension than data": b"1;aaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 1000 + b"0\r\n\r\n",
    "M21 last line by LF": b"0\r\n\n",
    "M21 last line XX": b"0\r\nXX\r\n\r\n",
    "M21 last line CR X": b"0\r\n\rX",
    "M21 size line by LF": b"0\n\n",
    "M22 spill": b"2\r\nabcd\r\n0\r\n\r\n",
    "M22 spill by a CR": b"2\r\nab\r\r\n0\r\n\r\n",
    **{
        f"M23 trailer {name}": b"2\r\nok\r\n0\r\n" + name.encode() + b": 7\r\n\r\n" + SMUGGLED
        for name in (
            "X-T", "Content-Length", "Host", "Authorization", "X-Sandbox-ID", "X-Sandbox-Token",
            "Transfer-Encoding", "Cookie",
        )
    },
    "M23 trailer of 40 KiB": b"0\r\nX: " + b"a" * 40_960 + b"\r\n\r\n",
    "M23 10,000 trailers": b"0\r\n" + b"X: 1\r\n" * 10_000 + b"\r\n",
}  # fmt: skip


def is_whole(received: bytes) -> bool:
    """Tell whether a sandbox could take what it got for a complete chunked request."""
    return received.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
async def test_content_that_goes_wrong_ends_both_sides_and_is_never_whole(body: bytes) -> None:
    async with stage() as here:
        for number, way in enumerate(EVERY_WAY if len(body) < 1000 else (whole, in_pieces(100))):
            async with connect(here.port) as client:
                await client.send(request(method="POST", more="Transfer-Encoding: chunked\r\n"))
                side = await here.upstream.side(number)
                await client.send(OK_CHUNK)
                await until(lambda: OK_CHUNK in side.received)  # noqa: B023
                await send_pieces(client, way(body))
                answer = await client.read_answer()
                assert_own_answer(answer, 400, "bad_request")
                assert (answer.json["reached"], answer.json["retry_safe"]) == ("unknown", False)
                await assert_closed(client)
                await asyncio.wait_for(side.ended.wait(), 10)
                assert not is_whole(side.received)
                assert b"smuggled" not in side.received
                assert here.gateway.dials == 0
        assert len(here.upstream.sides) == number + 1
        assert len(here.gateway.registry.look_ups) == number + 1


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
async def test_content_that_goes_wrong_at_once_is_never_whole_either(body: bytes) -> None:
    async with stage() as here:
        for warm in (False, True):
            async with connect(here.port) as client:
                if warm:  # so that the head leaves at once, over a connection that is there
                    await client.send(request("/warm"))
                    assert (await client.read_answer()).body == b"ok"
                raw = request(method="POST", more="Transfer-Encoding: chunked\r\n") + body
                await client.send(raw)
                assert_own_answer(await client.read_answer(), 400, "bad_request")
                await assert_closed(client)
                await until(lambda: here.gateway.dials == 0)
        for side in here.upstream.sides:
            await asyncio.wait_for(side.ended.wait(), 10)
            assert not is_whole(side.received)


@pytest.mark.parametrize("end", ["0", "0\r\n", "0\r\nX", "1\r\nb", "", "2;a"])
async def test_m21_content_that_falls_silent_is_408_and_never_whole(end: str) -> None:
    async with stage() as here, connect(here.port) as client:
        more = "Transfer-Encoding: chunked\r\nX-Sandbox-Timeout: 0.2\r\n"
        await client.send(request(method="POST", more=more) + OK_CHUNK + end.encode())
        assert_own_answer(await client.read_answer(), 408, "request_timeout")
        await assert_closed(client)
        side = await here.upstream.side()
        await asyncio.wait_for(side.ended.wait(), 10)
        assert not is_whole(side.received)


@pytest.mark.parametrize("how", ["FIN", "RST", "silence"])
async def test_m51_content_shorter_than_its_length_is_aborted(how: str) -> None:
    async def reading(side: UpstreamSide) -> None:
        while await side.read():
            pass

    async with stage(reading) as here, connect(here.port) as client:
        more = "Content-Length: 10\r\nX-Sandbox-Timeout: 0.3\r\n"
        await client.send(request(method="PUT", more=more, body=b"four"))
        side = await here.upstream.side()
        await until(lambda: side.received.endswith(b"four"))
        if how == "FIN":
            client.writer.write_eof()
        elif how == "RST":
            client.writer.transport.abort()
        else:
            assert_own_answer(await client.read_answer(), 408, "request_timeout")
            await assert_closed(client)
        await asyncio.wait_for(side.ended.wait(), 1)
        assert side.received.endswith(b"four")
        assert (len(here.upstream.sides), here.gateway.dials) == (1, 0)


async def test_m19_many_small_chunks_cost_little_and_are_put_together() -> None:
    seen: list[int] = []

    async def script(side: UpstreamSide) -> None:
        _, body = await side.read_request()
        seen.extend((len(body), side.received.count(b"\r\n")))
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    count = 100_000
    async with stage(script) as here, connect(here.port) as client:
        began = time.process_time()
        raw = request(method="POST", more="Transfer-Encoding: chunked\r\n")
        await client.send(raw + b"1\r\nx\r\n" * count + b"0\r\n\r\n")
        assert (await client.read_answer()).body == b"ok"
        assert time.process_time() - began < 4  # 0.3 s on the machine this was written on
        assert seen[0] == count
        assert seen[1] < count / 10


# Odd, and to be taken as it is.

OK_REQUEST = b"GET / HTTP/1.1"
PASSING: dict[str, tuple[bytes, list[bytes]]] = {
    "M14 TE of the client": (get("TE: trailers, chunked"), [OK_REQUEST]),
    "M30 obs-text": (
        get(b"X: \xe9\x80", b"Y: \x85a\x85", b"Z: \xa0\xff\xa0"),
        [OK_REQUEST, b"X: \xe9\x80", b"Y: \x85a\x85", b"Z: \xa0\xff\xa0"],
    ),
    "M33 absolute form": (head("GET http://evil/x?y HTTP/1.1"), [b"GET /x?y HTTP/1.1"]),
    "M33 absolute form without a path": (head("GET HTTP://evil:81 HTTP/1.1"), [OK_REQUEST]),
    "M34 two slashes": (head("GET //evil/x HTTP/1.1"), [b"GET //evil/x HTTP/1.1"]),
    "M34 two slashes and userinfo": (
        head("GET //u@evil:1/x HTTP/1.1"),
        [b"GET //u@evil:1/x HTTP/1.1"],
    ),
    "M44 one empty line before": (b"\r\n" + get(), [OK_REQUEST]),
    **{
        f"{row} target {target}": (
            head(f"GET {target} HTTP/1.1"),
            [f"GET {target} HTTP/1.1".encode()],
        )
        for row, target in (
            ("M45", '/"<>{}|^`\\'), ("M45", "/a'!$&()*+,;=:@~"), ("M46", "/%2e%2e%2f"),
            ("M46", "/a/../../b"), ("M46", "/./a//"), ("M46", "/%2F%5c"), ("M46", "/%00"),
            ("M46", "/%0d%0aX-Sandbox-ID:%20other"), ("M46", "/;p=1;q"), ("M46", "/%zz%"),
            ("M47", "/?a;b&&=&%&x=%x"), ("M47", "/??"),
            ("T25", "/a%2Fb"), ("T25", "/a%252Fb"), ("T25", "//x//y"), ("T25", "/a/../b"),
            ("T25", "/a/%2e%2e/b"), ("T25", "/;p=1"), ("T25", "/%ff"), ("T25", "/?"),
            ("T25", "/q?x=a|b%26c"),
        )
    },
    "M54 fields nominated": (
        get(
            "Connection: X-Sandbox-ID, X-Sandbox-Token, Host, X-Forwarded-For, X-Mine",
            "X-Mine: 1",
            "X-Other: 2",
        ),
        [OK_REQUEST, b"X-Other: 2"],
    ),
    "M55 two Connection lines": (
        get("Connection: X-A, Upgrade", "Connection: keep-alive, X-B", "X-A: 1", "X-B: 2", "Y: 3"),
        [OK_REQUEST, b"Y: 3"],
    ),
    "M56 unknown upgrade": (get("Upgrade: foo", "Connection: Upgrade"), [OK_REQUEST]),
    "M56 h2c": (
        get("Upgrade: h2c", "HTTP2-Settings: AAMAAABk", "Connection: Upgrade, HTTP2-Settings"),
        [OK_REQUEST],
    ),
    "M31 id in mixed case": (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nx-SANDBOX-iD: sb\r\n\r\n",
        [OK_REQUEST],
    ),
    "M32 host with a port": (hosted(" LOCALHOST:1"), [OK_REQUEST]),
    "M32 IPv6": (hosted(" [::1]:80"), [OK_REQUEST]),
    "M32 no space": (hosted("localhost"), [OK_REQUEST]),
    "M31 aliases of what ends here": (
        get("X_Forwarded_For: 1.2.3.4", "X.Sandbox.Expect_UID: u", "Proxy_Connection: b", "X_Y: 1"),
        [OK_REQUEST, b"X_Y: 1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "lines"), PASSING.values(), ids=PASSING.keys())
async def test_what_is_odd_and_legal_reaches_the_sandbox_as_it_is(
    raw: bytes, lines: list[bytes]
) -> None:
    assert await forwarded(raw) == (lines, b"")


@pytest.mark.parametrize(
    "method", ["OPTIONS", "HEAD", "PATCH", "PROPFIND", "PURGE", "M-SEARCH", "get", "!#$%&'*+.^_`|~"]
)
async def test_m38_every_other_method_passes_as_it_is(method: str) -> None:
    lines, _ = await forwarded(head(f"{method} / HTTP/1.1"))
    assert lines == [f"{method} / HTTP/1.1".encode()]


@pytest.mark.parametrize("value", [b"\xe9", b"\x85sb", b"sb\xa0", b"sb\x85"])
async def test_m30_obs_text_in_a_routing_field_is_refused(value: bytes) -> None:
    raw = get().replace(b": sb", b": " + value)
    await assert_refused(raw, 400, "invalid_sandbox_id")


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    ("framing", "body"),
    [("Content-Length: 2", b"hi"), ("Transfer-Encoding: chunked", b"2;x=y\r\nhi\r\n0\r\n\r\n")],
    ids=["length", "M20 chunked with extension"],
)
async def test_m59_content_of_any_method_is_forwarded_whole(
    method: str, framing: str, body: bytes
) -> None:
    lines, content = await forwarded(head(f"{method} / HTTP/1.1", framing) + body)
    assert lines == [f"{method} / HTTP/1.1".encode(), framing.encode()]
    assert content == b"hi"


@pytest.mark.parametrize("more", [(), ("Connection: keep-alive",)], ids=["plain", "keep-alive"])
@pytest.mark.parametrize("host", [True, False], ids=["host", "no host"])
async def test_m41_http_1_0_is_served_and_closed(more: tuple[str, ...], host: bool) -> None:
    raw = head("GET / HTTP/1.0", *more, "Authorization: Bearer secret")
    if not host:
        raw = raw.replace(b"Host: localhost\r\n", b"")
    lines, _ = await forwarded(raw, kept=False, ROUTER_AUTH_TOKEN="secret")
    assert lines == [OK_REQUEST]


async def test_m41_http_1_0_gets_no_chunks_and_no_interim_answers() -> None:
    script = answering(
        b"HTTP/1.1 103 Early Hints\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    )
    async with stage(script) as here, connect(here.port) as client:
        await client.send(head("GET / HTTP/1.0"))
        answer = await client.read_answer()
        assert answer.raw_head.startswith(b"HTTP/1.1 200 ")
        assert answer.one("Transfer-Encoding") is None
        assert answer.body == b"ok"


@pytest.mark.parametrize("line", ["OPTIONS *", "OPTIONS http://localhost"])
async def test_m37_options_star_is_the_gateways_own_answer(line: str) -> None:
    async with stage() as here, connect(here.port) as client:
        for cut in EVERY_WAY:
            await send_pieces(client, cut(head(f"{line} HTTP/1.1")))
            answer = await client.read_answer()
            assert (answer.status, answer.one("Content-Length")) == (204, None)
            assert "PATCH" in (answer.one("Allow") or "")
        here.assert_untouched()


# Connections: several requests, upgrades, expectations.


def marked(number: int) -> bytes:
    return request(f"/{number}", method="PUT", more="Content-Length: 4\r\n", body=b"%04d" % number)


async def answer_body(side: UpstreamSide) -> None:
    while (got := await side.read_request())[0]:
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(got[1]), got[1]))


@pytest.mark.parametrize("count", [2, 100, 1000])
@pytest.mark.parametrize("bad", [False, True], ids=["good", "malformed last"])
async def test_m52_pipelined_requests_are_answered_in_order(count: int, bad: bool) -> None:
    async with stage(answer_body) as here, connect(here.port) as client:
        last = get("X : 1") if bad else b""
        raw = b"".join(map(marked, range(count))) + last + (SMUGGLED if bad else b"")
        sending = asyncio.create_task(client.send(raw))
        for number in range(count):
            assert (await client.read_answer()).body == b"%04d" % number
        await sending
        if bad:
            assert_own_answer(await client.read_answer(), 400, "bad_request")
            await assert_closed(client)
        assert len(here.upstream.heads) == count
        assert len(here.upstream.sides) == 1


async def test_m52_each_pipelined_request_is_judged_by_its_own_fields() -> None:
    async with stage(ROUTER_AUTH_TOKEN="secret") as here, connect(here.port) as client:
        good = "Authorization: Bearer secret\r\n"
        await client.send(
            request("/1", more=good)
            + request("/2", sandbox="other", more=good)
            + request("/3", sandbox="other", more="Authorization: Bearer wrong\r\n")
            + request("/4", more=good)
        )
        answers = [await client.read_answer() for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 404, 401]
        await assert_closed(client)
        assert [target.sandbox for target in here.gateway.registry.look_ups] == [
            "sb",
            *["other"] * 2,
        ]
        assert len(here.upstream.heads) == 1


async def test_m52_a_malformed_request_behind_a_head_request_gets_its_whole_answer() -> None:
    script = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
    async with stage(script) as here, connect(here.port) as client:
        await client.send(request(method="HEAD") + get("X : 1"))
        assert (await client.read_answer(head_only=True)).status == 200
        assert_own_answer(await client.read_answer(), 400, "bad_request")
        await assert_closed(client)


async def test_m52_a_client_that_pipelines_into_a_stalled_sandbox_is_held_back() -> None:
    async def stalled(side: UpstreamSide) -> None:
        await side.read_request()

    async with stage(stalled) as here, connect(here.port) as client:
        sending = asyncio.create_task(client.send(request() * 200_000))
        await here.upstream.side()
        await until(lambda: client.writer.transport.get_write_buffer_size() > 0)
        await until(lambda: here.connection()._pipeline_paused)
        assert len(here.connection()._inbox.data) < 512 * 1024
        assert len(here.upstream.heads) <= 1
        client.writer.transport.abort()
        await asyncio.gather(sending, return_exceptions=True)


async def test_m53_what_follows_connection_close_is_ignored() -> None:
    async with stage() as here:
        for way in EVERY_WAY:
            async with connect(here.port) as client:
                await send_pieces(client, way(get("Connection: close") + SMUGGLED))
                answer = await client.read_answer()
                assert (answer.status, answer.one("Connection")) == (200, "close")
                await assert_closed(client)
        assert b"smuggled" not in here.upstream.received


@pytest.mark.parametrize("turns", range(8))
async def test_m53_what_follows_never_costs_the_control_apps_last_answer(turns: int) -> None:
    last = request("/healthz", sandbox=None, more="Connection: close\r\n")
    async with stage() as here:
        for _ in range(5):
            async with connect(here.port) as client:
                await client.send(last)
                for _ in range(turns):  # so that the rest comes before, at and after the close
                    await asyncio.sleep(0)
                await client.send(SMUGGLED * 20)
                answer = await client.read_answer()
                assert (answer.status, answer.one("Connection")) == (200, "close")
                await assert_closed(client)
        here.assert_untouched()


@pytest.mark.parametrize("upgrade", ["foo", "h2c", "websocket, h2c", "WebSocket/13"])
async def test_m56_what_follows_an_unknown_upgrade_is_a_request_of_its_own(upgrade: str) -> None:
    async with stage() as here, connect(here.port) as client:
        await client.send(get(f"Upgrade: {upgrade}", "Connection: Upgrade") + request("/2"))
        assert [(await client.read_answer()).status for _ in range(2)] == [200, 200]
        assert [line.split(b" ")[1] for line in here.upstream.heads] == [b"/", b"/2"]
        assert b"pgrade" not in here.upstream.received


KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", KEY)
NO_HANDSHAKE = {
    "M57 POST": post(*HANDSHAKE),
    "M57 content": get(*HANDSHAKE, "Content-Length: 2") + b"hi",
    "M57 chunked content": get(*HANDSHAKE, "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "M57 short key": get(*HANDSHAKE[:3], "Sec-WebSocket-Key: aGk="),
    "M57 no key": get(*HANDSHAKE[:3]),
    "M57 two keys": get(*HANDSHAKE, KEY),
    "M57 no Connection": get(HANDSHAKE[0], *HANDSHAKE[2:]),
    "M57 two upgrades": get(*HANDSHAKE, "Upgrade: websocket"),
    "M57 HTTP/1.0": head("GET / HTTP/1.0", *HANDSHAKE),
}


@pytest.mark.parametrize("raw", NO_HANDSHAKE.values(), ids=NO_HANDSHAKE.keys())
async def test_what_is_no_websocket_handshake_opens_no_tunnel(raw: bytes) -> None:
    await assert_refused(raw, 400, "bad_request")


@pytest.mark.parametrize("version", ["8", "0", "013", "13, 8", ""])
async def test_m57_another_websocket_version_is_told_the_right_one(version: str) -> None:
    lines = (*HANDSHAKE[:2], f"Sec-WebSocket-Version: {version}", KEY)
    answer = await assert_refused(get(*lines), 426, "bad_request")
    assert answer.one("Sec-WebSocket-Version") == "13"


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def continuing(side: UpstreamSide) -> None:
    await side.read_head()
    side.send(CONTINUE)
    await side.read_exactly(2)
    side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def expecting(value: str = "100-continue", *more: str) -> bytes:
    return post(f"Expect: {value}", "Content-Length: 2", *more)


@pytest.mark.parametrize("at_once", [True, False], ids=["body at once", "body later"])
async def test_m58_the_sandboxs_100_passes_once(at_once: bool) -> None:
    async with stage(continuing) as here, connect(here.port) as client:
        await client.send(expecting() + (b"hi" if at_once else b""))
        assert (await client.read_answer()).status == 100
        if not at_once:
            assert here.upstream.received.endswith(b"\r\n\r\n")
            await client.send(b"hi")
        assert (await client.read_answer()).status == 200
        assert here.upstream.received.count(b"Expect: 100-continue\r\n") == 1


async def test_m58_without_the_sandboxs_100_there_is_none() -> None:
    async with stage() as here, connect(here.port) as client:
        await client.send(expecting("100-continue", "X-Sandbox-Timeout: 0.2"))
        assert_own_answer(await client.read_answer(), 408, "request_timeout")
        await assert_closed(client)
        await asyncio.wait_for((await here.upstream.side()).ended.wait(), 10)


@pytest.mark.parametrize("status", [401, 413])
async def test_m58_a_final_answer_first_is_passed_and_ends_the_connection(status: int) -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(b"HTTP/1.1 %d No\r\nContent-Length: 2\r\n\r\nno" % status)

    async with stage(script) as here, connect(here.port) as client:
        await client.send(expecting())
        answer = await client.read_answer()
        assert (answer.status, answer.body, answer.code) == (status, b"no", None)
        await assert_closed(client)
        await asyncio.wait_for((await here.upstream.side()).ended.wait(), 10)


@pytest.mark.parametrize("value", ["foo", "100-continue, foo", "", "100-continue;q=1", "200-ok"])
async def test_m58_another_expectation_fails(value: str) -> None:
    await assert_refused(expecting(value) + b"hi", 417, "expectation_failed")


INJECTED = {
    "M61 escape": get("User-Agent: \x1b[31mred"),
    "M61 escape in the path": head("GET /\x1b[31mred HTTP/1.1"),
    "M61 encoded line end": head("GET /%0a%0dred%1b[31m HTTP/1.1"),
    "M61 user agent of 1 MiB": get("User-Agent: red" + "a" * 2**20),
    "M61 lines that fake others": get("X: red\nINFO faked"),
    "M43 noise": b"\x16\x03\x01red" + bytes(range(256)) * 200,
}


@pytest.mark.parametrize("raw", INJECTED.values(), ids=INJECTED.keys())
async def test_nothing_of_a_request_reaches_the_log(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with stage() as here:
        for _ in range(20):
            async with connect(here.port) as client:
                await client.send(raw)
                await client.read_answer()
    records = [record for record in caplog.records if record.name.startswith("sandgate")]
    assert len(records) <= 1
    assert not any(text in caplog.text for text in ("red", "\x1b", "faked"))
