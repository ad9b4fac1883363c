"""Which requests ask for a tunnel, and which answers grant one (RFC 9110 section 7.8).

Pure. WebSocket alone becomes a tunnel: other upgrade tokens are stripped and the request is
answered as HTTP/1.1, because a proxy that passes an upgrade it does not know gives its client
a raw connection behind every check (h2c smuggling).
"""

import ipaddress
import re
from collections.abc import Sequence

from sandgate_router.addresses import IpNetwork
from sandgate_router.errors import BadRequest, UpgradeRequired
from sandgate_router.fields import Peer
from sandgate_router.head import RequestHead, ResponseHead

# RFC 6455 section 4.2.1: base64 of 16 bytes.
_KEY = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")


def wants_websocket(head: RequestHead) -> bool:
    """Tell whether the request opens a WebSocket.

    Raises:
        BadRequest: it says so and is no opening handshake.
        UpgradeRequired: it speaks another version than 13.
    """
    token = head.values.get(b"upgrade")
    if token is None or token.lower() != b"websocket":
        return False
    if b"upgrade" in head.repeated or b"upgrade" not in head.connection or not head.http_1_1:
        raise BadRequest("A WebSocket handshake needs one Upgrade and Connection: Upgrade.")
    if head.method != b"GET" or head.has_content:
        raise BadRequest("A WebSocket handshake is a GET without content.")
    if head.values.get(b"sec-websocket-version") != b"13":
        raise UpgradeRequired
    key = head.values.get(b"sec-websocket-key", b"")
    if b"sec-websocket-key" in head.repeated or _KEY.fullmatch(key) is None:
        raise BadRequest("Sec-WebSocket-Key must be the base64 of 16 bytes.")
    return True


def grants_websocket(head: ResponseHead) -> bool:
    """Tell whether a 101 switches to what was asked for, and to nothing else."""
    return (
        head.values.get(b"upgrade", b"").lower() == b"websocket"
        and b"upgrade" in head.connection
        and not head.chunked
        and not head.length
    )


def counted_client(peer: Peer, forwarded: Sequence[bytes], trusted: Sequence[IpNetwork]) -> bytes:
    """Return the address by which a client's tunnels are counted.

    Args:
        forwarded: the values of X-Forwarded-For, in order; read only from trusted peers.
        trusted: networks of our own proxies.

    Of the hops that trusted proxies name it is the last that is none of them; where all are,
    the first.
    """
    if not peer.trusted:
        return peer.address
    hops = [hop.strip() for value in forwarded for hop in value.split(b",") if hop.strip()]
    for hop in reversed(hops):
        try:
            address = ipaddress.ip_address(hop.decode("ascii"))
        except ValueError:
            return hop
        if not any(address in network for network in trusted):
            return hop
    return hops[0] if hops else peer.address
