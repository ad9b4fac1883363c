"""What may be thrown at the gateway, section 2C: routing fields, and what crosses with them.

R01 to R17, R29 and R30 as raw bytes on sockets, and the cases of users about routing (T03, T04)
and about what crosses unchanged (T16 to T30). The row is in the name of the case.
"""

import pytest
from support.raw_client import Answer, connect, request
from support.scripted_upstream import UpstreamSide, answer_ok, answering
from support.survive_heads import get, head, post
from support.survive_probe import (
    EVERY_WAY,
    SMUGGLED,
    assert_closed,
    assert_own_answer,
    assert_refused,
    forwarded,
    send_pieces,
    stage,
)

from sandgate_router.target import Target


def routed(*lines: str | bytes) -> bytes:
    """Return a request with these lines and no other that routes."""
    return get(*lines).replace(b"X-Sandbox-ID: sb\r\n", b"", 1)


ID_REQUIRED = {
    "R01 no id": routed("X-Sandbox-Port: 8888"),
    "R01 no routing field at all": routed(),
    "R01 empty": routed("X-Sandbox-ID:"),
    "R01 spaces": routed("X-Sandbox-ID:    "),
    "R01 tabs": routed("X-Sandbox-ID:\t\t"),
    "R01 namespace alone": routed("X-Sandbox-Namespace: a"),
    "R01 UID alone": routed("X-Sandbox-UID: a"),
    "R01 address alone": routed("X-Sandbox-Pod-IP: 127.0.0.1"),
    "T04 empty": routed("X-Sandbox-ID: "),
}


@pytest.mark.parametrize("raw", ID_REQUIRED.values(), ids=ID_REQUIRED.keys())
async def test_a_request_without_an_id_is_told_to_send_one(raw: bytes) -> None:
    if b"X-Sandbox" in raw:
        answer = await assert_refused(raw, 400, "sandbox_id_required")
        assert answer.json["detail"] == "X-Sandbox-ID header is required."
        return
    async with stage() as here, connect(here.port) as client:  # the control app's, and kept
        await client.send(raw)
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (400, "sandbox_id_required")
        here.assert_untouched()


AMBIGUOUS = {
    "R02 two ids": get("X-Sandbox-ID: other"),
    "R02 two equal ids": get("X-Sandbox-ID: sb"),
    "R02 two ids, one empty": get("X-Sandbox-ID:"),
    "R02 two ids in other case": get("x-sandbox-id: other"),
    "R02 id and underscores": get("X_Sandbox_ID: sb"),
    "R02 id and dots": get("X.Sandbox.ID: sb"),
    "R02 underscores alone": routed("X_Sandbox_ID: sb"),
    "R04 two namespaces": get("X-Sandbox-Namespace: a", "X-Sandbox-Namespace: b"),
    "R04 two equal namespaces": get("X-Sandbox-Namespace: a", "X-Sandbox-Namespace: a"),
    "R04 two ports": get("X-Sandbox-Port: 80", "X-Sandbox-Port: 81"),
    "R04 two equal ports": get("X-Sandbox-Port: 80", "X-Sandbox-Port: 80"),
    "R04 two tokens": get("X-Sandbox-Token: a", "X-Sandbox-Token: b"),
    "R04 two UIDs": get("X-Sandbox-UID: a", "X-Sandbox-UID: b"),
    "R04 two addresses": get("X-Sandbox-Pod-IP: 10.0.0.1", "X-Sandbox-Pod-IP: 10.0.0.1"),
    "T03 two ids": get("X-Sandbox-ID: b"),
}


