"""Capabilities: one spelling, one 401 for all that is wrong, and nothing that can be forged."""

import base64
import hashlib
import hmac
import os
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from sandgate_router import base64url
from sandgate_router.capability import (
    MAX_LIFE_SECONDS,
    NOT_BEFORE_LEEWAY_SECONDS,
    REMEMBERED_KEYS,
    REMEMBERED_TOKENS,
    Capabilities,
    InvalidToken,
    KeySet,
    NoTokens,
    derive_key,
)
from sandgate_router.capability_text import Capability, build_payload, parse_token
from sandgate_router.errors import Unauthenticated
from sandgate_router.names import Label, Port

EXAMPLES = int(os.environ.get("SANDGATE_FUZZ_EXAMPLES", "20000"))
SEED = int(os.environ.get("SANDGATE_FUZZ_SEED", "1"))

NOW = 1_796_040_000
SECRET, OTHER_SECRET = b"s" * 32, b"o" * 32

LEASE_END = datetime.fromtimestamp(NOW + 600, UTC)

FULL = Capability(
    audience="sandgate",
    namespace=Label("default"),
    claim=Label("tour"),
    sandbox=Label("sb-1"),
    uid="u-1",
    ports=(Port(80), Port(8888)),
    scopes=("http", "ws"),
    not_before=NOW,
    expires_at=NOW + 600,
)
PAYLOAD = (
    b'{"aud":"sandgate","ns":"default","cl":"tour","sb":"sb-1","uid":"u-1",'
    b'"ports":[80,8888],"scp":["http","ws"],"nbf":1796040000,"exp":1796040600}'
)


