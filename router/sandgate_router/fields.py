"""Which fields cross the gateway, and which end here (RFC 9110 section 7.6.1).

Pure: a checked head in, the bytes of the next hop's head out. Lines cross as received, in
order and with their repeats, because a gateway that merges Set-Cookie breaks logins. Nothing
is invented for the client: no Accept-Encoding, no User-Agent, no framing it did not ask for.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sandgate_router.errors import ProxyLoop
from sandgate_router.head import RequestHead, ResponseHead

MAX_VIA = 3
"""Times a request may have passed this gateway. Chained gateways are rare, loops are not."""

VIA = b"1.1 sandgate"

SWITCH = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
"""What both heads of an opening handshake carry to the next hop (RFC 6455 section 4)."""

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

_NEVER_TO_SANDBOX = _HOP_BY_HOP | {
    b"content-length",  # framed anew
    b"host",  # the sandbox's own name takes its place
    b"x-sandbox-id",
    b"x-sandbox-namespace",
    b"x-sandbox-pod-ip",
    b"x-sandbox-port",
    b"x-sandbox-protocol",
    b"x-sandbox-timeout",
    b"x-sandbox-token",
    b"x-sandbox-uid",
}
_EXPECTATION_PREFIX = b"x-sandbox-expect-"

_FORWARDING = frozenset(
    {b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
)
"""What a client says of its own way to us; believed only from trusted proxies."""

_DROPPED: dict[tuple[bool, bool], AbstractSet[bytes]] = {
    (trusted, ours): _NEVER_TO_SANDBOX
    | (frozenset() if trusted else _FORWARDING)
    | ({b"authorization"} if ours else frozenset())
    for trusted in (False, True)
    for ours in (False, True)
}
"""By whether the peer is trusted, and whether the credential was meant for us."""

_NEVER_TO_CLIENT = _HOP_BY_HOP | {b"content-length", b"proxy-status", b"x-sandbox-error"}

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_OUR_VIA = re.compile(rb"(?:^|,)[ \t]*(?:HTTP/)?1\.[01][ \t]+sandgate(?=[ \t,]|$)")
_OUR_BEARER = re.compile(rb"(?i:bearer)[ \t]+sg1\..*")


@dataclass(slots=True)
class Peer:
    """The client's connection, as the sandbox is told of it."""

    address: bytes
    """IP address of the client's end."""
    scheme: bytes = b"http"
    trusted: bool = False
    """Whether what it says of earlier hops is believed."""
    _host: bytes | None = None
    _lines: bytes = b""

    def forwarding_lines(self, host: bytes | None) -> bytes:
        """Return the lines with CRLF that tell of this hop alone.

        A client sends one Host all the time, so the lines for the last one are kept.
        """
        if not self._lines or host != self._host:
            self._host = host
            self._lines = b"X-Forwarded-For: %b\r\n%bX-Forwarded-Proto: %b\r\nVia: %b\r\n" % (
                self.address,
                b"X-Forwarded-Host: %b\r\n" % host if host else b"",
                self.scheme,
                VIA,
            )
        return self._lines


def refuse_loop(head: RequestHead) -> None:
    """Raise ProxyLoop when the request passed this gateway too often (RFC 9110 section 7.6.3)."""
    if b"via" not in head.values:
        return
    passed = sum(len(_OUR_VIA.findall(value)) for name, value in head.fields if name == b"via")
    if passed > MAX_VIA:
        raise ProxyLoop


def build_request_head(
    head: RequestHead,
    *,
    host: bytes,
    peer: Peer,
    expectations: bytes,
    secret: bytes | None,
    upgrade: bool = False,
    keep_origin: bool = True,
) -> bytes:
    """Return the head that the sandbox gets, with its empty line.

    Args:
        host: the sandbox's DNS name and port.
        expectations: lines with CRLF that tell the runtime whom we believe it to be.
        secret: a whole Authorization value that was meant for us and ends here.
        upgrade: whether a WebSocket is to be opened; other upgrades are never passed on.
        keep_origin: whether Origin passes; it would not match the Host that we send.
    """
    dropped = _choose_dropped(head, peer, secret)
    if not keep_origin:
        dropped = dropped | {b"origin"}
    lines = _choose_lines(head, dropped)
    if head.aliases:
        lines = _without_aliases(lines, head, dropped)
    if peer.trusted:
        added = _forwarding_lines(head, peer, lines)
    else:
        added = peer.forwarding_lines(head.values.get(b"host"))
    if head.chunked:
        framing = b"Transfer-Encoding: chunked\r\n"
    elif head.length is not None:
        framing = b"Content-Length: %d\r\n" % head.length
    else:
        framing = SWITCH if upgrade else b""
    lines.append(added)
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%b%b\r\n" % (
        head.method,
        head.target,
        host,
        b"\r\n".join(lines),
        framing,
        expectations,
    )


