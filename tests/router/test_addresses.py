"""Which addresses are judged fit to be dialled."""

import ipaddress

import pytest

from sandgate_router.addresses import (
    AddressPolicy,
    IpAddress,
    is_never_network,
    parse_address,
)

DEFAULTS = tuple(
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
EVERYTHING = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
OURS = {ipaddress.ip_address("10.1.1.1"), ipaddress.ip_address("fd00::1")}


def judge(text: str, networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]) -> str:
    return AddressPolicy(networks, is_ours=OURS.__contains__).judge(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text",
    ["10.0.0.7", "172.16.0.1", "172.31.255.255", "192.168.0.9", "100.64.0.1", "fd12::7", "fc00::1"],
)
def test_a_private_address_is_a_sandboxes_by_default(text: str) -> None:
    assert judge(text, DEFAULTS) == "allowed"


@pytest.mark.parametrize(
    "text", ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:db8::1", "192.0.2.1"]
)
def test_what_lies_in_no_network_is_outside(text: str) -> None:
    assert judge(text, DEFAULTS) == "outside"
    assert judge(text, EVERYTHING) == "allowed"


NEVER = {
    "loopback": "127.0.0.1",
    "loopback, all of it": "127.255.0.9",
    "loopback, IPv6": "::1",
    "unspecified": "0.0.0.0",
    "this network": "0.1.2.3",
    "unspecified, IPv6": "::",
    "link-local": "169.254.1.1",
    "link-local, IPv6": "fe80::1",
    "site-local": "fec0::1",
    "multicast": "224.0.0.1",
    "multicast, IPv6": "ff02::1",
    "broadcast": "255.255.255.255",
    "reserved": "240.0.0.1",
    "metadata of most clouds": "169.254.169.254",
    "credentials of AWS tasks": "169.254.170.2",
    "metadata of AWS, IPv6": "fd00:ec2::254",
    "metadata of Google, IPv6": "fd20:ce::254",
    "metadata of Alibaba": "100.100.100.200",
    "metadata of Oracle": "192.0.0.192",
    "wire server of Azure": "168.63.129.16",
    "IPv4-mapped metadata": "::ffff:169.254.169.254",
    "IPv4-mapped loopback": "0:0:0:0:0:ffff:7f00:1",
    "IPv4-mapped private": "::ffff:10.0.0.7",
    "IPv4-compatible loopback": "::127.0.0.1",
    "NAT64 metadata": "64:ff9b::a9fe:a9fe",
    "NAT64 of the local kind": "64:ff9b:1::a9fe:a9fe",
    "NAT64 loopback": "64:ff9b::7f00:1",
    "6to4 metadata": "2002:a9fe:a9fe::1",
    "Teredo of loopback": "2001:0:7f00:1:0:0:f5ff:fffe",
    "Teredo from loopback": "2001:0:a00:1::80ff:fffe",
}


@pytest.mark.parametrize("text", NEVER.values(), ids=NEVER.keys())
def test_a_class_that_is_never_a_sandboxes_is_refused_whatever_the_networks(text: str) -> None:
    assert judge(text, DEFAULTS) == "never"
    assert judge(text, EVERYTHING) == "never"


@pytest.mark.parametrize("text", ["10.1.1.1", "fd00::1", "64:ff9b::a01:101", "2002:a01:101::"])
def test_an_own_address_is_never_dialled_in_any_form(text: str) -> None:
    assert judge(text, EVERYTHING) == "never"


def test_whose_an_address_is_is_asked_only_where_it_could_be_dialled() -> None:
    asked: list[IpAddress] = []

    def is_ours(address: IpAddress) -> bool:
        asked.append(address)
        return False

    policy = AddressPolicy(DEFAULTS, is_ours=is_ours)
    for text in ("8.8.8.8", "127.0.0.1", "10.0.0.7"):
        policy.judge(ipaddress.ip_address(text))
    assert asked == [ipaddress.ip_address("10.0.0.7")]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("FD00::A", "fd00::a"),
        ("fd00:0:0:0:0:0:0:a", "fd00::a"),
        ("::ffff:10.0.0.7", "::ffff:10.0.0.7"),
    ],
)
def test_an_address_is_parsed_to_its_number(text: str, address: str) -> None:
    assert parse_address(text) == ipaddress.ip_address(address)


BAD = {
    "too short": "10.0.0",
    "number": "2130706433",
    "hexadecimal": "0x7f000001",
    "hexadecimal part": "0xa.0.0.1",
    "leading zero": "010.0.0.1",
    "port": "10.0.0.1:80",
    "brackets": "[::1]",
    "network": "10.0.0.0/8",
    "name": "localhost",
    "zone": "fe80::1%eth0",
    "zone of a private address": "fd00::1%1",
    "empty zone": "fd00::1%",
    "list": "10.0.0.1, 10.0.0.2",
    "space": " 10.0.0.1",
    "Arabic digits": "١٠.٠.٠.١",
    "full-width dot": "10．0．0．1",
    "latin-1": "\xff",
    "empty": "",
    "newline": "10.0.0.1\n",
    "NUL": "10.0.0.1\0",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_what_is_no_address_in_its_usual_notation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.0/8", "127.0.0.1/32", "169.254.0.0/24", "::1/128"])
def test_a_network_of_such_addresses_alone_is_known_as_one(text: str) -> None:
    assert is_never_network(ipaddress.ip_network(text))


@pytest.mark.parametrize("text", ["10.0.0.0/8", "0.0.0.0/0", "126.0.0.0/7", "::/0", "fe00::/7"])
def test_a_network_with_other_addresses_is_none(text: str) -> None:
    assert not is_never_network(ipaddress.ip_network(text))
