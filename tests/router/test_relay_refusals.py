"""Requests that end at the gateway: the answer, a closed connection, and nothing upstream.

Every test counts what the sandbox saw, what was looked up and what was dialled.
"""

import asyncio

import pytest
from support.raw_client import Answer, connect, request
from support.relaying import relaying
from support.running_gateway import running_gateway
from support.scripted_upstream import ScriptedUpstream, answer_ok


async def refusal(raw: bytes, *, pieces: int = 1, **settings: str) -> Answer:
    """Send `raw` and assert that it was refused without a trace."""
    async with relaying(answer_ok, **settings) as (upstream, gateway, client):
        step = -(-len(raw) // pieces)
        for start in range(0, len(raw), step):
            await client.send(raw[start : start + step])
            await asyncio.sleep(0)
        answer = await client.read_answer()
        assert answer.one("Connection") == "close"
        assert await client.read_rest() == b""
        assert upstream.sides == []
        assert gateway.registry.look_ups == []
        assert gateway.dials == 0
        assert answer.json["code"] == answer.code
        assert answer.json["reached"] == "no"
        assert answer.json["retry_safe"] is True
        assert answer.one("Content-Type") == "application/json"
        assert (answer.one("Proxy-Status") or "").startswith("sandgate; error=")
        return answer


def named(field: str, value: bytes) -> bytes:
    """Return a request whose routing field has this value."""
    named_id = b"" if field == "ID" else b"X-Sandbox-ID: sb\r\n"
    line = b"X-Sandbox-" + field.encode() + b": " + value + b"\r\n"
    return b"GET / HTTP/1.1\r\nHost: localhost\r\n" + named_id + line + b"\r\n"


BAD_LABELS = {
    "R03 list": b"a, b",
    "R03 trailing comma": b"a,",
    "R03 semicolon": b"a;b",
    "R05 upper case": b"A",
    "R05 mixed case": b"aB",
    "R06 inner space": b"a b",
    "R06 inner tab": b"a\tb",
    "R06 no-break space": b"\xa0a",
    "R06 next line": b"a\x85",
    "R07 Cyrillic": "а".encode(),
    "R07 full-width": "ａ".encode(),
    "R07 latin-1": b"\xe9",
    "R07 Kelvin": "\u212a".encode(),
    "R09 64 characters": b"a" * 64,
    "R10 dot": b"a.b",
    "R10 host name": b"foo.evil.com",
    "R10 trailing dot": b"a.",
    "R10 leading dot": b".a",
    "R11 leading hyphen": b"-a",
    "R11 trailing hyphen": b"a-",
    "R11 hyphen": b"-",
    "R12 slash": b"a/b",
    "R12 percent": b"a%2e",
    "R12 at": b"a@b",
    "R12 port": b"a:80",
    "R12 IPv6": b"[::1]",
    "R12 IPv4": b"127.0.0.1",
}


@pytest.mark.parametrize("value", BAD_LABELS.values(), ids=BAD_LABELS.keys())
async def test_an_id_that_is_no_label_is_refused(value: bytes) -> None:
    answer = await refusal(named("ID", value))
    assert (answer.status, answer.code) == (400, "invalid_sandbox_id")
    assert answer.json["detail"] == "Invalid sandbox ID format."


@pytest.mark.parametrize("value", BAD_LABELS.values(), ids=BAD_LABELS.keys())
async def test_a_namespace_that_is_no_label_is_refused(value: bytes) -> None:
    answer = await refusal(named("Namespace", value))
    assert (answer.status, answer.code) == (400, "invalid_namespace")
    assert answer.json["detail"] == "Invalid namespace format."


BAD_PORTS = [
    b"0", b"65536", b"99999999999999999999", b"+80", b"-1", b"8_0", b"080", b"0x50", b"80.0",
    b"1e2", "８０".encode(), "٨٠".encode(), b"8 0", b"80,81",
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_PORTS)
async def test_a_port_that_is_none_is_refused(value: bytes) -> None:
    answer = await refusal(named("Port", value))
    assert (answer.status, answer.code) == (400, "invalid_port")
    assert answer.json["detail"] == "Invalid port format."


@pytest.mark.parametrize("value", [b"", b"   ", b"\t"])
async def test_an_id_without_a_value_counts_as_missing(value: bytes) -> None:
    answer = await refusal(named("ID", value))
    assert (answer.status, answer.code) == (400, "sandbox_id_required")


@pytest.mark.parametrize("field", ["Namespace", "Port", "UID", "Pod-IP"])
async def test_a_routing_field_without_an_id_asks_for_one(field: str) -> None:
    raw = f"GET / HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-{field}: 1\r\n\r\n".encode()
    assert (await refusal(raw)).code == "sandbox_id_required"


AMBIGUOUS = {
    "R02 two ids": "X-Sandbox-ID: other\r\n",
    "R02 two equal ids": "X-Sandbox-ID: sb\r\n",
    "R04 two namespaces": "X-Sandbox-Namespace: a\r\nX-Sandbox-Namespace: a\r\n",
    "R04 two ports": "X-Sandbox-Port: 1\r\nX-Sandbox-Port: 2\r\n",
    "R04 two tokens": "X-Sandbox-Token: a\r\nX-Sandbox-Token: b\r\n",
    "two UIDs": "X-Sandbox-UID: a\r\nX-Sandbox-UID: b\r\n",
    "two time-outs": "X-Sandbox-Timeout: 1\r\nX-Sandbox-Timeout: 2\r\n",
    "M31 underscores": "X_Sandbox_ID: other\r\n",
    "M31 dots": "X.Sandbox.ID: other\r\n",
    "M31 mixed": "x-sandbox_namespace: other\r\n",
}


@pytest.mark.parametrize("more", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_routing_that_another_reader_could_take_otherwise_is_refused(more: str) -> None:
    assert (await refusal(request(more=more))).code == "ambiguous_routing"


async def test_an_alias_alone_is_ambiguous_too() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: localhost\r\nX_Sandbox_ID: sb\r\n\r\n"
    assert (await refusal(raw)).code == "ambiguous_routing"


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e3", "1_0", "abc", "", "\xb3", "0.0"])
async def test_a_timeout_that_is_no_number_of_seconds_is_refused(value: str) -> None:
    answer = await refusal(request(more=f"X-Sandbox-Timeout: {value}\r\n"))
    assert (answer.status, answer.code) == (400, "invalid_timeout")


async def test_a_request_that_loops_is_refused() -> None:
    answer = await refusal(request(more="Via: 1.1 sandgate\r\n" * 4))
    assert (answer.status, answer.code) == (502, "proxy_loop")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "a.b"])