@dataclass
class Clock:
    """Unix seconds, as a test sets them."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class Lease:
    """A claim, as far as a token is made from it."""

    namespace: Label = FULL.namespace
    name: Label = FULL.claim
    sandbox: Label = FULL.sandbox
    uid: str = "u-1"
    ports: tuple[Port, ...] | None = None
    expires_at: datetime = LEASE_END


def capabilities(clock: Clock | None = None, **secrets: bytes) -> Capabilities:
    secrets = secrets or {"k1": SECRET}
    keys = KeySet(secrets, signing=next(iter(secrets)))
    return Capabilities(keys, audience="sandgate", now=clock or Clock())


def spelled(payload: bytes, *, kid: str = "k1", secret: bytes = SECRET) -> bytes:
    """Return a token that is rightly signed, whatever its payload."""
    encoded = base64.urlsafe_b64encode(payload).rstrip(b"=")
    return signed(b"sg1." + kid.encode() + b"." + encoded, secret=secret)


def signed(text: bytes, *, secret: bytes = SECRET, namespace: bytes = b"default") -> bytes:
    extracted = hmac.new(b"", secret, hashlib.sha256).digest()
    info = b"sandgate/capability/v1\0" + namespace
    key = hmac.new(extracted, info + b"\1", hashlib.sha256).digest()
    mac = hmac.new(key, text, hashlib.sha256).digest()
    return text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")


def reason(token: bytes, tokens: Capabilities | None = None) -> str:
    with pytest.raises(InvalidToken) as caught:
        (tokens or capabilities()).verify(token)
    refused = caught.value
    # To whoever sent it every refusal is the one that a missing token gets.
    assert (refused.status, refused.body(b"GET")) == (401, Unauthenticated().body(b"GET"))
    return refused.reason


TOKEN = spelled(PAYLOAD)


def test_the_spelling_of_a_token_is_taken_and_says_what_was_meant() -> None:
    assert capabilities().verify(TOKEN) == FULL
    assert capabilities().sign(FULL).encode() == TOKEN


@pytest.mark.parametrize(
    "said",
    [
        FULL,
        FULL._replace(uid=None),
        FULL._replace(ports=None),
        FULL._replace(ports=()),
        FULL._replace(ports=(Port(1), Port(65535))),
        FULL._replace(scopes=()),
        FULL._replace(scopes=("http",)),
        FULL._replace(scopes=("ws",)),
        FULL._replace(not_before=0),
        FULL._replace(audience="https://gw.example:8443/a_b-c"),
        FULL._replace(sandbox=Label("a" * 63), claim=Label("0"), uid="!#[]~" + "x" * 248),
    ],
)
def test_what_can_be_said_is_read_back_as_it_was(said: Capability) -> None:
    keys = KeySet({"k1": SECRET}, signing="k1")
    tokens = Capabilities(keys, audience=said.audience, now=Clock())
    assert tokens.verify(tokens.sign(said).encode()) == said


@pytest.mark.parametrize(
    "said",
    [
        FULL._replace(sandbox=Label('a","uid":null')),
        FULL._replace(namespace=Label("A")),
        FULL._replace(claim=Label("")),
        FULL._replace(uid='u"'),
        FULL._replace(uid="u\\"),
        FULL._replace(uid="ü"),
        FULL._replace(uid=""),
        FULL._replace(audience="a b"),
        FULL._replace(ports=(Port(2), Port(1))),
        FULL._replace(ports=(Port(1), Port(1))),
        FULL._replace(ports=(Port(0),)),
        FULL._replace(ports=(Port(65536),)),
        FULL._replace(scopes=("ws", "http")),
        FULL._replace(scopes=('http","ws',)),  # type: ignore[arg-type]
        FULL._replace(not_before=-1),
        FULL._replace(expires_at=10**11),
    ],
)
def test_what_no_token_can_say_is_never_signed(said: Capability) -> None:
    with pytest.raises(ValueError, match="no token can say"):
        capabilities().sign(said)


def test_a_token_that_no_head_should_carry_is_never_signed() -> None:
    with pytest.raises(ValueError, match="name fewer ports"):
        capabilities().sign(FULL._replace(ports=tuple(map(Port, range(1, 2000)))))


def changed(old: bytes, new: bytes) -> bytes:
    assert PAYLOAD.count(old) == 1, old
    return PAYLOAD.replace(old, new)


OTHER_SPELLINGS = {
    "white space after a colon": changed(b'"aud":', b'"aud": '),
    "white space after a comma": changed(b',"ns"', b', "ns"'),
    "white space before": b" " + PAYLOAD,
    "white space behind": PAYLOAD + b" ",
    "a line's end": PAYLOAD + b"\n",
    "white space in a list": changed(b"80,8888", b"80, 8888"),
    "members in another order": changed(
        b'"aud":"sandgate","ns":"default"', b'"ns":"default","aud":"sandgate"'
    ),
    "the ends exchanged": changed(
        b'"nbf":1796040000,"exp":1796040600', b'"exp":1796040600,"nbf":1796040000'
    ),
    "a member twice": changed(b'"sb":"sb-1"', b'"sb":"sb-1","sb":"sb-1"'),
    "a member twice at the end": changed(b"}", b',"exp":1796040600}'),
    "a member more": changed(b"}", b',"x":1}'),
    "a member more, first": changed(b'{"aud"', b'{"a":1,"aud"'),
    "no audience": changed(b'"aud":"sandgate",', b""),
    "no namespace": changed(b'"ns":"default",', b""),
    "no claim": changed(b'"cl":"tour",', b""),
    "no sandbox": changed(b'"sb":"sb-1",', b""),
    "no uid": changed(b'"uid":"u-1",', b""),
    "no ports": changed(b'"ports":[80,8888],', b""),
    "no scope": changed(b'"scp":["http","ws"],', b""),
    "no beginning": changed(b'"nbf":1796040000,', b""),
    "no end": changed(b',"exp":1796040600', b""),
    "a float": changed(b"1796040600", b"1796040600.0"),
    "an exponent": changed(b"1796040600", b"1e11"),
    "true": changed(b"1796040600", b"true"),
    "null": changed(b"1796040600", b"null"),
    "text for a number": changed(b"1796040600", b'"1796040600"'),
    "minus": changed(b"1796040000", b"-1796040000"),
    "minus zero": changed(b"1796040000", b"-0"),
    "plus": changed(b"1796040000", b"+1796040000"),
    "a leading zero": changed(b"1796040000", b"01796040000"),
    "a huge end": changed(b"1796040600", b"9" * 12),
    "an endless end": changed(b"1796040600", b"9" * 4000),
    "Infinity": changed(b"1796040600", b"Infinity"),
    "NaN": changed(b"1796040600", b"NaN"),
    "Arabic digits": changed(b"1796040600", "١٧٩٦".encode()),
    "ports descending": changed(b"80,8888", b"8888,80"),
    "a port twice": changed(b"80,8888", b"80,80"),
    "port 0": changed(b"80,8888", b"0,80"),
    "port 65536": changed(b"80,8888", b"80,65536"),
    "a port's leading zero": changed(b"80,8888", b"080,8888"),
    "a port as text": changed(b"80,8888", b'"80",8888'),
    "a port true": changed(b"80,8888", b"true"),
    "a port null": changed(b"80,8888", b"null"),
    "a float port": changed(b"80,8888", b"80.0"),
    "a comma too many": changed(b"80,8888", b"80,8888,"),
    "a comma first": changed(b"80,8888", b",80"),
    "ports as text": changed(b"[80,8888]", b'"80"'),
    "ports as one number": changed(b"[80,8888]", b"80"),
    "scopes exchanged": changed(b'"http","ws"', b'"ws","http"'),
    "a scope twice": changed(b'"http","ws"', b'"http","http"'),
    "an unknown scope": changed(b'"http","ws"', b'"http","tcp"'),
    "a scope in capitals": changed(b'"http","ws"', b'"HTTP"'),
    "scopes null": changed(b'["http","ws"]', b"null"),
    "an empty scope": changed(b'"http","ws"', b'""'),
    "an escaped letter": changed(b"sb-1", b"sb\\u002d1"),
    "an escaped slash": changed(b'"sandgate"', b'"sand\\/gate"'),
    "an escaped member": changed(b'"sb"', b'"s\\u0062"'),
    "a quote in the uid": changed(b'"u-1"', b'"u\\"1"'),
    "a sandbox in capitals": changed(b"sb-1", b"SB-1"),
    "a sandbox with a dot": changed(b"sb-1", b"sb.1"),
    "a sandbox of 64": changed(b"sb-1", b"a" * 64),
    "an empty sandbox": changed(b'"sb-1"', b'""'),
    "sandbox null": changed(b'"sb-1"', b"null"),
    "a namespace with a NUL": changed(b"default", b"default\0"),
    "an escaped NUL": changed(b"default", b"default\\u0000"),
    "an empty uid": changed(b'"u-1"', b'""'),
    "a uid of 254": changed(b"u-1", b"u" * 254),
    "a number as uid": changed(b'"u-1"', b"1"),
    "single quotes": PAYLOAD.replace(b'"', b"'"),
    "a mark of byte order": b"\xef\xbb\xbf" + PAYLOAD,
    "UTF-16": PAYLOAD.decode().encode("utf-16"),
    "a comment": PAYLOAD + b"//",
    "a second object": PAYLOAD + PAYLOAD,
    "a list around it": b"[" + PAYLOAD + b"]",
    "nothing": b"",
    "an empty object": b"{}",
    "null alone": b"null",
    "deep nesting": b"[" * 5000,
}


@pytest.mark.parametrize("payload", OTHER_SPELLINGS.values(), ids=OTHER_SPELLINGS.keys())
def test_a_payload_that_is_spelled_otherwise_is_refused_though_it_is_signed(
    payload: bytes,
) -> None:
    assert payload != PAYLOAD
    assert reason(spelled(payload)) == "malformed"


KID, ENCODED, MAC = TOKEN.split(b".")[1:]


def resigned(encoded: bytes, kid: bytes = b"k1") -> bytes:
    return signed(b"sg1." + kid + b"." + encoded)


def with_tail_bits(text: bytes) -> bytes:
    """Return another spelling of the same bytes, for decoders that look away."""
    alphabet = (string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_").encode()
    assert len(text) % 4 in {2, 3}, "it has no bits to spare"
    tail = bytes([alphabet[alphabet.index(text[-1:]) + 1]])
    same = base64.urlsafe_b64decode(text[:-1] + tail + b"==")
    assert same == base64.urlsafe_b64decode(text + b"==")
    return text[:-1] + tail


LONGER = base64.urlsafe_b64encode(changed(b"u-1", b"u-12")).rstrip(b"=")

OTHER_TOKENS = {
    "empty": b"",
    "the prefix alone": b"sg1.",
    "another version": TOKEN.replace(b"sg1", b"sg2", 1),
    "capitals": TOKEN.replace(b"sg1", b"SG1", 1),
    "no prefix": TOKEN[4:],
    "three parts": b"sg1." + ENCODED + b"." + MAC,
    "five parts": TOKEN + b"." + MAC,
    "an empty part": b"sg1.k1.." + MAC,
    "no mac": b"sg1.k1." + ENCODED,
    "an empty mac": b"sg1.k1." + ENCODED + b".",
    "space before": b" " + TOKEN,
    "space behind": TOKEN + b" ",
    "a line's end": TOKEN + b"\n",
    "padding of the payload": resigned(ENCODED + b"="),
    "padding of the mac": TOKEN + b"=",
    "the standard alphabet": TOKEN[:-43] + b"+" * 43,
    "white space in the payload": resigned(ENCODED[:8] + b" " + ENCODED[8:]),
    "a line's end in the payload": resigned(ENCODED[:8] + b"\n" + ENCODED[8:]),
    "a letter beyond the alphabet": resigned(ENCODED[:8] + b"$" + ENCODED[8:]),
    "a letter beyond ASCII": resigned(ENCODED[:8] + b"\xe9" + ENCODED[8:]),
    "bits behind the payload": resigned(with_tail_bits(LONGER)),
    "a length that base64 never has": resigned(ENCODED[: len(ENCODED) // 4 * 4 - 3]),
    "bits behind the mac": TOKEN[:-43] + with_tail_bits(MAC),
    "a short mac": TOKEN[:-1],
    "a long mac": TOKEN + b"A",
    "an empty kid": resigned(ENCODED, kid=b""),
    "a long kid": resigned(ENCODED, kid=b"k" * 33),
    "a kid with a slash": resigned(ENCODED, kid=b"k/1"),
    "longer than any head": resigned(base64.urlsafe_b64encode(b"x" * 9000)),
}


@pytest.mark.parametrize("token", OTHER_TOKENS.values(), ids=OTHER_TOKENS.keys())
def test_a_token_that_is_spelled_otherwise_is_refused(token: bytes) -> None:
    assert reason(token) == "malformed"


def test_the_payload_whose_tail_bits_are_clear_is_taken() -> None:
    assert capabilities().verify(resigned(LONGER)).uid == "u-12"


def test_another_kid_another_secret_and_another_namespace_s_key_sign_nothing() -> None:
    assert reason(spelled(PAYLOAD, kid="k2")) == "unknown_key"
    assert reason(spelled(PAYLOAD, secret=OTHER_SECRET)) == "bad_mac"
    assert reason(signed(TOKEN.rpartition(b".")[0], namespace=b"other")) == "bad_mac"
    both = capabilities(k1=SECRET, k2=OTHER_SECRET)
    assert reason(spelled(PAYLOAD, kid="k2"), both) == "bad_mac"
    assert both.verify(spelled(PAYLOAD, kid="k2", secret=OTHER_SECRET)) == FULL


def test_a_token_for_another_audience_is_refused() -> None:
    assert reason(spelled(changed(b"sandgate", b"sandgatf"))) == "other_audience"


@pytest.mark.parametrize("seconds", [-0.5, 0.0, 599.9])
def test_a_token_is_good_until_the_second_of_its_end(seconds: float) -> None:
    assert capabilities(Clock(NOW + seconds)).verify(TOKEN) == FULL


@pytest.mark.parametrize("seconds", [600.0, 600.5, 10**9])
def test_a_token_is_void_from_its_end_on_without_leeway(seconds: float) -> None:
    assert reason(TOKEN, capabilities(Clock(NOW + seconds))) == "expired"


def test_the_beginning_has_leeway_for_a_clock_that_is_behind() -> None:
    early = Clock(NOW - NOT_BEFORE_LEEWAY_SECONDS)
    assert capabilities(early).verify(TOKEN) == FULL
    early.now -= 1
    assert reason(TOKEN, capabilities(early)) == "not_yet_valid"


def test_a_remembered_token_ends_at_its_end_and_is_forgotten_then() -> None:
    clock = Clock()
    tokens = capabilities(clock)
    assert tokens.verify(TOKEN) is tokens.verify(bytes(bytearray(TOKEN)))
    clock.now += 600
    assert reason(TOKEN, tokens) == "expired"
    assert repr(tokens) == "<Capabilities 1 keys, 0 remembered>"


def test_what_was_verified_with_a_removed_key_counts_no_more() -> None:
    tokens = capabilities(k1=SECRET)
    tokens.verify(TOKEN)
    tokens.replace_keys(KeySet({"k2": OTHER_SECRET}, signing="k2"))
    assert reason(TOKEN, tokens) == "unknown_key"
    tokens.replace_keys(KeySet({"k1": OTHER_SECRET}, signing="k1"))
    assert reason(TOKEN, tokens) == "bad_mac"
    tokens.replace_keys(KeySet({"k2": OTHER_SECRET, "k1": SECRET}, signing="k2"))
    assert tokens.verify(TOKEN) == FULL
    assert tokens.sign(FULL).startswith("sg1.k2.")


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    tokens = capabilities()
    signed = [
        tokens.sign(FULL._replace(sandbox=Label(f"sb-{number}"))).encode()
        for number in range(REMEMBERED_TOKENS + 10)
    ]
    for text in signed:
        tokens.verify(text)
    assert list(tokens._verified) == signed[10:]
    assert tokens.verify(signed[0]).sandbox == "sb-0"


def test_who_makes_tokens_and_namespaces_up_fills_no_memory() -> None:
    tokens = capabilities()
    for number in range(REMEMBERED_KEYS + 10):
        assert reason(spelled(changed(b"default", b"ns-%d" % number)), tokens) == "bad_mac"
        assert len(tokens._derived) <= REMEMBERED_KEYS
    assert not tokens._verified


def test_a_minted_token_lives_as_long_as_the_lease_and_at_most_an_hour() -> None:
    tokens = capabilities(Clock(NOW + 0.7))
    for lease, life in [(0.2, 0.3), (10, 10.3), (3600, 3600.3), (86400, MAX_LIFE_SECONDS + 0.3)]:
        end = datetime.fromtimestamp(NOW + 0.7 + lease, UTC)
        minted = tokens.mint(Lease(expires_at=end))
        said = tokens.verify(minted.token.encode())
        # Whole seconds, rounded up: a token must not end before its lease.
        assert said.expires_at == minted.expires_at.timestamp() == NOW + 0.7 + life
        assert said.not_before == NOW


def test_a_minted_token_says_what_its_claim_is() -> None:
    tokens = capabilities()
    minted = tokens.mint(Lease(ports=(Port(80), Port(8888))))
    assert tokens.verify(minted.token.encode()) == FULL
    assert tokens.verify(tokens.mint(Lease()).token.encode()).ports is None


def test_no_secret_and_no_token_is_in_a_repr() -> None:
    tokens = capabilities()
    minted = tokens.mint(Lease())
    tokens.verify(minted.token.encode())
    keys = KeySet({"k1": SECRET}, signing="k1")
    shown = repr((tokens, minted, keys, InvalidToken("bad_mac")))
    assert "sssss" not in shown
    assert minted.token[-20:] not in shown


def test_without_keys_nothing_is_minted_and_nothing_is_valid() -> None:
    assert NoTokens().mint(Lease()) is None
    with pytest.raises(Unauthenticated):
        NoTokens().verify(TOKEN)


def test_keys_are_derived_as_the_rfc_has_it() -> None:
    # RFC 5869, appendix A.3: no salt, no info.
    derived = derive_key(b"\x0b" * 22, b"")
    assert derived.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def test_every_one_bit_flip_of_a_token_is_refused() -> None:
    tokens = capabilities()
    tokens.verify(TOKEN)
    count = 0
    for place in range(len(TOKEN)):
        for bit in range(8):
            flipped = bytearray(TOKEN)
            flipped[place] ^= 1 << bit
            reason(bytes(flipped), tokens)
            count += 1
    assert count == len(TOKEN) * 8
    assert tokens.verify(TOKEN) == FULL


def test_no_forged_token_passes() -> None:
    tokens = capabilities(k1=SECRET, k2=OTHER_SECRET)
    reasons = dict.fromkeys(["malformed", "unknown_key", "bad_mac"], 0)
    for forged in forgeries(random.Random(SEED), EXAMPLES):
        with pytest.raises(Unauthenticated) as caught:
            tokens.verify(forged)
        assert isinstance(caught.value, InvalidToken)
        reasons[caught.value.reason] += 1
    # Enough of each kind, or the generator would show little.
    assert min(reasons.values()) > EXAMPLES // 50, reasons


def forgeries(chance: random.Random, count: int) -> Iterator[bytes]:
    """Yield tokens that somebody without a secret could write."""
    tokens = capabilities(k1=SECRET, k2=OTHER_SECRET)
    known = [
        tokens.sign(FULL._replace(sandbox=Label(f"sb-{number}"), expires_at=NOW + 9000)).encode()
        for number in range(50)
    ]
    kinds: list[Callable[[], bytes]] = [
        lambda: _with_other_payload(chance, known),
        lambda: _with_other_mac(chance, known),
        lambda: _with_own_key(chance),
        lambda: _mutated(chance, chance.choice(known)),
        lambda: _crossed(chance, known),
        lambda: b"sg1." + chance.randbytes(chance.randrange(300)),
    ]
    for _ in range(count):
        forged = chance.choice(kinds)()
        while forged in known:
            forged = _mutated(chance, forged)
        yield forged


def _said(chance: random.Random) -> Capability:
    return FULL._replace(
        namespace=Label(chance.choice(["default", "team", "a"])),
        sandbox=Label(f"sb-{chance.randrange(10**6)}"),
        uid=chance.choice([None, "u-1", f"u-{chance.randrange(100)}"]),
        ports=chance.choice([None, (), (Port(8888),)]),
        expires_at=NOW + chance.randrange(1, 10**6),
    )


def _with_other_payload(chance: random.Random, known: list[bytes]) -> bytes:
    """Keep a good token's key and MAC, and say something else."""
    version, kid, _, mac = chance.choice(known).split(b".")
    return b".".join((version, kid, base64url.encode(build_payload(_said(chance))), mac))


