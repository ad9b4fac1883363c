"""The grammar of heads, without a socket: what passes, what is refused, and with which status."""

import contextlib

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate_router.errors import BadUpstreamResponse, GatewayError
from sandgate_router.head import (
    MAX_FIELDS,
    MAX_REQUEST_LINE_BYTES,
    RequestHead,
    is_hopeless,
    parse_request_head,
    parse_response_head,
    refuse_hopeless,
)

HOST = b"Host: a\r\n"


def refused(raw: bytes) -> int:
    with pytest.raises(GatewayError) as caught:
        parse_request_head(raw)
    return caught.value.status


REFUSED_LINES = {
    "M34 no slash": (b"GET foo HTTP/1.1", 400),
    "M34 userinfo": (b"GET @evil HTTP/1.1", 400),
    "M34 star with GET": (b"GET * HTTP/1.1", 400),
    "M34 authority": (b"GET a:443 HTTP/1.1", 400),
    "M33 absolute with userinfo": (b"GET http://u@evil/x HTTP/1.1", 400),
    "M33 absolute without host": (b"GET http:///x HTTP/1.1", 400),
    "M33 other scheme": (b"GET ftp://evil/x HTTP/1.1", 400),
    "M35 CONNECT": (b"CONNECT a:443 HTTP/1.1", 405),
    "M36 TRACE": (b"TRACE / HTTP/1.1", 405),
    "M39 long method": (b"A" * 33 + b" / HTTP/1.1", 400),
    "M39 method with @": (b"G@T / HTTP/1.1", 400),
    "M39 method with =": (b"G=T / HTTP/1.1", 400),
    "M40 HTTP/0.9": (b"GET /", 400),
    "M42 HTTP/1.2": (b"GET / HTTP/1.2", 505),
    "M42 HTTP/2.0": (b"GET / HTTP/2.0", 505),
    "M42 HTTP/3.0": (b"GET / HTTP/3.0", 505),
    "M42 trailing letter": (b"GET / HTTP/1.1x", 400),
    "M42 leading zero": (b"GET / HTTP/01.1", 400),
    "M42 lower case": (b"GET / http/1.1", 400),
    "M43 preface": (b"PRI * HTTP/2.0", 400),
    "M44 two spaces": (b"GET  / HTTP/1.1", 400),
    "M44 tab": (b"GET\t/ HTTP/1.1", 400),
    "M44 leading space": (b" GET / HTTP/1.1", 400),
    "M44 space in target": (b"GET /a b HTTP/1.1", 400),
    "M44 trailing space": (b"GET / HTTP/1.1 ", 400),
    "M45 NUL in target": (b"GET /\x00 HTTP/1.1", 400),
    "M45 raw non-ASCII": (b"GET /\xe9 HTTP/1.1", 400),
    "M45 fragment": (b"GET /#a HTTP/1.1", 400),
}


@pytest.mark.parametrize(("line", "status"), REFUSED_LINES.values(), ids=REFUSED_LINES.keys())
def test_a_request_line_that_readers_could_take_differently_is_refused(
    line: bytes, status: int
) -> None:
    assert refused(line + b"\r\n" + HOST) == status


KEPT_TARGETS = [
    b"//evil/x",
    b"/a%2Fb",
    b"/a%252Fb",
    b"//x//y",
    b"/a/../b",
    b"/a/%2e%2e/b",
    b"/;p=1",
    b"/%ff",
    b"/%00",
    b"/?",
    b"/q?x=a|b%26c",
    b'/"<>{}|^`\\',
    b"/q?" + b"a=1&" * 1800,
]


@pytest.mark.parametrize("target", KEPT_TARGETS)
def test_an_origin_form_target_is_kept_byte_for_byte(target: bytes) -> None:
    assert parse_request_head(b"GET " + target + b" HTTP/1.1\r\n" + HOST).target == target


