"""The `v1.` tokens of the router that clients know: taken as there, and no other spelling."""

import base64
import hashlib
import hmac
import json
from pathlib import Path

import pytest

from sandgate_router.capability import InvalidToken
from sandgate_router.config import BadConfig
from sandgate_router.names import Label
from sandgate_router.scoped_token import (
    REMEMBERED_TOKENS,
    ScopedToken,
    ScopedTokens,
    load_scoped_secret,
)

NOW = 1_796_040_000
SECRET = b"0123456789abcdef0123456789abcdef"
SAID = {"ns": "default", "name": "box-a", "exp": NOW + 600}


def encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def signed(payload: bytes, *, secret: bytes = SECRET) -> bytes:
    mac = hmac.new(secret, b"agent-sandbox/scoped-token/v1." + payload, hashlib.sha256).digest()
    return b"v1." + payload + b"." + encoded(mac)


def token(**members: object) -> bytes:
    return signed(encoded(json.dumps({**SAID, **members}).encode()))


TOKEN = token()


def tokens(now: float = NOW) -> ScopedTokens:
    return ScopedTokens(SECRET, now=lambda: now)


def reason(text: bytes, now: float = NOW) -> str:
    with pytest.raises(InvalidToken) as caught:
        tokens(now).verify(text)
    return caught.value.reason


@pytest.mark.parametrize(
    "payload",
    [
        b'{"ns":"default","name":"box-a","exp":1796040600}',
        b'{"exp": 1796040600, "name": "box-a", "ns": "default"}\n',
        b'{"ns":"\\u0064efault","name":"box-a","exp":1796040600}',
    ],
)
def test_any_json_of_the_three_members_is_taken_as_that_router_takes_it(payload: bytes) -> None:
    said = ScopedToken(Label("default"), Label("box-a"), NOW + 600)
    assert tokens().verify(signed(encoded(payload))) == said


def test_it_is_void_from_its_end_on_also_where_it_is_remembered() -> None:
    assert tokens(NOW + 599.9).verify(TOKEN).expires_at == NOW + 600
    assert reason(TOKEN, NOW + 600) == "expired"
    clock = [float(NOW)]
    remembering = ScopedTokens(SECRET, now=lambda: clock[0])
    assert remembering.verify(TOKEN) is remembering.verify(TOKEN)
    clock[0] += 600
    with pytest.raises(InvalidToken):
        remembering.verify(TOKEN)
    assert repr(remembering) == "<ScopedTokens 0 remembered>"


def test_another_secret_signs_nothing() -> None:
    assert reason(signed(TOKEN.split(b".")[1], secret=b"x" * 32)) == "bad_mac"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"7",
        b'[["ns","default"],["name","box-a"],["exp",1796040600]]',
        b'{"ns":"default","name":"box-a"}',
        b'{"ns":"default","name":"box-a","exp":1796040600,"ports":[80]}',
        b'{"ns":"default","name":"box-a","exp":1796040600,"exp":1796040601}',
        b'{"ns":"default","name":"box-a","name":"box-b","exp":1796040600}',
        b'{"NS":"default","name":"box-a","exp":1796040600}',
        b'{"ns":"default","name":"box-a","exp":1796040600.0}',
        b'{"ns":"default","name":"box-a","exp":1e20}',
        b'{"ns":"default","name":"box-a","exp":"1796040600"}',
        b'{"ns":"default","name":"box-a","exp":true}',
        b'{"ns":"default","name":"box-a","exp":null}',
        b'{"ns":"default","name":"box-a","exp":-1}',
        b'{"ns":"default","name":"box-a","exp":Infinity}',
        b'{"ns":"default","name":"box-a","exp":' + b"9" * 500 + b"}",
        b'{"ns":"","name":"box-a","exp":1796040600}',
        b'{"ns":"Default","name":"box-a","exp":1796040600}',
        b'{"ns":"default","name":"box/a","exp":1796040600}',
        b'{"ns":"default","name":"\\ud800","exp":1796040600}',
        b'{"ns":"default","name":{},"exp":1796040600}',
        b'{"ns":null,"name":"box-a","exp":1796040600}',
        b'{"ns":"default","name":"box-a","exp":1796040600} {}',
        b"\xff",
        b"[" * 700,
    ],
)
def test_what_is_signed_and_says_something_else_is_refused(payload: bytes) -> None:
    assert reason(signed(encoded(payload))) == "malformed"


PAYLOAD, MAC = TOKEN.split(b".")[1:]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "malformed"),
        (b"v1", "malformed"),
        (b"v1.", "malformed"),
        (b"v1." + PAYLOAD, "malformed"),
        (b"v2." + PAYLOAD + b"." + MAC, "malformed"),
        (b"V1." + PAYLOAD + b"." + MAC, "malformed"),
        (TOKEN + b".", "malformed"),
        (TOKEN + b"x" * 1024, "malformed"),
        (signed(PAYLOAD + b"="), "malformed"),
        (signed(PAYLOAD[:-1] + b"$"), "malformed"),
        (TOKEN + b"=", "bad_mac"),
        (TOKEN[:-1], "bad_mac"),
        (b"v1." + PAYLOAD + b".", "bad_mac"),
        (b"v1.." + MAC, "bad_mac"),
        (TOKEN[:-1] + bytes([TOKEN[-1] + 1]), "bad_mac"),
        (TOKEN + b"\xff", "bad_mac"),
    ],
)
def test_another_spelling_is_refused(text: bytes, why: str) -> None:
    assert reason(text) == why


def test_every_one_bit_flip_is_refused() -> None:
    checking = tokens()
    for place in range(len(TOKEN)):
        for bit in range(8):
            flipped = bytearray(TOKEN)
            flipped[place] ^= 1 << bit
            with pytest.raises(InvalidToken):
                checking.verify(bytes(flipped))
    checking.verify(TOKEN)


def test_what_is_remembered_is_bounded() -> None:
    checking = tokens()
    for number in range(REMEMBERED_TOKENS + 10):
        assert checking.verify(token(name=f"box-{number}")).sandbox == f"box-{number}"
        assert len(checking._verified) <= REMEMBERED_TOKENS


def test_the_secret_is_read_without_white_space_around_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"\n " + SECRET + b"\n")
    assert load_scoped_secret(path) == SECRET


def test_a_secret_that_cannot_be_used_is_told_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="secret cannot be read"):
        load_scoped_secret(tmp_path / "secret")
    (tmp_path / "secret").write_bytes(b"hunter2" * 4 + b"\n\n\n\n\n")
    with pytest.raises(BadConfig, match="has 28 bytes, and 32 are the least") as caught:
        load_scoped_secret(tmp_path / "secret")
    assert "hunter2" not in str(caught.value)
