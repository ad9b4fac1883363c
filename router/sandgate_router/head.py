"""Heads of HTTP/1.1 messages: bytes in, checked lines out, or a refusal (RFC 9112 sections 2-6).

Pure. Nothing is repaired: where two readers could understand a head differently, it is
refused, also where the RFC would let a server guess. Stock parsers were measured to take
HTTP/0.9, two Host fields, heads of a megabyte and `GET @evil`, so this grammar is our own.

A field keeps the line it came in. Most lines cross the gateway, and they cross as received.
"""

import functools
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sandgate_router.errors import (
    BadRequest,
    BadUpstreamResponse,
    ExpectationFailed,
    GatewayError,
    HeadTooLarge,
    MethodNotAllowed,
    NotImplementedHere,
    UriTooLong,
    VersionNotSupported,
)
from sandgate_router.field_lines import (
    BadFieldLine,
    Field,
    index_fields,
    read_fields,
)

MAX_HEAD_BYTES = 32 * 1024
"""Largest request head we read. nginx allows 4 x 8 KiB; agents send long bearer tokens."""

MAX_REQUEST_LINE_BYTES = 8 * 1024
"""Longest request line. RFC 9112 section 3 asks for 8000 at least; nginx allows 8 KiB."""

MAX_FIELDS = 100
"""Most fields in a request head. Apache allows 100; a browser sends 20."""

MAX_RESPONSE_HEAD_BYTES = 64 * 1024
"""Largest response head we read. Applications set many cookies; Envoy allows 60 KiB."""

MAX_RESPONSE_FIELDS = 500
"""Most fields in a response head. Envoy allows 100; each costs us one small tuple."""

MAX_LENGTH_DIGITS = 18
"""Content-Length stays below 2^63, so no reader behind us overflows."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_TEXT = rb"[\t\x20-\x7e\x80-\xff]"
# RFC 9112 section 3. The method's length is ours: no registered one is longer than 17.
_METHOD = re.compile(_TOKEN + rb"{1,32}")
# Visible ASCII without '#': a fragment is never sent (RFC 9110 section 7.1).
_REQUEST_TARGET = re.compile(rb"[\x21\x22\x24-\x7e]++")
_REQUEST_LINE = re.compile(
    rb"(%b) (%b) HTTP/1\.([01])" % (_METHOD.pattern, _REQUEST_TARGET.pattern)
)
_OTHER_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]")
_ABSOLUTE_FORM = re.compile(rb"(?i:https?)://([^/?]*)(.*)")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: (" + _TEXT + rb"*+))?")
# RFC 9110 section 7.2, without user information and without percent-encoding.
_AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_CODING = re.compile(_TOKEN + rb"++(?:;.*)?")
_NAME = re.compile(_TOKEN + rb"++")
# What can never become a head, seen before the head is complete.
_NEVER = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r[^\n]")

_MAX_REMEMBERED = 300
"""Longest value whose reading is remembered, longer than any of these is in earnest; and with
an authority (a name of 253, a port) and a length every longer one is wrong."""

_RESERVED = b"x-sandbox-expect-"
_FRAMING_ALIASES = frozenset({b"transfer-encoding", b"content-length", b"host"})


_NOTHING: AbstractSet[bytes] = frozenset()


@dataclass(slots=True)
class RequestHead:
    """A request's head, its framing decided."""

    method: bytes
    target: bytes
    """Request target in origin form, or `*`."""
    http_1_1: bool
    fields: list[Field]
    lines: list[bytes]
    """The fields' lines, as received and without CRLF."""
    values: dict[bytes, bytes]
    """First value of each field, by lower-case name."""
    repeated: AbstractSet[bytes]
    """Lower-case names that came more than once."""
    aliases: AbstractSet[bytes]
    """Names with `_` or `.`, which readers behind us may fold into `-`; here spelled with it."""
    reserved: AbstractSet[bytes]
    """Names that begin with `x-sandbox-expect-`: only the gateway may send them."""
    connection: AbstractSet[bytes]
    """Lower-case options of all Connection fields together (RFC 9110 section 7.6.1)."""
    length: int | None
    """Content-Length; None without one."""
    chunked: bool
    keep_alive: bool
    has_content: bool
    """Whether content follows the head."""


@dataclass(slots=True)
class ResponseHead:
    """A response's head."""

    status: int
    reason: bytes
    fields: list[Field]
    lines: list[bytes]
    values: dict[bytes, bytes]
    connection: AbstractSet[bytes]
    length: int | None
    chunked: bool
    keep_alive: bool
    """Whether the sandbox will keep the connection open after this response."""


