"""A gateway's URL is checked where it is written."""

import pytest

from sandgate import Gateway


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("https://gateway.example", "https://gateway.example"),
        ("HTTP://[::1]:80", "http://[::1]:80"),
    ],
)
def test_a_plain_origin_is_taken(url: str, kept: str) -> None:
    assert Gateway(url).url == kept


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "does not begin with http"),
        ("127.0.0.1:8080", "does not begin with http"),
        ("localhost:8080", "does not begin with http"),
        ("ftp://host", "does not begin with http"),
        ("http:/host", "does not begin with http"),
        ("http://", "names no host"),
        ("http://:8080", "names no host"),
        ("http://host:0", "names no host and port"),
        ("http://host:65536", "no port between"),
        ("http://host:port", "no port between"),
        ("http://host/prefix", "must end after the host and port"),
        ("http://host?x", "must end after"),
        ("http://host#x", "must end after"),
        ("http://host?", "must end after"),
        ("http://host /", "holds a space"),
        ("http://host\n", "holds a space, a control"),
        ("http://höst", "non-ASCII"),
    ],
)
def test_anything_else_is_refused_at_once_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Gateway(url)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="pass the token as token=") as caught:
        Gateway("http://me:hunter2@host")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ü"])
def test_a_token_that_no_field_can_carry_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="gateway token is empty or holds") as caught:
        Gateway("http://host", token=token)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="router token is empty or holds") as caught:
        Gateway("http://host", router_token=token)
    assert "\n" not in str(caught.value)


def test_a_token_never_shows() -> None:
    assert "hunter2" not in repr(Gateway("http://host", token="hunter2"))
    assert "hunter2" not in repr(Gateway("http://host", router_token="hunter2"))