async def test_a_foreign_host_is_refused_where_no_credential_is_asked(host: str) -> None:
    raw = f"GET / HTTP/1.1\r\nHost: {host}\r\nX-Sandbox-ID: sb\r\n\r\n".encode()
    answer = await refusal(raw)
    assert (answer.status, answer.code) == (403, "not_allowed_here")
    assert "Host" in answer.json["detail"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1"])
async def test_a_foreign_origin_is_refused_where_no_credential_is_asked(origin: str) -> None:
    assert (await refusal(request(more=f"Origin: {origin}\r\n"))).code == "not_allowed_here"


BAD_CREDENTIALS = [
    "",
    "Authorization: Bearer wrong\r\n",
    "Authorization: Bearer\r\n",
    "Authorization: secret\r\n",
    "Authorization: Basic secret\r\n",
    "Authorization: Bearer secret more\r\n",
    "Authorization: Bearer secret\r\nAuthorization: Bearer secret\r\n",
    "Authorization: Bearer s\xe9cret\r\n",
]


@pytest.mark.parametrize("more", BAD_CREDENTIALS)
@pytest.mark.parametrize("sandbox", ["sb", "unknown"])
async def test_a_wrong_token_gets_one_answer_for_all_sandboxes(more: str, sandbox: str) -> None:
    answer = await refusal(request(sandbox=sandbox, more=more), ROUTER_AUTH_TOKEN="secret")
    assert answer.status == 401
    assert answer.json["detail"] == "Missing or invalid credentials."
    assert "secret" not in repr(answer)


async def test_the_right_token_passes_and_ends_at_the_gateway() -> None:
    async with relaying(answer_ok, ROUTER_AUTH_TOKEN="secret") as (upstream, gateway, client):
        await client.send(request(more="Authorization: bearer  secret\r\n"))
        assert (await client.read_answer()).status == 200
        assert b"secret" not in upstream.received
        assert "secret" not in repr(gateway.gateway)


MALFORMED = {
    "M01 CL.TE": request(
        method="POST", more="Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        body=b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\nX-Sandbox-ID: sb\r\n\r\n",
    ),
    "M24 bare LF": b"GET / HTTP/1.1\nHost: localhost\nX-Sandbox-ID: sb\n\n",
    "M24 bare LF in a field": b"GET / HTTP/1.1\r\nHost: localhost\nX-Sandbox-ID: sb\r\n\r\n",
    "M25 CR only": b"GET / HTTP/1.1\rHost: localhost\r\r",
    "M25 CR in a value": request(more="X: a\rb\r\n"),
    "M40 HTTP/0.9": b"GET /\r\n\r\n",
    "M43 TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "M43 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "M44 two empty lines": b"\r\n\r\n" + request(),
    "M46 NUL": request("/\x00"),
}  # fmt: skip


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
@pytest.mark.parametrize("pieces", [1, 5])
async def test_a_malformed_head_is_refused_however_it_arrives(raw: bytes, pieces: int) -> None:
    assert (await refusal(raw, pieces=pieces)).status == 400


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n", 414),
        (b"GET /" + b"a" * 200_000, 414),
        (request("/?" + "a=1&" * 15_000), 414),
        (request(more="X: " + "a" * 60_000 + "\r\n"), 431),
        (request(more="X: 1\r\n" * 10_000), 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 1_000_000, 431),
        (request(method="CONNECT"), 400),
        (request(method="TRACE"), 405),
        (request(more="Expect: foo\r\n"), 417),
        (request(more="Transfer-Encoding: gzip, chunked\r\n"), 501),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
    ],
    ids=lambda value: repr(value)[:40],
)
@pytest.mark.parametrize("pieces", [1, 50])
async def test_each_limit_has_its_own_status(raw: bytes, status: int, pieces: int) -> None:
    answer = await refusal(raw, pieces=pieces)
    if raw.startswith(b"CONNECT"):
        assert answer.status in (400, 405)
    else:
        assert answer.status == status