def refuse_hopeless(data: bytes | bytearray, seen: int, *, start: int = 0) -> None:
    """Raise when no continuation of an incomplete request head could be valid.

    It refuses what `parse_request_head` would, as early as it can be known: whoever speaks
    another protocol, or HTTP/0.9, sends one line and waits for an answer.

    Args:
        seen: how many bytes an earlier call has seen.
        start: where the head begins, behind an empty line that is forgiven.

    Raises:
        GatewayError: the refusal that the client is to get.
    """
    latest = start + MAX_REQUEST_LINE_BYTES
    end = data.find(b"\r\n", start, latest + 2)
    if end >= 0 and end + 2 > seen:
        line = bytes(data[start:end])
        _parse_request_line(line, len(line))
    if is_hopeless(data, seen):
        raise BadRequest
    if end < 0 and len(data) > latest + 1:
        raise UriTooLong
    # One more byte than the limit may be the CR of the empty line, which does not count.
    if len(data) - start > MAX_HEAD_BYTES + 1:
        raise HeadTooLarge


def is_hopeless(data: bytes | bytearray, start: int) -> bool:
    """Tell whether an incomplete head holds bytes that no head may hold.

    Args:
        start: how many bytes an earlier call has seen.
    """
    return _NEVER.search(data, max(start - 1, 0)) is not None


def parse_request_head(raw: bytes) -> RequestHead:
    """Return the head in `raw`, which ends before the empty line and holds its last CRLF.

    Raises:
        GatewayError: the refusal that the client is to get.
    """
    end = raw.find(b"\r\n")
    if end > MAX_REQUEST_LINE_BYTES:
        raise UriTooLong
    method, target, http_1_1 = _parse_request_line(raw, end)
    if len(raw) > MAX_HEAD_BYTES:
        raise HeadTooLarge
    lines = raw[end + 2 : -2].split(b"\r\n") if len(raw) > end + 2 else []
    if len(lines) > MAX_FIELDS:
        raise HeadTooLarge
    try:
        fields = read_fields(lines)
    except BadFieldLine:
        raise BadRequest from None
    values, repeated = index_fields(fields)
    aliases = reserved = _NOTHING
    names = b"\n".join(values)
    # `in` would first try its left side as a number, at 0.2 µs for the error.
    if names.find(b"_") >= 0 or names.find(b".") >= 0:
        aliases = _find_aliases(values)
        if not _FRAMING_ALIASES.isdisjoint(aliases):
            raise BadRequest
    if names.find(_RESERVED) >= 0:
        reserved = frozenset(name for name in values if name.startswith(_RESERVED))
    if b"host" not in values:
        if http_1_1:
            raise BadRequest
    elif b"host" in repeated or not _is_authority(values[b"host"]):
        raise BadRequest
    connection = _NOTHING
    if b"connection" in values:
        connection = _connection_options(values, repeated, fields, BadRequest)
        if not _FRAMING_ALIASES.isdisjoint(connection - {b"host"}):
            raise BadRequest
    length = None
    if b"content-length" in values:
        length = _parse_length(values[b"content-length"][:_MAX_REMEMBERED])
        if length is None or b"content-length" in repeated:
            raise BadRequest
    chunked = b"transfer-encoding" in values
    head = RequestHead(
        method,
        target,
        http_1_1,
        fields,
        lines,
        values,
        repeated,
        aliases,
        reserved,
        connection,
        length,
        chunked,
        # An HTTP/1.0 client is answered and closed: it may read a chunked answer wrongly.
        http_1_1 and b"close" not in connection,
        chunked or bool(length),
    )
    if chunked:
        _check_chunked(head)
    if b"expect" in values:
        _check_expect(head)
    return head


def parse_response_head(raw: bytes) -> ResponseHead:
    """Return the head in `raw`, which ends before the empty line and holds its last CRLF.

    Raises:
        BadUpstreamResponse: it is no response, or its framing is ambiguous.
    """
    end = raw.find(b"\r\n")
    parse = _parse_status_line if end <= _MAX_REMEMBERED else _parse_status_line.__wrapped__
    http_1_1, status, reason = parse(raw[:end])
    lines = raw[end + 2 : -2].split(b"\r\n") if len(raw) > end + 2 else []
    if len(lines) > MAX_RESPONSE_FIELDS:
        raise BadUpstreamResponse
    try:
        fields = read_fields(lines)
    except BadFieldLine:
        raise BadUpstreamResponse from None
    values, repeated = index_fields(fields)
    keep_alive, connection = http_1_1, _NOTHING
    if b"connection" in values:
        connection = _connection_options(values, repeated, fields, BadUpstreamResponse)
        keep_alive = b"close" not in connection and (http_1_1 or b"keep-alive" in connection)
    chunked = b"transfer-encoding" in values
    if chunked and (
        not http_1_1
        or b"transfer-encoding" in repeated
        or values[b"transfer-encoding"].lower() != b"chunked"
    ):
        raise BadUpstreamResponse
    length = None
    if b"content-length" in values:
        length = _parse_length(values[b"content-length"][:_MAX_REMEMBERED])
        if length is None or b"content-length" in repeated:
            raise BadUpstreamResponse
        if chunked:
            # RFC 9112 section 6.3: Transfer-Encoding overrides; such a peer is not trusted again.
            length, keep_alive = None, False
    return ResponseHead(
        status, reason, fields, lines, values, connection, length, chunked, keep_alive
    )


