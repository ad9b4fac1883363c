"""Which addresses are this machine's own, as its kernel says at this moment.

Asked instead of listed: interfaces come and go, and a list would have to follow them.
"""

import errno
import functools
import ipaddress
import socket

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NOT_OURS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})

_NOBODYS = {
    4: ipaddress.ip_address("192.0.2.1"),  # kept for documentation (RFC 5737, RFC 3849)
    6: ipaddress.ip_address("2001:db8::1"),
}


def is_own_address(address: IpAddress) -> bool:
    """Tell whether a connection to `address` would end on this machine."""
    if _may_bind_any(address.version):
        return _source_towards(address) == address
    return _can_bind(address)


@functools.cache
def _may_bind_any(version: int) -> bool:
    """Tell whether `ip_nonlocal_bind` is set, as on machines that share a floating address."""
    return _can_bind(_NOBODYS[version])


def _can_bind(address: IpAddress) -> bool:
    try:
        with _datagram_socket(address) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in _NOT_OURS  # whatever else is wrong, it is not dialled
    return True


def _source_towards(address: IpAddress) -> IpAddress | None:
    """Return where packets to `address` would come from: itself, if it is an interface's first.

    Connecting a datagram socket sends nothing.
    """
    try:
        with _datagram_socket(address) as probe:
            probe.connect((str(address), 9))
            return ipaddress.ip_address(probe.getsockname()[0])
    except OSError:  # no route
        return None


def _datagram_socket(address: IpAddress) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return socket.socket(family, socket.SOCK_DGRAM)
