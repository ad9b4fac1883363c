"""Request heads that no two readers may be left to understand differently, by row."""

from support.raw_client import request
from support.survive_probe import SMUGGLED

CHUNKED = "Transfer-Encoding: chunked\r\n"
LAST = b"0\r\n\r\n"


def head(line: str, *lines: str | bytes) -> bytes:
    """Return a head for `sb` with this request line and more field lines, without CRLF."""
    more = [part.encode("latin-1") if isinstance(part, str) else part for part in lines]
    first = line.encode("latin-1")
    return b"\r\n".join([first, b"Host: localhost", b"X-Sandbox-ID: sb", *more, b"", b""])


def post(*lines: str | bytes, body: bytes = b"") -> bytes:
    return head("POST / HTTP/1.1", *lines) + body


def get(*lines: str | bytes) -> bytes:
    return head("GET / HTTP/1.1", *lines)


def hosted(*hosts: str | bytes) -> bytes:
    """Return a request with these Host lines."""
    lines = [b"Host:" + (h.encode() if isinstance(h, str) else h) + b"\r\n" for h in hosts]
    return b"GET / HTTP/1.1\r\nX-Sandbox-ID: sb\r\n" + b"".join(lines) + b"\r\n"


def coding(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return post(b"Transfer-Encoding: " + raw, body=b"2\r\nok\r\n0\r\n\r\n" + SMUGGLED)


LENGTH_AND_CHUNKED = post("Content-Length: 4", "Transfer-Encoding: chunked", body=LAST + SMUGGLED)
CHUNKED_AND_LENGTH = post(
    "Transfer-Encoding: chunked", "Content-Length: 4", body=b"5c\r\n" + SMUGGLED + LAST
)

FRAMING = {
    "M01 CL.TE": LENGTH_AND_CHUNKED,
    "M01 CL.TE in other case": post(
        "content-LENGTH: 4", "tRANSFER-encoding: cHUNKED", body=LAST + SMUGGLED
    ),
    "M01 CL 0 and TE": post("Content-Length: 0", "Transfer-Encoding: chunked", body=LAST),
    "M02 TE.CL": CHUNKED_AND_LENGTH,
    "M03 different lengths": post("Content-Length: 3", "Content-Length: 1", body=b"abc"),
    "M04 equal lengths": post("Content-Length: 2", "Content-Length: 2", body=b"ok"),
    "M04 list of lengths": post("Content-Length: 2, 2", body=b"ok"),
    **{
        f"M05 length {value!r}": post(b"Content-Length: " + value, body=b"0123456789" + SMUGGLED)
        for value in (
            b"+2", b"-1", b"-0", b"0x2", b"1_0", b"1 0", b"2\x0b", b"2\x0c", b"2\xa0", b"\xb2",
            "２".encode(), b"010", b"002", b"00", b"2.0", b"2e1", b'"2"',
        )
    },
    "M06 empty length": post("Content-Length:", body=b"ok"),
    "M06 empty, then 2": post("Content-Length:", "Content-Length: 2", body=b"ok"),
    "M06 2, then empty": post("Content-Length: 2", "Content-Length: ", body=b"ok"),
    "M07 above 2^64": post("Content-Length: 18446744073709551617"),
    "M07 2^63": post("Content-Length: 9223372036854775808"),
    "M07 30 digits": post("Content-Length: " + "9" * 30),
    "M07 8000 digits": post("Content-Length: " + "9" * 8000),
    "M10 chunked, gzip": coding("chunked, gzip"),
    "M10 chunked, chunked": coding("chunked, chunked"),
    "M10 two lines": post(CHUNKED.strip(), CHUNKED.strip(), body=LAST),
    "M10 two lines, gzip last": post(CHUNKED.strip(), "Transfer-Encoding: gzip", body=LAST),
    "M10 two lines, gzip first": post("Transfer-Encoding: gzip", CHUNKED.strip(), body=LAST),
    "M11 leading comma": coding(",chunked"),
    "M11 trailing comma": coding("chunked,"),
    "M11 comma and space": coding("chunked , "),
    **{
        f"M12 coding {value!r}": coding(value)
        for value in (
            b"\x0bchunked", b"chunked\x0b", b"\x0cchunked", b"chun\x00ked", b"\x00chunked",
            b"\tchunked", b"chunked\t", b"\xa0chunked", b"chunked\xa0", b"\r\n chunked",
            b"chunked\r\n x", "chun\u212aed".encode(), b'"chunked"',
        )
    },
    **{
        f"M12 name {name!r}": post(name + b": chunked", body=LAST + SMUGGLED)
        for name in (
            "Tran\u017ffer-Encoding".encode(), b"Transfer_Encoding", b"Transfer.Encoding",
            b"Transfer Encoding", b"Transfer-Encoding\x00", b"\x0bTransfer-Encoding",
        )
    },
    "M12 length with underscore": post("Content_Length: 5", body=b"hello"),
    "M13 TE in HTTP/1.0": head("POST / HTTP/1.0", CHUNKED.strip()) + LAST,
    "M13 TE and keep-alive in HTTP/1.0": head(
        "POST / HTTP/1.0", "Connection: keep-alive", CHUNKED.strip()
    ) + LAST + SMUGGLED,
}  # fmt: skip
"""Framing in doubt: 400 `bad_request`."""

OTHER_CODINGS = {
    **{
        f"M08 coding {value!r}": coding(value)
        for value in ("xchunked", "identity", "gzip", "", "chunked;p=1", "chunked;q=0")
    },
    "M09 gzip, chunked": coding("gzip, chunked"),
    "M09 identity, chunked": coding("identity, chunked"),
}
"""Codings that we do not decode: 501 `not_implemented`."""

LINES = {
    "M24 bare LF everywhere": b"GET / HTTP/1.1\nHost: localhost\nX-Sandbox-ID: sb\n\n",
    "M24 bare LF after the request line": get().replace(b"1.1\r\n", b"1.1\n"),
    "M24 bare LF after a field": get("X: 1").replace(b"sb\r\n", b"sb\n"),
    "M24 bare LF in a value": get("X: a\nX-Sandbox-ID: other"),
    "M24 bare LF at the end": get()[:-2] + b"\n" + SMUGGLED,
    "M24 LF CR": get().replace(b"\r\n", b"\n\r"),
    "M25 CR in a value": get("X: a\rb"),
    "M25 CR at the end of a value": get("X: a\r"),
    "M25 CR in a name": get("X\rY: a"),
    "M25 CR in the request line": get().replace(b"GET /", b"GET /\r"),
    "M25 CR-only lines": b"GET / HTTP/1.1\rHost: localhost\rX-Sandbox-ID: sb\r\r",
    "M26 fold by space": get("X: 1\r\n 2"),
    "M26 fold by tab": get("X: 1\r\n\t2"),
    "M26 fold of the id": get().replace(b": sb", b":\r\n sb"),
    "M26 fold of Host": get().replace(b"Host: ", b"Host:\r\n\t"),
    "M26 fold of nothing": get("X: 1\r\n "),
    "M27 space before the first field": get().replace(b"Host", b" Host"),
    "M27 tab before the first field": get().replace(b"Host", b"\tHost"),
    "M27 space before the colon": get("X : 1"),
    "M27 tab before the colon": get("X\t: 1"),
    "M27 space before the colon of the length": post("Content-Length : 5", body=b"hello"),
    "M28 no colon": get("X"),
    "M28 empty name": get(": 1"),
    "M28 only a colon": get(":"),
    **{
        f"M28 name {name!r}": get(name + b": 1")
        for name in (
            b"X(", b"X)", b"X,", b"X/", b"X;", b"X<", b"X=", b"X?", b"X@", b"X[", b"X\\", b"X{",
            b'X"', b"X\x80", b"X\x85", b"X\xa0", b"X\tY", b"X Y", b"X\x00", b"X\x7f",
            "X\u017f".encode(),
        )
    },
    **{
        f"M29 value with {byte:#04x}": get(b"X: a" + bytes([byte]) + b"b")
        for byte in (*range(9), *range(0x0A, 0x20), 0x7F)
    },
    "M29 NUL at the end of a value": get(b"X: a\x00"),
    "M40 HTTP/0.9": b"GET /\r\n\r\n",
    "M40 HTTP/0.9 without an empty line": b"GET /\r\n",
    "M40 HTTP/0.9 with fields": b"GET /\r\nHost: localhost\r\nX-Sandbox-ID: sb\r\n\r\n",
    "M43 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "M43 TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "M43 SSH banner": b"SSH-2.0-OpenSSH_9.6\r\n",
    "M43 SMTP greeting": b"EHLO localhost\r\n",
    "M43 PROXY line": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + get(),
}  # fmt: skip
"""Lines that end or begin in doubt: 400 `bad_request`."""

REQUEST_LINES = {
    "M33 userinfo": ("GET http://u:p@localhost/x HTTP/1.1", 400),
    "M33 no authority": ("GET http:///x HTTP/1.1", 400),
    "M33 port above 65535": ("GET http://a:99999/x HTTP/1.1", 400),
    "M33 other scheme": ("GET ftp://a/x HTTP/1.1", 400),
    "M33 scheme without slashes": ("GET http:/x HTTP/1.1", 400),
    "M34 foo": ("GET foo HTTP/1.1", 400),
    "M34 @evil": ("GET @evil HTTP/1.1", 400),
    "M34 star": ("GET * HTTP/1.1", 400),
    "M34 star with more": ("OPTIONS */x HTTP/1.1", 400),
    "M34 authority": ("GET a:443 HTTP/1.1", 400),
    "M34 query alone": ("GET ?x HTTP/1.1", 400),
    "M35 CONNECT authority": ("CONNECT a:443 HTTP/1.1", 405),
    "M35 CONNECT path": ("CONNECT / HTTP/1.1", 405),
    "M36 TRACE": ("TRACE / HTTP/1.1", 405),
    "M39 33 letters": ("A" * 33 + " / HTTP/1.1", 400),
    "M39 8000 letters": ("A" * 8000 + " / HTTP/1.1", 400),
    "M39 at": ("G@T / HTTP/1.1", 400),
    "M39 equals": ("G=T / HTTP/1.1", 400),
    "M39 control": ("G\x01T / HTTP/1.1", 400),
    "M39 no method": (" / HTTP/1.1", 400),
    "M42 1.2": ("GET / HTTP/1.2", 505),
    "M42 2.0": ("GET / HTTP/2.0", 505),
    "M42 3.0": ("GET / HTTP/3.0", 505),
    "M42 0.9": ("GET / HTTP/0.9", 505),
    "M42 1.1x": ("GET / HTTP/1.1x", 400),
    "M42 01.1": ("GET / HTTP/01.1", 400),
    "M42 1.10": ("GET / HTTP/1.10", 400),
    "M42 lower case": ("GET / http/1.1", 400),
    "M42 no minor": ("GET / HTTP/1", 400),
    "M42 other protocol": ("GET / ICE/1.1", 400),
    "M44 two spaces first": ("GET  / HTTP/1.1", 400),
    "M44 two spaces last": ("GET /  HTTP/1.1", 400),
    "M44 tabs": ("GET\t/\tHTTP/1.1", 400),
    "M44 space in the target": ("GET /a b HTTP/1.1", 400),
    "M44 leading space": (" GET / HTTP/1.1", 400),
    "M44 trailing space": ("GET / HTTP/1.1 ", 400),
    "M44 vertical tab": ("GET\x0b/ HTTP/1.1", 400),
    "M44 two empty lines": ("\r\n\r\nGET / HTTP/1.1", 400),
    "M44 empty line by LF": ("\nGET / HTTP/1.1", 400),
    "M45 NUL": ("GET /\x00 HTTP/1.1", 400),
    "M45 latin-1": ("GET /\xe9 HTTP/1.1", 400),
    "M45 UTF-8": ("GET /\xc3\xa9 HTTP/1.1", 400),
    "M45 DEL": ("GET /\x7f HTTP/1.1", 400),
    "M45 fragment": ("GET /x#y HTTP/1.1", 400),
    "M45 fragment in absolute form": ("GET http://a/#y HTTP/1.1", 400),
}

CODES = {400: "bad_request", 405: "method_not_allowed", 505: "version_not_supported"}

HOSTS = {
    "M32 none": hosted(),
    "M32 two": hosted(" localhost", " other"),
    "M32 two equal": hosted(" localhost", " localhost"),
    **{
        f"M32 {value!r}": hosted(b" " + value)
        for value in (
            b"a, b", b"", b"u@a", b"a/b?c", b"a:99999", b"[::", b"[::1", b"a b", b"a:", b"a:b",
            b"\xe9", b"a%41", b"http://a", b"a#b", b"a\\b", b"a:80:80", b":80",
        )
    },
}  # fmt: skip
"""No host, or no telling which: 400 `bad_request`."""

ALIASES = {
    f"M31 {name}": request(more=f"{name}: other\r\n")
    for name in (
        "X_Sandbox_ID",
        "X.Sandbox.ID",
        "x_sandbox_id",
        "X-Sandbox_ID",
        "X-Sandbox.Namespace",
        "X_Sandbox_Port",
        "X_SANDBOX_TOKEN",
        "X-Sandbox-Id",
    )
}
"""A second spelling of a field that routes: 400 `ambiguous_routing`."""

NOMINATED = {
    "M54 Content-Length": post("Connection: Content-Length", "Content-Length: 2", body=b"ok"),
    "M54 Transfer-Encoding": post("Connection: transfer-encoding", CHUNKED.strip(), body=LAST),
    "M54 in a second line": post("Connection: close", "Connection: content-length"),
    "M54 no token": get("Connection: a b"),
}
"""Framing that this hop is told to forget: 400 `bad_request`."""
