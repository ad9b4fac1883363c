"""Who sent a request to the control API: decided from its head, before anything is parsed.

A caller's token or a claim's capability; nobody is asked on the loopback listener of one
machine without callers, and there no web page may call. What is wrong with a credential is
never told apart: the answer is the same 401.
"""

from typing import Protocol

from starlette.requests import Request

from sandgate_router.access import check_local
from sandgate_router.callers import Caller
from sandgate_router.capability import Tokens
from sandgate_router.control.rights import (
    EVERYTHING,
    Rights,
    rights_of_caller,
    rights_of_holder,
)
from sandgate_router.errors import NotAllowedHere, Unauthenticated

CAPABILITY_PREFIX = b"sg1."

_NO_CALLERS = (
    "The control API needs SANDGATE_CALLERS here: only `sandgate up` on a loopback address asks"
    " for no token."
)


class KnownCallers(Protocol):
    """Whose tokens there are."""

    def find(self, token: bytes) -> Caller | None:
        """Return whose token this is; None if nobody's."""


class Gate:
    """Lets requests in, each with its rights."""

    def __init__(self, *, callers: KnownCallers | None, tokens: Tokens, loopback: bool) -> None:
        """Decide once what is asked for.

        Args:
            callers: who has tokens; None where there is no file of callers.
            tokens: what verifies capabilities.
            loopback: whether this machine alone can connect, and may without a token.
        """
        self._callers = callers
        self._tokens = tokens
        self._asks_nobody = loopback and callers is None

    def admit(self, request: Request) -> Rights:
        """Return the rights of the request; raise Unauthenticated or NotAllowedHere."""
        if self._asks_nobody:
            origins = _lines(request, b"origin")
            check_local(
                b", ".join(_lines(request, b"host")) or None,
                b", ".join(origins) if origins else None,
            )
            return EVERYTHING
        token = _parse_capability(request)
        if token is not None:
            return rights_of_holder(self._tokens.verify(token))
        if self._callers is None:
            raise NotAllowedHere(_NO_CALLERS)
        caller = self._callers.find(_parse_bearer(_lines(request, b"authorization")))
        if caller is None:
            raise Unauthenticated
        return rights_of_caller(caller)


def _parse_capability(request: Request) -> bytes | None:
    """Return the capability that was sent, verified by nobody yet; None without any."""
    lines = _lines(request, b"x-sandbox-token")
    if lines:  # decides, whatever Authorization says
        if len(lines) > 1:
            raise Unauthenticated
        return lines[0]
    lines = _lines(request, b"authorization")
    bearer = _parse_bearer(lines) if len(lines) == 1 else b""
    return bearer if bearer.startswith(CAPABILITY_PREFIX) else None


def _parse_bearer(lines: list[bytes]) -> bytes:
    """Return the token of `Authorization: Bearer <token>` (RFC 6750 section 2.1)."""
    parts = lines[0].split() if len(lines) == 1 else []
    if len(parts) != 2 or parts[0].lower() != b"bearer":
        raise Unauthenticated
    return parts[1]


def _lines(request: Request, name: bytes) -> list[bytes]:
    return [value for field, value in request.headers.raw if field == name]
