"""Requests that a web page sent through its reader's browser."""

import pytest

from sandgate_router.access import check_local
from sandgate_router.errors import NotAllowedHere

OUR_HOSTS = [
    b"localhost",
    b"localhost:8080",
    b"LocalHost:8080",
    b"python.localhost:8080",
    b"a.b_c.d-e.localhost",
    b"127.0.0.1",
    b"127.0.0.1:65535",
    b"127.255.0.9:1",
    b"[::1]",
    b"[::1]:8080",
]
FOREIGN_HOSTS = [
    b"",
    b"evil.example",
    b"localhost.evil.example",
    b"evil-localhost",
    b"localhost.",
    b".localhost",
    b"a..localhost",
    b"127.0.0.1.evil.example",
    b"127.0.0.1.nip.io",
    b"127.0.0.256",
    b"127.0.0.01",
    b"127.1",
    b"2130706433",
    b"0x7f000001",
    b"0.0.0.0",
    b"0",
    b"10.0.0.7:8080",
    b"169.254.169.254",
    b"::1",
    b"[::]",
    b"[::ffff:127.0.0.1]",
    b"[0:0:0:0:0:0:0:1]",
    b"[::1%lo]",
    b"localhost:",
    b"localhost:80:80",
    b"localhost:999999",
    b"user@localhost",
    b"localhost/",
    b"localhost\n",
    b" localhost",
    b"localhost, evil.example",
    b"\xff",
]
FOREIGN_ORIGINS = [
    b"",
    b"null",
    b"http://evil.example",
    b"https://127.0.0.1:8080",
    b"http://127.0.0.1",
    b"http://127.0.0.1:8081",
    b"http://localhost:8080",
    b"http://127.0.0.1:8080/",
    b"http://127.0.0.1:8080.evil.example",
    b"127.0.0.1:8080",
    b"http://127.0.0.1:8080, http://127.0.0.1:8080",
    b"chrome-extension://abcdef",
]


@pytest.mark.parametrize("host", OUR_HOSTS)
def test_a_loopback_name_with_any_port_passes(host: bytes) -> None:
    check_local(host, None)
    check_local(host, b"http://" + host.lower())
    check_local(host, b"https://" + host.lower(), scheme=b"https")


@pytest.mark.parametrize("host", [None, *FOREIGN_HOSTS])
def test_any_other_host_is_refused_with_the_reason(host: bytes | None) -> None:
    with pytest.raises(NotAllowedHere, match="Host of a request to a loopback listener"):
        check_local(host, None)


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_an_origin_that_is_not_the_very_host_that_was_called_is_refused(origin: bytes) -> None:
    with pytest.raises(NotAllowedHere, match="Origin of the request is not this gateway"):
        check_local(b"127.0.0.1:8080", origin)
