"""Capabilities: tokens that prove a claim, checked without asking anyone.

Pure: bytes and keys in, checked values out; the time comes from a clock argument. How a token
is spelled is `capability_text`'s.

    mac = base64url of HMAC-SHA256 over all before the token's last dot
    key = HKDF-SHA256 (RFC 5869) of the secret that its `kid` names, one for each namespace

Everything wrong is one and the same 401: whoever forges learns nothing from the answer. The
reason is for our own log and metrics.

What was verified is remembered until it expires, so a token's second check is one look-up.
Measured with timeit on Python 3.11: 0.3 µs where the token is remembered, 14 µs where it is not.
"""

import hmac
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, Protocol

from sandgate_router import base64url
from sandgate_router.capability_text import (
    MAX_TOKEN_BYTES,
    SCOPES,
    Capability,
    build_payload,
    parse_token,
)
from sandgate_router.errors import Unauthenticated
from sandgate_router.names import Label, Port

Reason = Literal[
    "missing", "malformed", "unknown_key", "bad_mac", "other_audience", "expired", "not_yet_valid"
]
"""Why a credential was refused."""

MAX_LIFE_SECONDS = 3600
"""Longest life of a claim's token, whatever its lease: one that leaks is not good for long."""

NOT_BEFORE_LEEWAY_SECONDS = 30
"""How far another gateway's clock may be ahead of ours. The end has no leeway: there a clock
that is wrong would lengthen what somebody may do."""

REMEMBERED_TOKENS = 16_384
"""Verified tokens at once, at 1 KiB each. Beyond them the one that came first is verified anew."""

REMEMBERED_KEYS = 4096
"""Derived keys at once, one for each namespace and kid: 110 bytes each."""

MIN_SECRET_BYTES = 32
"""Shortest secret: as long as the hash, so that guessing it is no shorter way."""

_INFO = b"sandgate/capability/v1\x00"
_KID = re.compile(r"[A-Za-z0-9_-]{1,32}")


class InvalidToken(Unauthenticated):
    """A token that is none, or counts no more; answered like a missing one."""

    def __init__(self, reason: Reason) -> None:
        super().__init__()
        self.reason: Reason = reason


class Claimed(Protocol):
    """What a token is made from: a claim, whoever keeps it."""

    @property
    def namespace(self) -> Label: ...
    @property
    def name(self) -> Label: ...
    @property
    def sandbox(self) -> Label: ...
    @property
    def uid(self) -> str: ...
    @property
    def ports(self) -> tuple[Port, ...] | None: ...
    @property
    def expires_at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class MintedToken:
    """A token, and when it ends."""

    token: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class KeySet:
    """Secrets by kid: all of them verify, one signs."""

    secrets: Mapping[str, bytes] = field(repr=False)
    signing: str


class Tokens(Protocol):
    """Mints tokens of claims, and verifies them."""

    def mint(self, claim: Claimed) -> MintedToken | None:
        """Return a token of the claim; None where tokens are not in use."""

    def verify(self, token: bytes) -> Capability:
        """Return what a valid token says; raise InvalidToken for any other."""


class NoTokens:
    """Where no key is configured."""

    def mint(self, claim: Claimed) -> MintedToken | None:
        """Return None."""
        del claim
        return None

    def verify(self, token: bytes) -> Capability:
        """Refuse every token."""
        del token
        raise InvalidToken("unknown_key")


class Capabilities:
    """Mints and verifies under one set of keys, for one audience."""

    def __init__(self, keys: KeySet, *, audience: str, now: Callable[[], float]) -> None:
        """Begin with nothing verified; `now` gives Unix seconds."""
        self._keys = keys
        self._audience = audience
        self._now = now
        self._derived: dict[tuple[str, str], bytes] = {}
        self._verified: dict[bytes, Capability] = {}

    def __repr__(self) -> str:
        return f"<Capabilities {len(self._keys.secrets)} keys, {len(self._verified)} remembered>"

    def replace_keys(self, keys: KeySet) -> None:
        """Use other keys from now on; what was verified with a removed one counts no more."""
        self._keys = keys
        self._derived.clear()
        self._verified.clear()

    def mint(self, claim: Claimed) -> MintedToken:
        """Return a token for all that the claim allows, until its lease ends or for an hour."""
        now = self._now()
        expires_at = math.ceil(min(claim.expires_at.timestamp(), now + MAX_LIFE_SECONDS))
        token = self.sign(
            Capability(
                audience=self._audience,
                namespace=claim.namespace,
                claim=claim.name,
                sandbox=claim.sandbox,
                uid=claim.uid,
                ports=claim.ports,
                scopes=SCOPES,
                not_before=int(now),
                expires_at=expires_at,
            )
        )
        return MintedToken(token, datetime.fromtimestamp(expires_at, UTC))

    def sign(self, capability: Capability) -> str:
        """Return the token that says this; raise ValueError where no token can say it."""
        payload = build_payload(capability)
        kid = self._keys.signing
        signed = b"sg1.%b.%b" % (kid.encode("ascii"), base64url.encode(payload))
        token = b"%b.%b" % (signed, self._mac(kid, capability.namespace, signed))
        if len(token) > MAX_TOKEN_BYTES:
            raise ValueError(f"the token would have {len(token)} bytes; name fewer ports")
        return token.decode("ascii")

    def verify(self, token: bytes) -> Capability:
        """Return what a valid token says; raise InvalidToken for any other."""
        # Found by its hash, so how long it takes says nothing about how near a guess came.
        known = self._verified.get(token)
        if known is None:
            return self._verify_anew(token)
        if self._now() >= known.expires_at:
            del self._verified[token]
            raise InvalidToken("expired")
        return known

    def _verify_anew(self, token: bytes) -> Capability:
        try:
            kid, capability = parse_token(token)
        except ValueError as error:
            raise InvalidToken("malformed") from error
        signed, _, mac = token.rpartition(b".")
        if kid not in self._keys.secrets:
            raise InvalidToken("unknown_key")
        if not hmac.compare_digest(self._mac(kid, capability.namespace, signed), mac):
            raise InvalidToken("bad_mac")
        if capability.audience != self._audience:
            raise InvalidToken("other_audience")
        now = self._now()
        if now >= capability.expires_at:
            raise InvalidToken("expired")
        if now + NOT_BEFORE_LEEWAY_SECONDS < capability.not_before:
            raise InvalidToken("not_yet_valid")
        if len(self._verified) >= REMEMBERED_TOKENS:
            del self._verified[next(iter(self._verified))]
        self._verified[token] = capability
        return capability

    def _mac(self, kid: str, namespace: str, signed: bytes) -> bytes:
        return base64url.encode(hmac.digest(self._key(kid, namespace), signed, "sha256"))

    def _key(self, kid: str, namespace: str) -> bytes:
        place = (kid, namespace)
        key = self._derived.get(place)
        if key is None:
            if len(self._derived) >= REMEMBERED_KEYS:  # strangers may make namespaces up
                self._derived.clear()
            key = derive_key(self._keys.secrets[kid], _INFO + namespace.encode("ascii"))
            self._derived[place] = key
        return key


def derive_key(secret: bytes, info: bytes) -> bytes:
    """Return 32 bytes by HKDF-SHA256 with an empty salt (RFC 5869 section 2)."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def parse_kid(text: str) -> str:
    """Return `text` as the name of a key; raise ValueError."""
    if _KID.fullmatch(text) is None:
        raise ValueError("is not 1 to 32 of A-Z a-z 0-9 _ -")
    return text