@pytest.mark.parametrize(
    ("line", "target"),
    [
        (b"GET http://evil/x?y HTTP/1.1", b"/x?y"),
        (b"GET HTTPS://evil:443 HTTP/1.1", b"/"),
        (b"GET http://evil?y HTTP/1.1", b"/?y"),
        (b"OPTIONS http://evil HTTP/1.1", b"*"),
        (b"OPTIONS * HTTP/1.1", b"*"),
    ],
)
def test_absolute_form_is_taken_as_origin_form_and_its_authority_ignored(
    line: bytes, target: bytes
) -> None:
    assert parse_request_head(line + b"\r\n" + HOST).target == target


REFUSED_FIELDS = {
    "M01 length and chunked": (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", 400),
    "M02 chunked and length": (b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", 400),
    "M03 two lengths": (b"Content-Length: 3\r\nContent-Length: 1\r\n", 400),
    "M04 two equal lengths": (b"Content-Length: 2\r\nContent-Length: 2\r\n", 400),
    "M04 list of lengths": (b"Content-Length: 2, 2\r\n", 400),
    **{
        f"M05 length {value!r}": (b"Content-Length: " + value + b"\r\n", 400)
        for value in (
            b"+2", b"-1", b"-0", b"0x2", b"1_0", b"1 0", b"2\xa0", b"\xb2", b"010",
            b"002",
        )
    },
    "M06 empty length": (b"Content-Length:\r\n", 400),
    "M06 empty, then 2": (b"Content-Length:\r\nContent-Length: 2\r\n", 400),
    "M07 above 2^64": (b"Content-Length: 18446744073709551617\r\n", 400),
    "M07 many digits": (b"Content-Length: " + b"9" * 8000 + b"\r\n", 400),
    **{
        f"M08 coding {value!r}": (b"Transfer-Encoding: " + value + b"\r\n", 501)
        for value in (b"xchunked", b"identity", b"gzip", b"", b"chunked;p=1")
    },
    "M09 gzip, chunked": (b"Transfer-Encoding: gzip, chunked\r\n", 501),
    "M10 chunked, gzip": (b"Transfer-Encoding: chunked, gzip\r\n", 400),
    "M10 chunked, chunked": (b"Transfer-Encoding: chunked, chunked\r\n", 400),
    "M10 two lines": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
    "M11 leading comma": (b"Transfer-Encoding: ,chunked\r\n", 400),
    "M11 trailing comma": (b"Transfer-Encoding: chunked,\r\n", 400),
    **{
        f"M12 coding {value!r}": (b"Transfer-Encoding: " + value + b"\r\n", 400)
        for value in (
            b"\x0bchunked", b"chunked\x0c", b"chun\x00ked", b"\tchunked", b"\xa0chunked",
            "Tran\u017ffer".encode(), b"chunked\r\n x",
        )
    },
    "M12 underscore": (b"Transfer_Encoding: chunked\r\n", 400),
    "M12 dot in length": (b"Content.Length: 4\r\n", 400),
    "M12 space in name": (b"Transfer Encoding: chunked\r\n", 400),
    "M26 obs-fold": (b"X: 1\r\n 2\r\n", 400),
    "M27 space before colon": (b"X : 1\r\n", 400),
    "M27 tab before colon": (b"X\t: 1\r\n", 400),
    "M27 space before the first": (b" X: 1\r\n", 400),
    "M28 no colon": (b"X\r\n", 400),
    "M28 empty name": (b": 1\r\n", 400),
    **{
        f"M28 name {name!r}": (name + b": 1\r\n", 400)
        for name in (b"X(", b"X\x80", b"X\x85", b"X\xa0", b"X\tY", b'X"')
    },
    **{
        f"M29 value with {byte:#04x}": (b"X: a" + bytes([byte]) + b"b\r\n", 400)
        for byte in (*range(9), *range(0x0B, 0x20), 0x7F)
    },
    "M32 two hosts": (b"Host: b\r\n", 400),
    "M54 length nominated": (b"Connection: Content-Length\r\nContent-Length: 1\r\n", 400),
    "M54 coding nominated": (b"Connection: Transfer-Encoding\r\n", 400),
    "Connection option no token": (b"Connection: a b\r\n", 400),
    "M58 unknown expectation": (b"Expect: foo\r\n", 417),
    "too many fields": (b"X: 1\r\n" * MAX_FIELDS, 431),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "status"), REFUSED_FIELDS.values(), ids=REFUSED_FIELDS.keys())
def test_fields_that_readers_could_take_differently_are_refused(fields: bytes, status: int) -> None:
    assert refused(b"POST / HTTP/1.1\r\n" + HOST + fields) == status


@pytest.mark.parametrize(
    "host",
    [b"a, b", b"", b"u@a", b"a/b?c", b"a:99999", b"[::", b"a b", b"a:", b"a:b", b"\xe9", b"a%41"],
)
def test_a_host_that_is_no_authority_is_refused(host: bytes) -> None:
    assert refused(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n") == 400


@pytest.mark.parametrize("host", [b"a", b"a.b-c:8080", b"127.0.0.1", b"[::1]:80", b"my_host"])
def test_a_host_with_a_name_or_address_and_a_port_passes(host: bytes) -> None:
    head = parse_request_head(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n")
    assert head.values[b"host"] == host


def test_http_1_1_needs_a_host_and_http_1_0_does_not() -> None:
    assert refused(b"GET / HTTP/1.1\r\n") == 400
    assert parse_request_head(b"GET / HTTP/1.0\r\n").values == {}


def test_chunked_in_http_1_0_is_refused() -> None:
    assert refused(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n") == 400


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.1", b"Connection: keep-alive\r\nConnection: Close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: keep-alive\r\n", False),
    ],
)
def test_all_connection_fields_together_decide_whether_it_is_kept(
    version: bytes, connection: bytes, kept: bool
) -> None:
    raw = b"GET / HTTP/" + version + b"\r\n" + HOST + connection
    assert parse_request_head(raw).keep_alive is kept


def test_a_value_with_bytes_above_ascii_is_kept_as_it_came() -> None:
    head = parse_request_head(b"GET / HTTP/1.1\r\n" + HOST + b"X: \xe9\x85a\xa0\r\n")
    assert (head.fields[-1], head.lines[-1]) == (
        (b"x", b"\xe9\x85a\xa0"),
        b"X: \xe9\x85a\xa0",
    )


def test_names_are_lowered_values_trimmed_and_lines_kept() -> None:
    head = parse_request_head(b"GET / HTTP/1.1\r\n" + HOST + b"X-A:\t 1 \r\nX-a: 2\r\nX_B: 3\r\n")
    assert head.fields[1:] == [(b"x-a", b"1"), (b"x-a", b"2"), (b"x_b", b"3")]
    assert head.lines[1:] == [b"X-A:\t 1 ", b"X-a: 2", b"X_B: 3"]
    assert (head.values[b"x-a"], head.repeated, head.aliases) == (b"1", {b"x-a"}, {b"x-b"})


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\rX", b"\x16\x03\x01", b"GET /\x00", b"a\r\r"],
)
def test_what_can_never_become_a_head_is_seen_before_its_end(data: bytes) -> None:
    assert is_hopeless(data, 0)


def test_a_head_is_never_hopeless_at_a_byte_boundary() -> None:
    raw = b"POST /x HTTP/1.1\r\nHost: a\r\nX: \xe9\t\r\nContent-Length: 2\r\n\r\n"
    for end in range(1, len(raw)):
        assert not is_hopeless(raw[:end], end - 1)


def test_an_endless_request_line_and_an_endless_head_are_refused_by_size() -> None:
    with pytest.raises(GatewayError) as caught:
        refuse_hopeless(b"GET /" + b"a" * MAX_REQUEST_LINE_BYTES, 0)
    assert caught.value.status == 414
    with pytest.raises(GatewayError) as caught:
        refuse_hopeless(b"GET / HTTP/1.1\r\nX: " + b"a" * 33000, 0)
    assert caught.value.status == 431
    assert refused(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST) == 414
    assert refused(b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 33000 + b"\r\n") == 431


_tokens = st.from_regex(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,12}", fullmatch=True)
_targets = st.from_regex(rb"/[\x21\x22\x24-\x7e]{0,30}", fullmatch=True)
_values = st.from_regex(
    rb"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]{0,20}[\x21-\x7e])?", fullmatch=True
)


@given(target=_targets, fields=st.lists(st.tuples(_tokens, _values), max_size=12))
def test_what_we_accept_a_stock_parser_reads_alike(
    target: bytes, fields: list[tuple[bytes, bytes]]
) -> None:
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
    raw = b"PUT " + target + b" HTTP/1.1\r\n" + HOST + lines
    try:
        ours = parse_request_head(raw)
    except GatewayError:
        return
    seen = _read_by_httptools(raw + b"\r\n")
    assert seen == (ours.method, ours.target, ours.fields)


def _read_by_httptools(raw: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
    class Seen:
        target = b""

        def __init__(self) -> None:
            self.fields: list[tuple[bytes, bytes]] = []

        def on_url(self, url: bytes) -> None:
            self.target += url

        def on_header(self, name: bytes, value: bytes) -> None:
            self.fields.append((name.lower(), value.strip(b" \t")))

    seen = Seen()
    parser = httptools.HttpRequestParser(seen)
    with contextlib.suppress(httptools.HttpParserUpgrade):
        parser.feed_data(raw)
    return parser.get_method(), seen.target, seen.fields


REFUSED_RESPONSES = {
    "U13 status 99": b"HTTP/1.1 99 X\r\n",
    "U13 status 1000": b"HTTP/1.1 1000 X\r\n",
    "U13 status +200": b"HTTP/1.1 +200 X\r\n",
    "U13 HTTP/3.0": b"HTTP/3.0 200 OK\r\n",
    "U13 HTTP/1.2": b"HTTP/1.2 200 OK\r\n",
    "U13 bare LF": b"HTTP/1.1 200 OK\nX: 1\r\n",
    "U13 obs-fold": b"HTTP/1.1 200 OK\r\nX: 1\r\n 2\r\n",
    "U13 control byte": b"HTTP/1.1 200 OK\r\nX: \x01\r\n",
    "U13 space before colon": b"HTTP/1.1 200 OK\r\nX : 1\r\n",
    "U13 control byte in reason": b"HTTP/1.1 200 O\x1bK\r\n",
    "U14 length +2": b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n",
    "U14 two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n",
    "U14 gzip, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n",
    "U14 chunked in 1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n",
    "U12 too many fields": b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 501,
}


@pytest.mark.parametrize("raw", REFUSED_RESPONSES.values(), ids=REFUSED_RESPONSES.keys())
def test_a_response_that_readers_could_take_differently_is_refused(raw: bytes) -> None:
    with pytest.raises(BadUpstreamResponse):
        parse_response_head(raw)


def test_a_response_without_a_reason_is_fine() -> None:
    assert parse_response_head(b"HTTP/1.1 200\r\n").reason == b""
    assert parse_response_head(b"HTTP/1.1 200 \r\n").reason == b""


def test_chunked_overrides_a_length_and_the_peer_is_not_trusted_again() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n"
    head = parse_response_head(raw)
    assert (head.chunked, head.length, head.keep_alive) == (True, None, False)


def test_has_content_tells_by_framing() -> None:
    def head(fields: bytes) -> RequestHead:
        return parse_request_head(b"POST / HTTP/1.1\r\n" + HOST + fields)

    assert not head(b"").has_content
    assert not head(b"Content-Length: 0\r\n").has_content
    assert head(b"Content-Length: 1\r\n").has_content
    assert head(b"Transfer-Encoding: Chunked\r\n").has_content
