"""Which addresses the kernel says are ours."""

import ipaddress

import pytest

from sandgate_router.interfaces import is_own_address


@pytest.mark.parametrize("text", ["127.0.0.1", "127.9.9.9"])
def test_loopback_is_our_own(text: str) -> None:
    assert is_own_address(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["192.0.2.77", "2001:db8::77"])
def test_an_address_of_nobody_is_not(text: str) -> None:
    assert not is_own_address(ipaddress.ip_address(text))