@pytest.mark.parametrize("raw", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_no_line_wins_where_there_are_two(raw: bytes) -> None:
    await assert_refused(raw, 400, "ambiguous_routing")


BAD_LABELS: dict[str, bytes] = {
    "R03 list": b"a, b",
    "R03 trailing comma": b"a,",
    "R03 semicolon": b"a;b",
    "R05 upper case": b"A",
    "R05 mixed case": b"aB",
    "R06 inner space": b"a b",
    "R06 inner tab": b"a\tb",
    "R06 leading no-break space": b"\xa0a",
    "R06 trailing no-break space": b"a\xa0",
    "R06 leading next line": b"\x85a",
    "R06 trailing next line": b"a\x85",
    "R06 ideographic space": "a\u3000".encode(),
    "R07 Cyrillic": "а".encode(),
    "R07 full-width": "ａ".encode(),
    "R07 emoji": "a\U0001f600".encode(),
    "R07 UTF-8": "é".encode(),
    "R07 latin-1": b"\xe9",
    "R07 long s": "a\u017f".encode(),
    "R07 dotless i": "a\u0131".encode(),
    "R07 Kelvin": "\u212a".encode(),
    "R07 soft hyphen": b"a\xadb",
    "R09 64 characters": b"a" * 64,
    "R09 8000 characters": b"a" * 8000,
    "R10 dot": b"a.b",
    "R10 host name": b"foo.evil.com",
    "R10 trailing dot": b"a.",
    "R10 leading dot": b".a",
    "R10 dots": b"..",
    "R11 leading hyphen": b"-a",
    "R11 trailing hyphen": b"a-",
    "R11 hyphen": b"-",
    "R12 slash": b"a/b",
    "R12 percent": b"a%2e",
    "R12 at": b"a@b",
    "R12 port": b"a:80",
    "R12 IPv6": b"[::1]",
    "R12 IPv4": b"127.0.0.1",
    "R12 underscore": b"a_b",
    "R12 quotes": b'"a"',
    "R12 backslash": b"a\\b",
    "T04 dot": b"a.b",
    "T04 upper case": b"A",
    "T04 64 characters": b"a" * 64,
    "T04 path": b"x/../y",
}
FIELDS = {"ID": "invalid_sandbox_id", "Namespace": "invalid_namespace"}


def naming(field: str, value: bytes) -> bytes:
    """Return a request whose one field of this name has this value."""
    line = b"X-Sandbox-" + field.encode() + b": " + value
    return routed(line) if field == "ID" else get(line)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", BAD_LABELS.values(), ids=BAD_LABELS.keys())
async def test_what_is_no_label_names_no_sandbox(field: str, value: bytes) -> None:
    await assert_refused(naming(field, value), 400, FIELDS[field])


CONTROLS = {
    "R06 vertical tab": b"a\x0b",
    "R06 form feed": b"\x0ca",
    "R13 trailing newline": b"a\n",
    "R13 trailing newline and CR": b"a\r",
    "R14 NUL": b"a\x00",
    "R14 CR": b"a\rb",
    "R14 LF": b"a\nb",
    "R14 escape": b"a\x1b[m",
    "R14 DEL": b"a\x7f",
    "T04 trailing newline": b"a\n",
}


@pytest.mark.parametrize("field", ["ID", "Namespace", "Port", "UID"])
@pytest.mark.parametrize("value", CONTROLS.values(), ids=CONTROLS.keys())
async def test_a_control_byte_in_a_routing_field_ends_at_the_head_check(
    field: str, value: bytes
) -> None:
    await assert_refused(naming(field, value), 400, "bad_request")


BAD_PORTS: dict[str, bytes] = {
    **{f"R15 {value}": value.encode() for value in ("0", "65536", "99999999999999999999")},
    **{
        f"R16 {value}": value.encode()
        for value in (
            "+80", "-1", "8_0", "080", "0x50", "80.0", "1e2", "８０", "٨٠", "8 0", "80,81", "80;",
            "٣", "²", "00080", "http",
        )
    },
    "R16 no-break space": b"80\xa0",
    "R16 next line": b"\x8580",
}  # fmt: skip


@pytest.mark.parametrize("value", BAD_PORTS.values(), ids=BAD_PORTS.keys())
async def test_what_is_no_port_is_dialled_nowhere(value: bytes) -> None:
    await assert_refused(naming("Port", value), 400, "invalid_port")


LONGEST = "a" + "-" * 61 + "z"
TARGETS = {
    "R06 white space around": (get("X-Sandbox-Port: \t80 \t"), ("sb", "default", 80)),
    "R08 punycode": (routed("X-Sandbox-ID: xn--80ak6aa92e"), ("xn--80ak6aa92e", "default", 8888)),
    "R09 63 characters": (
        routed(f"X-Sandbox-ID: {LONGEST}", f"X-Sandbox-Namespace: {LONGEST}"),
        (LONGEST, LONGEST, 8888),
    ),
    "R11 two hyphens": (routed("X-Sandbox-ID: a--b"), ("a--b", "default", 8888)),
    "R12 digits alone": (routed("X-Sandbox-ID: 123"), ("123", "default", 8888)),
    "R12 an address as a number": (
        routed("X-Sandbox-ID: 2130706433"),
        ("2130706433", "default", 8888),
    ),
    "R12 an address as a hexadecimal": (
        routed("X-Sandbox-ID: 0x7f000001"),
        ("0x7f000001", "default", 8888),
    ),
    "R15 lowest port": (get("X-Sandbox-Port: 1"), ("sb", "default", 1)),
    "R15 highest port": (get("X-Sandbox-Port: 65535"), ("sb", "default", 65535)),
    "R16 spaces around": (get("X-Sandbox-Port:  80  "), ("sb", "default", 80)),
    "R17 empty port": (get("X-Sandbox-Port:"), ("sb", "default", 8888)),
    "R17 empty namespace": (get("X-Sandbox-Namespace: "), ("sb", "default", 8888)),
}


@pytest.mark.parametrize(("raw", "target"), TARGETS.values(), ids=TARGETS.keys())
async def test_what_is_asked_for_is_looked_up_by_its_whole_name_and_never_resolved(
    raw: bytes, target: tuple[str, str, int]
) -> None:
    async with stage() as here:
        here.gateway.registry.endpoints.clear()
        for way in EVERY_WAY:
            async with connect(here.port) as client:
                await send_pieces(client, way(raw))
                answer = await client.read_answer()
                # Nobody has that name, so nothing is dialled; above all not 127.0.0.1.
                assert (answer.status, answer.code) == (404, "sandbox_not_found")
        assert here.upstream.sides == []
        assert {*map(tuple, here.gateway.registry.look_ups)} == {target}


@pytest.mark.parametrize("sandbox", ["123", "2130706433", "0x7f000001", "xn--80ak6aa92e", LONGEST])
async def test_r12_the_sandbox_is_asked_by_its_whole_name(sandbox: str) -> None:
    async with stage() as here, connect(here.port) as client:
        here.gateway.registry.add(sandbox, here.upstream.port)
        await client.send(request(sandbox=sandbox))
        assert (await client.read_answer()).status == 200
        host = f"\r\nHost: {sandbox}.default.svc.cluster.local:8888\r\n".encode()
        assert host in here.upstream.received
        assert isinstance(here.gateway.registry.look_ups[0], Target)


async def test_r29_fields_of_this_hop_and_of_ours_never_come_from_a_sandbox() -> None:
    script = answering(
        b"HTTP/1.1 103 Early Hints\r\nConnection: X-Hint\r\nX-Hint: 1\r\nLink: a\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nConnection: X-Named, keep-alive\r\nX-Named: 1\r\n"
        b"X-Sandbox-Error: a\r\n"
        b"Proxy-Status: forged; error=x\r\nproxy-STATUS: forged\r\nKeep-Alive: timeout=5\r\n"
        b"Proxy-Authenticate: Basic\r\nProxy-Connection: keep-alive\r\nTE: trailers\r\n"
        b"Trailer: X\r\nUpgrade: h2c\r\nX-Sandbox-Mine: 1\r\nContent-Length: 2\r\n\r\nok"
    )
    async with stage(script) as here, connect(here.port) as client:
        await client.send(get())
        assert (await client.read_answer()).fields == [("Link", "a")]
        answer = await client.read_answer()
        assert [field for field in answer.fields if field[0] != "Date"] == [
            ("X-Sandbox-Mine", "1"),
            ("Content-Length", "2"),
        ]


FORGED = (
    "X-Forwarded-For: 6.6.6.6",
    "X-Forwarded-Host: evil",
    "X-Forwarded-Proto: https",
    "Forwarded: for=6.6.6.6",
    "X-Real-IP: 6.6.6.6",
    "x-real-ip: 6.6.6.6",
    "X_Forwarded_For: 6.6.6.6",
)


async def seen_lines(raw: bytes, **settings: str) -> set[bytes]:
    async with stage(answer_ok, **settings) as here, connect(here.port) as client:
        await client.send(raw)
        assert (await client.read_answer()).status == 200
        return {*here.upstream.heads[0].split(b"\r\n")}


async def test_r30_what_a_stranger_says_of_its_way_is_replaced() -> None:
    seen = await seen_lines(get(*FORGED))
    assert not any(b"6.6.6.6" in line or b"evil" in line for line in seen)
    assert {
        b"X-Forwarded-For: 127.0.0.1",
        b"X-Forwarded-Host: localhost",
        b"X-Forwarded-Proto: http",
    } <= seen


async def test_r30_what_a_trusted_proxy_says_is_kept_and_appended_to() -> None:
    seen = await seen_lines(get(*FORGED[:5]), TRUSTED_PROXY_CIDRS="127.0.0.0/8")
    assert {
        b"X-Forwarded-For: 6.6.6.6, 127.0.0.1",
        b"X-Forwarded-Host: evil",
        b"X-Forwarded-Proto: https",
        b"Forwarded: for=6.6.6.6",
        b"X-Real-IP: 6.6.6.6",
    } <= seen


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (["a.B_c-9"], 1),
        (["a" * 64], 1),
        (["a" * 65], 0),
        (["a" * 4096], 0),
        (["a%0d%0aX: 1"], 0),
        (["a b"], 0),
        (["\xe9"], 0),
        ([""], 0),
        (["a", "b"], 0),
    ],
)
async def test_r30_a_malformed_request_id_is_dropped_and_none_is_added(
    lines: list[str], kept: int
) -> None:
    seen = await seen_lines(get(*(f"X-Request-ID: {value}" for value in lines)))
    assert sum(line.lower().startswith(b"x-request-id") for line in seen) == kept


