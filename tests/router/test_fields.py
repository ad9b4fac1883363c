"""Which lines cross the gateway in each direction."""

import pytest

from sandgate_router.errors import ProxyLoop
from sandgate_router.fields import (
    Peer,
    build_interim_head,
    build_request_head,
    build_response_head,
    refuse_loop,
)
from sandgate_router.head import parse_request_head, parse_response_head

PEER = Peer(b"192.0.2.7")
TAIL = [
    b"X-Forwarded-For: 192.0.2.7",
    b"X-Forwarded-Host: gw",
    b"X-Forwarded-Proto: http",
    b"Via: 1.1 sandgate",
]


def sent(fields: bytes, *, peer: Peer = PEER, secret: bytes | None = None) -> list[bytes]:
    """Return the field lines that the sandbox gets for these, without its Host."""
    head = parse_request_head(b"POST /x HTTP/1.1\r\nHost: gw\r\n" + fields)
    raw = build_request_head(head, host=b"sb:1", peer=peer, expectations=b"", secret=secret)
    assert raw.startswith(b"POST /x HTTP/1.1\r\nHost: sb:1\r\n")
    assert raw.endswith(b"\r\n\r\n")
    assert raw.count(b"\r\n\r\n") == 1
    return raw[:-4].split(b"\r\n")[2:]


def test_order_case_white_space_and_repeats_are_kept() -> None:
    lines = [b"X-b:  2 ", b"x-A: 1", b"X-b: 3", b"Cookie: a=1", b"Accept:"]
    assert sent(b"".join(line + b"\r\n" for line in lines)) == [*lines, *TAIL]


STRIPPED = [
    b"Keep-Alive: 5",
    b"Proxy-Connection: keep-alive",
    b"Proxy-Authorization: Basic x",
    b"Proxy-Authenticate: x",
    b"TE: trailers, chunked",
    b"Trailer: X",
    b"Upgrade: h2c",
    b"HTTP2-Settings: x",
    b"X-Sandbox-ID: a",
    b"X-Sandbox-Namespace: a",
    b"X-Sandbox-Port: 1",
    b"X-Sandbox-UID: a",
    b"X-Sandbox-Pod-IP: 10.0.0.1",
    b"X-Sandbox-Timeout: 1",
    b"X-Sandbox-Token: a",
    b"X-Sandbox-Protocol: h2c",
    b"X-Sandbox-Expect-UID: a",
    b"x-sandbox-expect-Name: a",
    b"X-Sandbox-Expect-Other: a",
    b"Forwarded: for=1.2.3.4",
    b"X-Forwarded-For: 1.2.3.4",
    b"X-Forwarded-Host: evil",
    b"X-Forwarded-Proto: https",
    b"X-Real-IP: 1.2.3.4",
    b"X-Request-ID: " + b"a" * 4096,
    b"X-Request-ID: a%0d%0ab",
    b"Authorization: Bearer sg1.k.p.m",
    b"Authorization: bearer   sg1.k.p.m",
]


@pytest.mark.parametrize("line", STRIPPED)
def test_what_ends_at_the_gateway_never_reaches_the_sandbox(line: bytes) -> None:
    assert sent(b"X-Before: 1\r\n" + line + b"\r\nX-After: 2\r\n") == [
        b"X-Before: 1",
        b"X-After: 2",
        *TAIL,
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"Authorization: Bearer app-token",
        b"Authorization: Basic c2cxLg==",
        b"X-Request-ID: a.B_c-1",
        b"X-Sandbox-Other: kept",
        b"Expect: 100-continue",
        b"traceparent: 00-1-2-01",
    ],
)
def test_what_belongs_to_the_sandbox_passes(line: bytes) -> None:
    assert sent(line + b"\r\n") == [line, *TAIL]


def test_fields_that_connection_names_are_stripped_but_not_what_we_add() -> None:
    lines = b"Connection: close, X-Foo, X-Forwarded-For\r\nX-Foo: 1\r\nX-Bar: 2\r\n"
    assert sent(lines) == [b"X-Bar: 2", *TAIL]


def test_the_shared_token_ends_here_and_another_bearer_passes() -> None:
    line = b"Authorization: Bearer secret"
    assert sent(line + b"\r\n", secret=b"Bearer secret") == TAIL
    assert sent(line + b"\r\n", secret=b"Bearer other") == [line, *TAIL]
    twice = b"Authorization: Basic eDp5\r\n" + line + b"\r\n"
    assert sent(twice, secret=b"Bearer secret") == TAIL


def test_a_request_id_sent_twice_is_dropped() -> None:
    assert sent(b"X-Request-ID: a\r\nX-Request-ID: b\r\n") == TAIL


