"""Odd requests: legal ones made by a strategy, and mutated ones made by chance."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

SMUGGLED = (
    b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: sb\r\nX-App-Marker: s\r\n\r\n"
)


@dataclass(frozen=True)
class Sent:
    """A legal request, what it says, and how it is cut."""

    raw: bytes
    method: bytes
    target: bytes
    body: bytes
    cut: int


_PIECES = st.sampled_from(
    ["/", "//", "a", "Z9", ".", "..", "%2e", "%2F", "%00", "%0d%0a", "%ff", "~", "!$&'()*+,;=",
     ":", "@", "%25", "-_", "evil:80", ";p=1"]
)  # fmt: skip
_TAME = st.sampled_from(["/", "a", "Z9", "~", "!$&'()*+,;=", ":", "@", "%41", "-_"])
_QUERIES = st.sampled_from(["", "?", "??", "?a=1&b", "?x=/../&;", "?q=%zz", "?http://a@b/"])
_NAMES = st.from_regex(r"X[!#$%&'*+^`|~0-9A-Za-z-]{0,8}", fullmatch=True).map(str.encode)
_VALUES = st.from_regex(
    rb"([\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]{0,12}[\x21-\x7e\x80-\xff])?)?", fullmatch=True
)
_SPACE = st.sampled_from([b"", b" ", b"\t", b" \t "])
_BODIES = st.one_of(
    st.binary(max_size=60), st.sampled_from([SMUGGLED, b"0\r\n\r\n" + SMUGGLED, b"\r\n\r\n"])
)
_EXTENSIONS = st.sampled_from([b"", b";a", b";a=b", b';a="b;c"', b";x=1;y"])


@st.composite
def odd_requests(draw: st.DrawFn, methods: Sequence[str], *, tame: bool = False) -> Sent:
    """Draw a request that every reader should understand, and few clients would send."""
    method = draw(st.sampled_from(methods)).encode()
    pieces = draw(st.lists(_TAME if tame else _PIECES, max_size=6))
    target = ("/" + "".join(pieces) + draw(_QUERIES)).encode()
    prefix = draw(st.sampled_from([b"", b"", b"", b"http://localhost", b"HTTPS://x:1"]))
    lines = [b"hOsT:" + draw(_SPACE) + b"localhost", b"X-Sandbox-ID:" + draw(_SPACE) + b"sb"]
    fields = draw(st.lists(st.tuples(_NAMES, _SPACE, _VALUES, _SPACE), max_size=5))
    lines += [name + b":" + before + value + after for name, before, value, after in fields]
    if draw(st.booleans()):
        lines.append(b"Connection: X-Named, keep-alive")
        lines.append(b"X-Named: 1")
    body, content, framing = draw(_framed())
    lines += framing
    lines = draw(st.permutations(lines))
    start = draw(st.sampled_from([b"", b"", b"\r\n"]))
    head = b"\r\n".join([start + method + b" " + prefix + target + b" HTTP/1.1", *lines])
    raw = head + b"\r\n\r\n" + content
    return Sent(raw, method, target, body, draw(st.integers(1, len(raw))))


@st.composite
def _framed(draw: st.DrawFn) -> tuple[bytes, bytes, list[bytes]]:
    """Draw a body, the bytes that carry it, and the lines that frame it."""
    kind = draw(st.sampled_from(["none", "length", "chunked"]))
    if kind == "none":
        return b"", b"", []
    body = draw(_BODIES)
    if kind == "length":
        return body, body, [b"content-LENGTH:" + draw(_SPACE) + b"%d" % len(body)]
    content, at = b"", 0
    while at < len(body):
        size = draw(st.integers(1, len(body) - at))
        line = draw(st.sampled_from([b"%x", b"%X", b"000%x"])) % size + draw(_EXTENSIONS)
        content += line + b"\r\n" + body[at : at + size] + b"\r\n"
        at += size
    last = draw(st.sampled_from([b"0", b"000", b"0;z"]))
    return body, content + last + b"\r\n\r\n", [b"Transfer-Encoding: chunkeD"]


# Requests that are wrong by chance.


def good_requests() -> list[bytes]:
    """Return requests from which wrong ones are bred; MARK stands where each names itself."""

    def one(line: str, *lines: str, body: bytes = b"") -> bytes:
        head = [line, "Host: localhost", "X-Sandbox-ID: sb", "X-App-Marker: MARK", *lines, "", ""]
        return "\r\n".join(head).encode("latin-1") + body

    chunked = "Transfer-Encoding: chunked"
    get, post = "GET / HTTP/1.1", "POST /a HTTP/1.1"
    length = f"Content-Length: {len(SMUGGLED)}"
    return [
        one(get),
        one("GET /x/../%2e?a=b;c HTTP/1.1", "X-Sandbox-Port: 8888", "X-Sandbox-Namespace: default"),
        one("GET http://localhost/x HTTP/1.1", "Connection: keep-alive, X-A", "X-A: 1"),
        one("GET / HTTP/1.0", "Connection: keep-alive"),
        one("HEAD /h HTTP/1.1", "Accept: */*"),
        one("OPTIONS * HTTP/1.1"),
        one("DELETE /d HTTP/1.1", "Content-Length: 2", body=b"hi"),
        one(post, "Content-Length: 5", body=b"hello"),
        one(post, length, body=SMUGGLED),
        one(post, chunked, body=b"5\r\nhello\r\n0\r\n\r\n"),
        one(
            post, chunked, body=b"2;a=b\r\nhi\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
        ),
        one(post, chunked, "Expect: 100-continue", body=b"1\r\nx\r\n00\r\n\r\n"),
        one(get, "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAM"),
        one(
            get,
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        one(get, "X: \xe9\x80", "Cookie: a=b", "X-Forwarded-For: 1.2.3.4", "TE: trailers"),
        one("PUT /t HTTP/1.1", "Content-Length: 0", "X-Sandbox-Timeout: 0.2"),
        one(get, "X-Sandbox-UID: u-1") + one("GET /2 HTTP/1.1"),
        one(post, "Content-Length: 3", body=b"abc") + one(get, "Connection: close") + SMUGGLED,
        b"\r\n" + one(get) + b"\r\n" + one(post, chunked, body=b"0\r\n\r\n"),
        one(get).replace(b"X-Sandbox-ID: sb\r\n", b"") + one(get),
    ]


_TOKENS = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b"\t", b":", b";", b",", b"0", b"\xff",
    b"0\r\n\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"chunked",
    b"\r\n ", b"Content-Length: 0\r\n", b"X-Sandbox-ID: sb\r\n", b"Connection: close\r\n",
    b"Transfer_Encoding: chunked\r\n", b"Host: localhost\r\n", b"HTTP/1.1", b"+", b"0x", b"_",
    b"Expect: 100-continue\r\n", b"Connection: Content-Length\r\n", b"\x85", b"#", SMUGGLED,
]  # fmt: skip


def mutated(choose: random.Random, good: Sequence[bytes], mark: bytes) -> bytes:
    """Return one request, or several, with up to four faults."""
    raw = choose.choice(good).replace(b"MARK", mark)
    for _ in range(choose.randint(1, 4)):
        raw = choose.choice(_MUTATIONS)(choose, raw, choose.choice(good).replace(b"MARK", mark))
    return raw[:16_384]


def _places(raw: bytes) -> list[int]:
    """Return where readers disagree most easily: line ends, colons, digits."""
    return [found.start() for found in re.finditer(rb"[\r\n:;, 0-9]", raw)] or [0]


def _at(choose: random.Random, raw: bytes) -> int:
    return choose.choice(_places(raw)) if choose.random() < 0.7 else choose.randint(0, len(raw))


def _flip(choose: random.Random, raw: bytes, _: bytes) -> bytes:
    at = _at(choose, raw)
    return (
        raw[:at]
        + bytes([(raw[at] if at < len(raw) else 0) ^ 1 << choose.randrange(8)])
        + raw[at + 1 :]
    )


def _insert(choose: random.Random, raw: bytes, _: bytes) -> bytes:
    at = _at(choose, raw)
    return raw[:at] + choose.choice(_TOKENS) + raw[at:]


def _replace(choose: random.Random, raw: bytes, _: bytes) -> bytes:
    at = _at(choose, raw)
    return raw[:at] + choose.choice(_TOKENS) + raw[at + choose.randint(1, 3) :]


def _delete(choose: random.Random, raw: bytes, _: bytes) -> bytes:
    at = _at(choose, raw)
    return raw[:at] + raw[at + choose.randint(1, 20) :]


def _duplicate(choose: random.Random, raw: bytes, _: bytes) -> bytes:
    first, last = sorted((_at(choose, raw), _at(choose, raw)))
    return raw[:last] + raw[first:last] + raw[last:]


def _duplicate_line(choose: random.Random, raw: bytes, _: bytes) -> bytes:
    lines = raw.split(b"\r\n")
    lines.insert(choose.randrange(len(lines)), choose.choice(lines))
    return b"\r\n".join(lines)


def _truncate(choose: random.Random, raw: bytes, _: bytes) -> bytes:
    return raw[: _at(choose, raw)]


def _splice(choose: random.Random, raw: bytes, other: bytes) -> bytes:
    return raw[: _at(choose, raw)] + other[_at(choose, other) :]


def _append(_: random.Random, raw: bytes, other: bytes) -> bytes:
    return raw + other


_MUTATIONS = (
    _flip, _insert, _insert, _replace, _delete, _duplicate, _duplicate_line, _truncate, _splice,
    _append,
)  # fmt: skip
