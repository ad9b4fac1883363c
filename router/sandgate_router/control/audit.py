"""The audit: one line for each claim, renewal and release, and lines that count refusals.

Who it was, which claim, and why. Never a token, a query or a body: names alone, which were
checked before.
"""

import asyncio
import logging
from typing import Literal

from sandgate_router.control.rights import Rights
from sandgate_router.errors import GatewayError
from sandgate_router.registry.base import Claim

log = logging.getLogger("sandgate.audit")

REFUSAL_SECONDS = 1.0
"""How often refusals of one kind are noted at most."""


def audit_claim(claim: Claim) -> None:
    """Note a claim that was made."""
    log.info(
        "claim.created",
        extra={
            "caller": claim.caller,
            "namespace": claim.namespace,
            "claim": claim.name,
            "pool": claim.pool,
        },
    )


def audit_change(
    event: Literal["claim.renewed", "claim.released", "release.ignored"],
    rights: Rights,
    *,
    namespace: str,
    claim: str,
    reason: str | None = None,
) -> None:
    """Note what was done to a claim, or that a release did nothing and why."""
    log.info(event, extra=_who(rights) | {"namespace": namespace, "claim": claim, "reason": reason})


def audit_resize(rights: Rights, *, namespace: str, pool: str) -> None:
    """Note that a pool has another size."""
    log.info("pool.resized", extra=_who(rights) | {"namespace": namespace, "pool": pool})


class Refusals:
    """Notes refusals: of one caller and reason a line a second at most, which counts them.

    A stranger who is refused thousands of times a second must neither fill the log nor push
    others out of it. The first is noted at once; those of the second behind it by one line,
    with what the last of them asked for.
    """

    def __init__(self) -> None:
        self._held: dict[_Kind, _Held] = {}

    def note(
        self,
        error: GatewayError,
        rights: Rights | None,
        *,
        method: str,
        route: str,
        names: dict[str, str],
        peer: str | None,
    ) -> None:
        """Note a request that was refused; called in the loop.

        Args:
            error: what it is told.
            rights: those behind it; None where they were not recognized.
            method: its method.
            route: the pattern of its path, and not the path itself.
            names: what stood in the path's places.
            peer: the address it came from.
        """
        fields = {
            **({"caller": None, "by": None} if rights is None else _who(rights)),
            **{name: value[:_SHOWN] for name, value in names.items()},
            "method": method,
            "route": route,
            "peer": peer,
            "reason": error.code,
        }
        kind = (error.code, fields["caller"])
        held = self._held.get(kind)
        if held is None:
            self._write(kind, fields, count=1)
        else:
            held.fields = fields
            held.count += 1

    def _write(self, kind: "_Kind", fields: dict[str, str | None], *, count: int) -> None:
        log.info("request.refused", extra={**fields, "count": count})
        self._held[kind] = _Held()
        asyncio.get_running_loop().call_later(REFUSAL_SECONDS, self._release, kind)

    def _release(self, kind: "_Kind") -> None:
        held = self._held.pop(kind)
        if held.count:
            self._write(kind, held.fields, count=held.count)


_Kind = tuple[str, str | None]
"""The code of a refusal, and the caller: both from closed sets."""


class _Held:
    """Refusals of one kind that wait for their line."""

    def __init__(self) -> None:
        self.fields: dict[str, str | None] = {}
        self.count = 0


_SHOWN = 63
"""Characters of a name that was not checked: a label has no more."""


def _who(rights: Rights) -> dict[str, str | None]:
    return {
        "caller": rights.caller,
        "by": "token" if rights.caller else "capability" if rights.capability else "anyone",
    }
