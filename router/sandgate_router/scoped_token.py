"""The scoped tokens of the router that clients know: `v1.<payload>.<sig>`, for one sandbox.

Pure. The payload is base64url of `{"ns": namespace, "name": sandbox, "exp": Unix seconds}`, the
signature HMAC-SHA256 of a prefix and the encoded payload. One secret signs for all namespaces,
and a token opens every port. We mint none; whoever has the secret may.

The signature is checked before anything is decoded, so what is read then was written by a
holder of the secret. A member that is unknown here is refused nevertheless: it might restrict
what we would grant.
"""

import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sandgate_router import base64url
from sandgate_router.capability import InvalidToken
from sandgate_router.config import BadConfig
from sandgate_router.names import Label, parse_label

MIN_SECRET_BYTES = 32
"""Shortest secret, as that router has it."""

MAX_TOKEN_BYTES = 1024
"""Longest token; with the longest names one has 290 bytes."""

REMEMBERED_TOKENS = 4096
"""Verified tokens at once. Beyond them the one that came first is verified anew."""

MAX_SECONDS = 10**11
"""Latest end of a token: the year 5138. Beyond it some slip of the unit is at work."""

_PREFIX = b"agent-sandbox/scoped-token/v1."
_MEMBERS = ["ns", "name", "exp"]


class ScopedToken(NamedTuple):
    """What a token says."""

    namespace: Label
    sandbox: Label
    expires_at: int
    """Unix seconds, from which on it is void."""


class ScopedTokens:
    """Verifies tokens that were signed with one secret."""

    def __init__(self, secret: bytes, *, now: Callable[[], float]) -> None:
        """Begin with nothing verified; `now` gives Unix seconds."""
        self._secret = secret
        self._now = now
        self._verified: dict[bytes, ScopedToken] = {}

    def __repr__(self) -> str:
        return f"<ScopedTokens {len(self._verified)} remembered>"

    def verify(self, token: bytes) -> ScopedToken:
        """Return what a valid token says; raise InvalidToken for any other."""
        known = self._verified.get(token)
        if known is None:
            known = self._verify_anew(token)
        elif self._now() >= known.expires_at:
            del self._verified[token]
            raise InvalidToken("expired")
        return known

    def _verify_anew(self, token: bytes) -> ScopedToken:
        parts = token.split(b".")
        if len(parts) != 3 or parts[0] != b"v1" or len(token) > MAX_TOKEN_BYTES:
            raise InvalidToken("malformed")
        signature = base64url.encode(hmac.digest(self._secret, _PREFIX + parts[1], "sha256"))
        # Spelled out on both sides: the bits behind its end cannot be set unseen.
        if not hmac.compare_digest(signature, parts[2]):
            raise InvalidToken("bad_mac")
        try:
            scoped = _parse_payload(base64url.decode(parts[1]))
        except (ValueError, RecursionError) as error:
            raise InvalidToken("malformed") from error
        if self._now() >= scoped.expires_at:
            raise InvalidToken("expired")
        if len(self._verified) >= REMEMBERED_TOKENS:
            del self._verified[next(iter(self._verified))]
        self._verified[token] = scoped
        return scoped


def load_scoped_secret(path: Path) -> bytes:
    """Read the secret, white space around it cut off; raise BadConfig."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise BadConfig([f"scoped token file {path} cannot be read: {error}"]) from error
    if len(secret) < MIN_SECRET_BYTES:
        fault = f"has {len(secret)} bytes, and {MIN_SECRET_BYTES} are the least"
        raise BadConfig([f"scoped token file {path} {fault}"])
    return secret


def _parse_payload(payload: bytes) -> ScopedToken:
    pairs = json.loads(payload.decode("utf-8"), object_pairs_hook=lambda pairs: pairs)
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise ValueError("is no JSON object")
    if sorted(name for name, _ in pairs) != sorted(_MEMBERS):
        raise ValueError("has not exactly the members ns, name and exp")
    members = dict(pairs)
    expires_at = members["exp"]
    if type(expires_at) is not int or not 0 <= expires_at < MAX_SECONDS:
        raise ValueError("has an end that is no Unix time")
    return ScopedToken(_label(members["ns"]), _label(members["name"]), expires_at)


def _label(value: object) -> Label:
    return parse_label(value.encode("utf-8") if isinstance(value, str) else b"")
