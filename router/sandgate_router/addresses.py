"""Which addresses may be dialled when their name or number came from outside.

Pure. What DNS says and what a client writes in X-Sandbox-Pod-IP is somebody else's word: it
must lie in the networks of the sandboxes, and some classes are refused whatever the settings
say, because what answers there is never a sandbox: this machine itself, and the services that
hand out a cloud's credentials. An address is judged as a number, after parsing, together with
the IPv4 address that it may carry inside.

Addresses of a file that the operator wrote are not judged here.
"""

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Verdict = Literal["allowed", "never", "outside"]
"""`never` is of a class that no setting allows, `outside` lies in no network that is allowed."""

NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this host on this network (RFC 1122): Linux dials itself
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, and most clouds' metadata and ECS credentials
        "224.0.0.0/4",
        "240.0.0.0/4",  # reserved, and the broadcast address
        "100.100.100.200/32",  # metadata of Alibaba Cloud, inside 100.64.0.0/10
        "168.63.129.16/32",  # Azure's wire server
        "192.0.0.192/32",  # metadata of Oracle Cloud
        "::/127",  # unspecified and loopback
        "::ffff:0.0.0.0/96",  # IPv4-mapped: a second spelling, which filters overlook
        "fe80::/10",
        "fec0::/10",  # site-local, deprecated (RFC 3879)
        "ff00::/8",
        "fd00:ec2::/32",  # metadata and DNS of AWS, inside fc00::/7
        "fd20:ce::254/128",  # metadata of Google Cloud
    )
)
"""What is never dialled."""

_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
"""Networks whose last 32 bits are an IPv4 address that a translator dials (RFC 6052, 8215)."""

_COMPATIBLE = ipaddress.IPv6Network("::/96")
"""IPv4-compatible addresses, deprecated (RFC 4291 section 2.5.5.1)."""


class AddressPolicy:
    """Judges addresses by the networks that are allowed, and by what never is."""

    def __init__(
        self, networks: Sequence[IpNetwork], *, is_ours: Callable[[IpAddress], bool]
    ) -> None:
        """Allow `networks`, but for the addresses of which `is_ours` says they are our own.

        A request to one of ours would come back to this gateway, or reach its neighbours.
        """
        self._networks = tuple(networks)
        self._is_ours = is_ours

    def judge(self, address: IpAddress) -> Verdict:
        """Tell whether `address` may be dialled."""
        if any(is_never(form) for form in _forms(address)):
            return "never"
        if not any(address in network for network in self._networks):
            return "outside"
        if any(self._is_ours(form) for form in _forms(address)):
            return "never"
        return "allowed"


def parse_address(text: str) -> IpAddress:
    """Return an address in its usual notation; raise ValueError for all else.

    A zone id (`fe80::1%eth0`) names an interface of this machine, which nobody outside knows.
    """
    if not text.isascii() or "%" in text:
        raise ValueError(f"{text!r} is not an IP address without a zone")
    return ipaddress.ip_address(text)


def is_never(address: IpAddress) -> bool:
    """Tell whether `address` is of a class that is never dialled."""
    return any(address in network for network in NEVER)


def is_never_network(network: IpNetwork) -> bool:
    """Tell whether no address of `network` could ever be dialled."""
    # Membership is False across versions, and both ends inside is all inside.
    return any(
        network.network_address in never and network.broadcast_address in never for never in NEVER
    )


def _forms(address: IpAddress) -> Iterator[IpAddress]:
    """Yield the address, and each IPv4 address that it stands for somewhere on the way."""
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address in _COMPATIBLE or any(address in network for network in _NAT64):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