# What users of such systems ran into: what crosses must cross unchanged.


async def exchange(response: bytes, raw: bytes = b"", *, head_only: bool = False) -> Answer:
    """Return the client's view of a response, after seeing the next exchange intact."""

    async def script(side: UpstreamSide) -> None:
        await side.read_request()
        side.send(response)
        await answer_ok(side)

    async with stage(script) as here, connect(here.port) as client:
        await client.send(raw or get())
        answer = await client.read_answer(head_only=head_only)
        await client.send(request("/next"))
        assert (await client.read_answer()).body == b"ok"
        return answer


PACKED = b"\x1f\x8b\x08" + bytes(range(45))


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "unknown"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_t16_encoded_content_is_not_touched(coding: str, chunked: bool) -> None:
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 48"
    body = b"10\r\n" + PACKED[:16] + b"\r\n20\r\n" + PACKED[16:] + b"\r\n0\r\n\r\n"
    answer = await exchange(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\n%b\r\n\r\n%b"
        % (coding.encode(), framing, body if chunked else PACKED)
    )
    assert answer.body == PACKED
    assert answer.one("Content-Encoding") == coding
    assert answer.one("Content-Length") == (None if chunked else "48")


async def test_t17_nothing_is_invented_for_the_client() -> None:
    lines, _ = await forwarded(get())
    assert lines == [b"GET / HTTP/1.1"]


