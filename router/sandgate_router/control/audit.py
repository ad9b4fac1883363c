"""The audit: one line for each claim, renewal, release and refusal.

Who it was, which claim, and why. Never a token, a query or a body: names alone, which were
checked before.
"""

import logging
from typing import Literal

from sandgate_router.control.rights import Rights
from sandgate_router.errors import GatewayError
from sandgate_router.registry.base import Claim

log = logging.getLogger("sandgate.audit")


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


def audit_refusal(
    error: GatewayError,
    rights: Rights | None,
    *,
    method: str,
    route: str,
    names: dict[str, str],
    peer: str | None,
) -> None:
    """Note a request that was refused.

    Args:
        error: what it is told.
        rights: those behind it; None where they were not recognized.
        method: its method.
        route: the pattern of its path, and not the path itself.
        names: what stood in the path's places.
        peer: the address it came from.
    """
    log.info(
        "request.refused",
        extra={
            **({"caller": None, "by": None} if rights is None else _who(rights)),
            **{name: value[:_SHOWN] for name, value in names.items()},
            "method": method,
            "route": route,
            "peer": peer,
            "reason": error.code,
        },
    )


_SHOWN = 63
"""Characters of a name that was not checked: a label has no more."""


def _who(rights: Rights) -> dict[str, str | None]:
    return {
        "caller": rights.caller,
        "by": "token" if rights.caller else "capability" if rights.capability else "anyone",
    }