def _with_other_mac(chance: random.Random, known: list[bytes]) -> bytes:
    signed_part = chance.choice(known).rpartition(b".")[0]
    guess = chance.choice([chance.randbytes(32), bytes(32), hashlib.sha256(signed_part).digest()])
    return signed_part + b"." + base64url.encode(guess)


def _with_own_key(chance: random.Random) -> bytes:
    """Sign rightly, with a secret of one's own."""
    kid = chance.choice(["k1", "k2", "k3", "", "k" * 32])
    guess = chance.choice([chance.randbytes(32), bytes(32), b"", kid.encode()])
    return spelled(build_payload(_said(chance)), kid=kid, secret=guess)


def _crossed(chance: random.Random, known: list[bytes]) -> bytes:
    """Put parts of good tokens together."""
    parts = [chance.choice(known).split(b".") for _ in range(4)]
    return b".".join(part[number] for number, part in enumerate(parts))


def _mutated(chance: random.Random, token: bytes) -> bytes:
    text = bytearray(token)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(text) or 1)
        kind = chance.randrange(4)
        if kind == 0:
            text[place : place + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            text.insert(place, chance.choice(b"AQgw_-.=kz09"))
        elif kind == 2:
            del text[place : place + chance.randrange(1, 5)]
        else:
            text[place : place + 1] = bytes([chance.choice(b"AQgw_-.=kz09")])
    return bytes(text)


def test_a_token_s_parts_can_be_read_without_its_key() -> None:
    assert parse_token(TOKEN) == ("k1", FULL)