@pytest.mark.parametrize("status", [200, 302, 400])
async def test_t19_cookies_stay_separate_and_in_order(status: int) -> None:
    cookies = ["a=1; Expires=Mon, 01 Jan 2035 00:00:00 GMT", "b=2; Domain=cluster.local"]
    lines = "".join(f"Set-Cookie: {cookie}\r\n" for cookie in cookies)
    answer = await exchange(
        f"HTTP/1.1 {status} X\r\n{lines}Location: http://169.254.169.254/\r\n"
        "Content-Length: 0\r\n\r\n".encode()
    )
    assert (answer.status, answer.all("Set-Cookie")) == (status, cookies)
    assert answer.one("Location") == "http://169.254.169.254/"


async def test_t20_a_cookie_of_one_sandbox_is_never_sent_for_anyone() -> None:
    script = answering(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Domain=cluster.local\r\nSet-Cookie: h=1\r\n"
        b"Content-Length: 2\r\n\r\nok"
    )
    async with stage(script) as here:
        here.gateway.registry.add("other", here.upstream.port)
        for sandbox in ("sb", "other", "sb"):
            async with connect(here.port) as client:
                await client.send(request(sandbox=sandbox))
                assert (await client.read_answer()).status == 200
        assert len(here.upstream.heads) == 3
        assert b"ookie" not in here.upstream.received


async def test_t21_date_and_server_come_once() -> None:
    answer = await exchange(
        b"HTTP/1.1 200 OK\r\nDate: Mon, 01 Jan 2035 00:00:00 GMT\r\nServer: mine\r\n"
        b"Content-Length: 0\r\n\r\n"
    )
    assert answer.one("Date") == "Mon, 01 Jan 2035 00:00:00 GMT"
    assert answer.one("Server") == "mine"


