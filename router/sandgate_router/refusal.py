"""The gateway's own answers, as bytes (RFC 9112 section 4). Pure."""

from http import HTTPStatus

from sandgate_router.errors import GatewayError, MethodNotAllowed

ALLOW = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
"""What Allow names; the relay passes every other method but CONNECT and TRACE, too."""


def build_refusal(error: GatewayError, method: bytes, *, keep_alive: bool, date: bytes) -> bytes:
    """Return the answer in place of a sandbox's; one to HEAD has no content."""
    body = error.body(method)
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in error.fields()]
    if isinstance(error, MethodNotAllowed) and not error.extra_fields:
        lines.append(f"allow: {ALLOW}")
    lines.append(f"content-length: {len(body)}")
    if not keep_alive:
        lines.append("connection: close")
    text = "\r\n".join(lines).encode("ascii")
    return b"%b\r\ndate: %b\r\n\r\n%b" % (text, date, b"" if method == b"HEAD" else body)


def build_options_answer(*, keep_alive: bool, date: bytes) -> bytes:
    """Return the answer to `OPTIONS *`, which asks about the gateway (RFC 9110 9.3.7)."""
    return b"HTTP/1.1 204 No Content\r\nAllow: %b\r\nDate: %b\r\n%b\r\n" % (
        ALLOW.encode(),
        date,
        b"" if keep_alive else b"Connection: close\r\n",
    )