@functools.lru_cache(maxsize=256)
def _parse_status_line(line: bytes) -> tuple[bool, int, bytes]:
    """Return whether it speaks HTTP/1.1, status and reason; raise BadUpstreamResponse."""
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise BadUpstreamResponse
    minor, status, reason = match.groups()
    return minor == b"1", int(status), reason or b""


def _find_aliases(values: dict[bytes, bytes]) -> AbstractSet[bytes]:
    """Return the names with `_` or `.`, spelled with `-`: readers behind us may fold them."""
    return {
        name.replace(b"_", b"-").replace(b".", b"-")
        for name in values
        if b"_" in name or b"." in name
    }


def _parse_request_line(raw: bytes, end: int) -> tuple[bytes, bytes, bool]:
    match = _REQUEST_LINE.fullmatch(raw, 0, end)
    if match is None:
        raise _about_request_line(raw[:end])
    method, target, minor = match.groups()
    if method in (b"CONNECT", b"TRACE"):
        raise MethodNotAllowed
    if target[0] != 0x2F:  # "/"
        target = _parse_other_form(method, target)
    return method, target, minor == b"1"


def _about_request_line(line: bytes) -> GatewayError:
    """Return why a request line is refused."""
    start, _, version = line.rpartition(b" ")
    method, _, target = start.partition(b" ")
    if (
        _METHOD.fullmatch(method)
        and _REQUEST_TARGET.fullmatch(target)
        and _OTHER_VERSION.fullmatch(version)
        and method != b"PRI"
    ):
        return VersionNotSupported()
    return BadRequest()


def _parse_other_form(method: bytes, target: bytes) -> bytes:
    """Return absolute form as origin form; the sandbox is named by fields, never by it."""
    if target == b"*":
        if method == b"OPTIONS":
            return target
        raise BadRequest
    absolute = _ABSOLUTE_FORM.fullmatch(target)
    if absolute is None or not _is_authority(absolute[1]):
        raise BadRequest
    rest = absolute[2]
    if not rest:
        return b"*" if method == b"OPTIONS" else b"/"
    return rest if rest.startswith(b"/") else b"/" + rest


def _is_authority(value: bytes) -> bool:
    return len(value) <= _MAX_REMEMBERED and _matches_authority(value)


@functools.lru_cache(maxsize=256)
def _matches_authority(value: bytes) -> bool:
    match = _AUTHORITY.fullmatch(value)
    return match is not None and int(match[1] or 0) <= 65535


def _connection_options(
    values: dict[bytes, bytes],
    repeated: AbstractSet[bytes],
    fields: list[Field],
    error: type[GatewayError],
) -> AbstractSet[bytes]:
    value = values[b"connection"]
    if b"connection" in repeated:
        value = b",".join(value for name, value in fields if name == b"connection")
    parse = _parse_options if len(value) <= _MAX_REMEMBERED else _parse_options.__wrapped__
    options = parse(value)
    if options is None:
        raise error
    return options


@functools.lru_cache(maxsize=64)
def _parse_options(value: bytes) -> AbstractSet[bytes] | None:
    """Return lower-case connection options; None where one is no token."""
    options = frozenset(option.strip(b" \t") for option in value.lower().split(b","))
    options -= {b""}
    return options if all(_NAME.fullmatch(option) for option in options) else None


@functools.lru_cache(maxsize=1024)
def _parse_length(value: bytes) -> int | None:
    """Return Content-Length; None where it is not one number in plain digits."""
    if (
        not value.isdigit()  # of bytes: ASCII alone
        or len(value) > MAX_LENGTH_DIGITS
        or (value[0] == 0x30 and len(value) > 1)  # octal readers exist
    ):
        return None
    return int(value)


def _check_chunked(head: RequestHead) -> None:
    """Accept Transfer-Encoding only as one `chunked` (RFC 9112 section 6.1)."""
    if not head.http_1_1 or head.length is not None or b"transfer-encoding" in head.repeated:
        raise BadRequest
    value = head.values[b"transfer-encoding"].lower()
    if value == b"chunked":
        # White space other than one space hides the coding from some readers.
        names = [name for name, _ in head.fields]
        if b"\t" in head.lines[names.index(b"transfer-encoding")]:
            raise BadRequest
        return
    codings = [coding.strip(b" \t") for coding in value.split(b",")]
    if value and not all(_CODING.fullmatch(coding) for coding in codings):
        raise BadRequest
    if b"chunked" in codings[:-1]:
        raise BadRequest
    raise NotImplementedHere("Only Transfer-Encoding: chunked is served.")


def _check_expect(head: RequestHead) -> None:
    if b"expect" in head.repeated or head.values[b"expect"].lower() != b"100-continue":
        raise ExpectationFailed