async def test_connect_is_not_allowed_and_says_what_is() -> None:
    answer = await refusal(b"CONNECT a:443 HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: sb\r\n\r\n")
    assert answer.status == 405
    assert "OPTIONS" in (answer.one("Allow") or "")


async def test_a_head_split_at_every_byte_gives_the_same_answer() -> None:
    good = request("/x", more="X-Sandbox-Port: 8888\r\n")
    async with ScriptedUpstream(answer_ok).running() as upstream, running_gateway() as gateway:
        gateway.registry.add("sb", upstream.port)
        for split in range(1, len(good)):
            async with connect(gateway.port) as client:
                await client.send(good[:split])
                await asyncio.sleep(0.001)  # so that the halves come in reads of their own
                await client.send(good[split:])
                assert (await client.read_answer()).body == b"ok"
        assert len(set(upstream.heads)) == 1
        assert len(upstream.heads) == len(good) - 1


async def test_a_refusal_arrives_though_the_client_goes_on_sending() -> None:
    async with running_gateway() as gateway, connect(gateway.port) as client:
        raw = request(method="PUT", more="Content-Length: 50000\r\nX : 1\r\n")
        await client.send(raw + b"x" * 50_000)
        assert (await client.read_answer()).status == 400
        assert await client.read_rest() == b""


async def test_one_empty_line_before_a_request_is_forgiven() -> None:
    async with relaying(answer_ok) as (_upstream, _gateway, client):
        await client.send(b"\r\n" + request() + b"\r\n" + request())
        assert (await client.read_answer()).status == 200
        assert (await client.read_answer()).status == 200


@pytest.mark.parametrize(
    ("uid", "status"), [("u-1", 200), ("u-2", 421)], ids=["the same", "another"]
)
async def test_a_client_may_insist_on_one_generation(uid: str, status: int) -> None:
    async with (
        ScriptedUpstream(answer_ok).running() as upstream,
        running_gateway() as gateway,
        connect(gateway.port) as client,
    ):
        gateway.registry.add("sb", upstream.port, uid="u-1")
        await client.send(request(more=f"X-Sandbox-UID: {uid}\r\n"))
        answer = await client.read_answer()
        assert answer.status == status
        assert answer.code == (None if status == 200 else "sandbox_replaced")
        assert len(upstream.sides) == (status == 200)


BROKEN_CONTENT = {
    "M15 size": b"g\r\n",
    "M17 data end": b"2\r\nokXX",
    "M18 NUL": b"2;\x00\r\nok\r\n",
    "M22 spill": b"2\r\nabcd\r\n",
    "M23 trailer": b"2\r\nok\r\n0\r\nX-Sandbox-ID: other\r\n\r\n",
}


@pytest.mark.parametrize("body", BROKEN_CONTENT.values(), ids=BROKEN_CONTENT.keys())
async def test_broken_content_ends_both_connections_and_never_ends_cleanly(body: bytes) -> None:
    async with relaying(answer_ok) as (upstream, gateway, client):
        await client.send(request(method="POST", more="Transfer-Encoding: chunked\r\n"))
        side = await upstream.side()
        await client.send(b"1\r\na\r\n" + body)
        answer = await client.read_answer()
        assert (answer.status, answer.code) == (400, "bad_request")
        assert answer.json["reached"] == "unknown"
        assert answer.json["retry_safe"] is False
        assert await client.read_rest() == b""
        await asyncio.wait_for(side.ended.wait(), 10)
        assert not side.received.endswith(b"0\r\n\r\n")
        assert gateway.dials == 0
