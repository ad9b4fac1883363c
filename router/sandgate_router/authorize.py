"""May this caller use the relay: decided before any look-up, query or dial.

The answer is the same for sandboxes that exist and that do not, so a stranger learns nothing
by guessing names.
"""

import hmac
from typing import Protocol

from sandgate_router.errors import Unauthenticated
from sandgate_router.head import RequestHead


class Authorizer(Protocol):
    """Lets a request pass or raises what the client is told."""

    def check(self, head: RequestHead) -> bytes | None:
        """Return the Authorization value that was ours; raise Unauthenticated or Forbidden."""


class Anyone:
    """Nobody is asked: for loopback listeners, and where the network is the wall."""

    def check(self, head: RequestHead) -> bytes | None:
        """Let everything pass."""
        del head
        return None


class SharedToken:
    """One bearer token for all callers, as the routers that clients know have it."""

    def __init__(self, token: str) -> None:
        self._token = token.encode("ascii")
        self._accepted: bytes | None = None
        """The value that was accepted last: clients write it in one way."""

    def __repr__(self) -> str:
        return "<SharedToken>"

    def check(self, head: RequestHead) -> bytes | None:
        """Let `Authorization: Bearer <token>` pass; compare in constant time."""
        value = head.values.get(b"authorization")
        if value is None or b"authorization" in head.repeated:
            raise Unauthenticated
        if self._accepted is not None and hmac.compare_digest(value, self._accepted):
            return value
        parts = value.split()
        if len(parts) != 2 or parts[0].lower() != b"bearer":
            raise Unauthenticated
        if not hmac.compare_digest(parts[1], self._token):
            raise Unauthenticated
        self._accepted = value
        return value