def test_a_trusted_proxy_is_believed_and_this_hop_appended() -> None:
    lines = (
        b"X-Forwarded-For: 203.0.113.1\r\nX-Forwarded-For: 203.0.113.2\r\n"
        b"X-Forwarded-Proto: https\r\nForwarded: for=x\r\nX-Real-IP: 203.0.113.1\r\n"
    )
    assert sent(lines, peer=Peer(b"10.0.0.1", trusted=True)) == [
        b"X-Forwarded-Proto: https",
        b"Forwarded: for=x",
        b"X-Real-IP: 203.0.113.1",
        b"X-Forwarded-For: 203.0.113.1, 203.0.113.2, 10.0.0.1",
        b"X-Forwarded-Host: gw",
        b"Via: 1.1 sandgate",
    ]


def test_content_is_framed_anew() -> None:
    assert sent(b"Content-Length: 3\r\n") == [*TAIL, b"Content-Length: 3"]
    assert sent(b"transfer-encoding: chunked\r\n") == [*TAIL, b"Transfer-Encoding: chunked"]


def test_expectations_stand_last_and_are_ours() -> None:
    head = parse_request_head(b"GET / HTTP/1.1\r\nHost: gw\r\nX-Sandbox-Expect-UID: evil\r\n")
    ours = b"X-Sandbox-Expect-UID: u\r\nX-Sandbox-Expect-Name: ns/id\r\n"
    raw = build_request_head(head, host=b"sb", peer=PEER, expectations=ours, secret=None)
    assert raw.endswith(b"Via: 1.1 sandgate\r\n" + ours + b"\r\n")
    assert b"evil" not in raw


@pytest.mark.parametrize(
    ("fields", "loops"),
    [
        (b"Via: 1.1 sandgate\r\n" * 3, False),
        (b"Via: 1.1 sandgate\r\n" * 4, True),
        (b"Via: 1.1 sandgate, 1.0 other, 1.1 sandgate\r\nVia: 1.1 sandgate,1.1 sandgate\r\n", True),
        (b"Via: 1.1 a, 1.1 b, 1.1 c, 1.1 d, 1.1 sandgates\r\n", False),
    ],
)
def test_a_request_that_passed_more_than_three_times_is_a_loop(fields: bytes, loops: bool) -> None:
    head = parse_request_head(b"GET / HTTP/1.1\r\nHost: gw\r\n" + fields)
    if loops:
        with pytest.raises(ProxyLoop):
            refuse_loop(head)
    else:
        refuse_loop(head)


def received(fields: bytes, *, framing: bytes = b"", connection: bytes = b"") -> list[bytes]:
    """Return the field lines that the client gets for these."""
    head = parse_response_head(b"HTTP/1.1 200 Fine\r\n" + fields)
    raw = build_response_head(head, framing=framing, date=lambda: b"now", connection=connection)
    assert raw.startswith(b"HTTP/1.1 200 Fine\r\n")
    return raw[:-4].split(b"\r\n")[1:]


def test_a_response_keeps_its_lines_and_gets_one_date() -> None:
    lines = [b"Set-Cookie: a=1; Expires=Mon, 01 Jan 2035", b"Set-Cookie: b=2", b"Server: x"]
    raw = b"".join(line + b"\r\n" for line in lines)
    assert received(raw) == [*lines, b"Date: now"]
    assert received(raw + b"date: then\r\n") == [*lines, b"date: then"]


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: X-Foo, close\r\nX-Foo: 1",
        b"Keep-Alive: timeout=5",
        b"Transfer-Encoding: chunked",
        b"Content-Length: 3",
        b"Trailer: X",
        b"Upgrade: x",
        b"X-Sandbox-Error: forged",
        b"Proxy-Status: forged",
        b"Proxy-Authenticate: x",
    ],
)
def test_what_is_the_gateways_alone_never_comes_from_a_sandbox(line: bytes) -> None:
    assert received(b"X-Before: 1\r\n" + line + b"\r\nX-After: 2\r\nDate: d\r\n") == [
        b"X-Before: 1",
        b"X-After: 2",
        b"Date: d",
    ]


def test_framing_and_connection_of_this_hop_stand_last() -> None:
    lines = received(b"", framing=b"Content-Length: 2\r\n", connection=b"Connection: close\r\n")
    assert lines == [b"Date: now", b"Content-Length: 2", b"Connection: close"]


def test_an_interim_head_has_no_framing_and_no_date() -> None:
    head = parse_response_head(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 3\r\n")
    assert build_interim_head(head) == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