async def test_t22_fields_of_one_hop_do_not_cross_and_others_do() -> None:
    hop = (
        "Connection: close, X-Foo",
        "X-Foo: 1",
        "TE: trailers",
        "Trailer: X",
        "Keep-Alive: timeout=5",
        "Proxy-Authorization: Basic eA==",
        "X-Bar: 1",
    )
    lines, _ = await forwarded(get(*hop), kept=False)
    assert lines == [b"GET / HTTP/1.1", b"X-Bar: 1"]
    async with (
        stage(
            answering(
                "\r\n".join(["HTTP/1.1 200 OK", *hop, "Content-Length: 2", "", "ok"]).encode()
            )
        ) as here,
        connect(here.port) as client,
    ):
        for _ in range(2):  # the sandbox's `close` is no reason to close the client's side
            await client.send(get())
            answer = await client.read_answer()
            assert [name for name, _ in answer.fields] == ["X-Bar", "Date", "Content-Length"]


async def test_t23_a_head_request_gets_the_length_and_the_connection_is_kept() -> None:
    answer = await exchange(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n",
        head("HEAD / HTTP/1.1"),
        head_only=True,
    )
    assert answer.one("Content-Length") == "1234"


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 1234\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["304", "204", "205"],
)
async def test_t24_an_answer_without_content_leaves_the_next_one_intact(response: bytes) -> None:
    answer = await exchange(response)
    assert answer.body == b""
    assert answer.one("Content-Length") == {204: None, 205: "0", 304: "1234"}[answer.status]


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/redoc", "/healthz", "/metrics", "/v1/claims", "/livez"]
)
async def test_t26_with_an_id_every_path_is_the_sandboxs(path: str) -> None:
    lines, _ = await forwarded(head(f"GET {path} HTTP/1.1"))
    assert lines == [f"GET {path} HTTP/1.1".encode()]


T27 = {
    "T27 CL and TE": post("Content-Length: 4", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "T27 CL 3 and 1": post("Content-Length: 3", "Content-Length: 1", body=b"abc" + SMUGGLED),
    "T27 CL +5": post("Content-Length: +5", body=b"hello" + SMUGGLED),
    "T27 fold": get("X: 1\r\n 2"),
}


@pytest.mark.parametrize("raw", T27.values(), ids=T27.keys())
async def test_t27_doubtful_framing_reaches_no_sandbox(raw: bytes) -> None:
    await assert_refused(raw, 400, "bad_request")


@pytest.mark.parametrize(
    ("sandbox", "more", "status"),
    [
        ("nobody", "Authorization: Bearer secret\r\n", 404),
        ("sb", "Authorization: Bearer x\r\n", 401),
    ],
    ids=["T28 unknown id", "T28 bad token"],
)
async def test_t28_a_refused_expectation_gets_no_100(sandbox: str, more: str, status: int) -> None:
    async with stage(ROUTER_AUTH_TOKEN="secret") as here, connect(here.port) as client:
        more += "Expect: 100-continue\r\nContent-Length: 1000\r\n"
        await client.send(request(method="POST", sandbox=sandbox, more=more))
        answer = await client.read_answer()
        assert answer.status == status
        assert_own_answer(answer, status, answer.code or "")
        await assert_closed(client)
        assert here.upstream.sides == []


async def test_t28_a_good_expectation_gets_exactly_one_100() -> None:
    async def script(side: UpstreamSide) -> None:
        await side.read_head()
        side.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        await side.read_exactly(2)
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with stage(script) as here, connect(here.port) as client:
        await client.send(post("Expect: 100-continue", "Content-Length: 2"))
        assert (await client.read_answer()).status == 100
        await client.send(b"hi")
        assert (await client.read_answer()).status == 200


@pytest.mark.parametrize("status", [404, 429, 500, 502])
async def test_t30_a_sandboxs_own_error_is_told_apart_from_ours(status: int) -> None:
    answer = await exchange(
        b"HTTP/1.1 %d Mine\r\nContent-Type: text/x\r\nContent-Length: 4\r\n\r\nmine" % status
    )
    assert answer.raw_head.startswith(b"HTTP/1.1 %d Mine\r\n" % status)
    assert (answer.body, answer.code, answer.one("Proxy-Status")) == (b"mine", None, None)
    assert answer.one("Content-Type") == "text/x"