def build_response_head(
    head: ResponseHead, *, framing: bytes, date: Callable[[], bytes], connection: bytes
) -> bytes:
    """Return the head that the client gets, with its empty line.

    Args:
        framing: the line that frames the content for the client, with CRLF; or nothing.
        date: gives a Date field where the sandbox sent none (RFC 9110 section 6.6.1).
        connection: a Connection line with CRLF; or nothing.
    """
    dropped: AbstractSet[bytes] = _NEVER_TO_CLIENT
    if head.connection and not head.connection <= _PLAIN_OPTIONS:
        dropped = dropped | head.connection
    lines = _choose_lines(head, dropped)
    if b"date" not in head.values:
        lines.append(b"Date: " + date())
    lines.append(framing + connection + b"\r\n")
    return b"HTTP/1.1 %d %b\r\n%b" % (head.status, head.reason, b"\r\n".join(lines))


def build_interim_head(head: ResponseHead, *, switch: bytes = b"") -> bytes:
    """Return a 1xx head for the client (RFC 9110 section 15.2); it never frames content."""
    dropped = _NEVER_TO_CLIENT | head.connection
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    lines += _choose_lines(head, dropped)
    lines.append(switch + b"\r\n")
    return b"\r\n".join(lines)


def _choose_lines(head: RequestHead | ResponseHead, dropped: AbstractSet[bytes]) -> list[bytes]:
    """Return the lines of the fields whose names are not `dropped`."""
    values, lines = head.values, head.lines
    if len(values) == len(lines):  # no name comes twice, so the names stand as the lines do
        return [line for name, line in zip(values, lines, strict=False) if name not in dropped]
    fields = zip(head.fields, lines, strict=True)
    return [line for (name, _), line in fields if name not in dropped]


_PLAIN_OPTIONS = frozenset({b"close", b"keep-alive"})


def _forwarding_lines(head: RequestHead, peer: Peer, lines: list[bytes]) -> bytes:
    """Append this hop for a trusted peer; what it said of the others stays."""
    values = head.values
    earlier = [value for name, value in head.fields if name == b"x-forwarded-for" and value]
    if earlier:
        lines[:] = [line for line in lines if not line.lower().startswith(b"x-forwarded-for:")]
    added = [b"X-Forwarded-For: " + b", ".join([*earlier, peer.address])]
    if b"x-forwarded-host" not in values and (host := values.get(b"host")):
        added.append(b"X-Forwarded-Host: " + host)
    if b"x-forwarded-proto" not in values:
        added.append(b"X-Forwarded-Proto: " + peer.scheme)
    added.append(b"Via: " + VIA + b"\r\n")
    return b"\r\n".join(added)


def _without_aliases(
    lines: list[bytes], head: RequestHead, dropped: AbstractSet[bytes]
) -> list[bytes]:
    """Drop what an application takes for a field that ends here: CGI and WSGI fold `_` and `-`."""
    folded = {
        alias for alias in head.aliases if alias in dropped or alias.startswith(_EXPECTATION_PREFIX)
    }
    if not folded:
        return lines
    bad = {
        line
        for (name, _), line in zip(head.fields, head.lines, strict=True)
        if name.replace(b"_", b"-").replace(b".", b"-") in folded
    }
    return [line for line in lines if line not in bad]


def _choose_dropped(head: RequestHead, peer: Peer, secret: bytes | None) -> AbstractSet[bytes]:
    """Return the names that end here; on most requests one of four sets that are made once."""
    values, repeated = head.values, head.repeated
    ours = False
    if b"authorization" in values:
        credential = values[b"authorization"]
        ours = credential == secret or _OUR_BEARER.fullmatch(credential) is not None
        if b"authorization" in repeated:
            ours = any(
                name == b"authorization" and (value == secret or _OUR_BEARER.fullmatch(value))
                for name, value in head.fields
            )
    dropped = _DROPPED[peer.trusted, ours]
    if head.reserved:
        dropped = dropped | head.reserved
    if head.connection and not head.connection <= _PLAIN_OPTIONS:
        dropped = dropped | head.connection
    request_id = values.get(b"x-request-id")
    if request_id is not None and (
        b"x-request-id" in repeated or _REQUEST_ID.fullmatch(request_id) is None
    ):
        dropped = dropped | {b"x-request-id"}
    return dropped
