"""What a claim's conditions mean to who waits for it. Pure.

The reasons are the controller's words. Some will not change, whatever one waits; of the rest
the controller is still at work. Its messages name objects and rules of the cluster, so a client
is told the reason alone.
"""

import re
from typing import Literal

from sandgate_router.errors import (
    GatewayError,
    InvalidRequest,
    PoolExhausted,
    PoolNotFound,
    QuotaExceeded,
    RegistryUnavailable,
    SandboxNotReady,
)
from sandgate_router.kube.errors import Denied, KubeError, NotFound, Refused
from sandgate_router.registry.kubernetes.objects import ClaimObject

State = Literal["pending", "ready", "failed"]

LASTING = frozenset(
    {
        "InvalidMetadata",
        "EnvVarsInjectionRejected",
        "VolumeClaimTemplatesError",
        "ClaimExpired",
        "SandboxExpired",
        "TemplateNotFound",
        "WarmPoolNotFound",
        "PodSucceeded",
        "PodFailed",
    }
)
"""Reasons that end the wait: what the project's own client gives up on, and a pod's end."""

_NOT_FOUND = frozenset({"TemplateNotFound", "WarmPoolNotFound"})
_REFUSED = frozenset({"InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError"})
_REASON = re.compile("[A-Za-z]{1,64}")


def judge(claim: ClaimObject) -> State:
    """Tell how far a claim is."""
    if claim.is_finished or (claim.reason in LASTING and not claim.is_ready):
        return "failed"
    if claim.reason == "SandboxMissing":
        return "failed"  # it had one, which is gone; the controller makes no other
    return "ready" if claim.is_ready and claim.sandbox else "pending"


def build_failure(claim: ClaimObject) -> GatewayError:
    """Return what is answered for a claim that failed while one waited."""
    reason = shown_reason(claim.reason)
    if claim.reason in _NOT_FOUND:
        return PoolNotFound(f"{PoolNotFound.detail} ({reason})")
    if claim.reason in _REFUSED:
        return InvalidRequest(f"The cluster refuses the claim ({reason}).")
    return SandboxNotReady(f"The sandbox ended before it was ready ({reason}).")


def build_timeout(claim: ClaimObject | None, *, retry_after: int) -> PoolExhausted:
    """Return what is answered when the wait is over."""
    reason = "" if claim is None else shown_reason(claim.reason)
    said = f" The last reason was {reason}." if reason else ""
    return PoolExhausted(
        f"No sandbox of the pool became ready in time.{said}", retry_after=retry_after
    )


def build_refusal(error: KubeError) -> GatewayError:
    """Return what is answered when the API refused or did not answer."""
    if isinstance(error, Denied):
        if "exceeded quota" in error.message:
            return QuotaExceeded()
        return RegistryUnavailable("The gateway may not do that in the cluster.", retry_after=30)
    if isinstance(error, NotFound):
        return PoolNotFound()
    if isinstance(error, Refused) and error.code in {400, 422}:
        return InvalidRequest("The cluster refuses the claim.")
    after = error.retry_after if isinstance(error, Refused) else None
    return RegistryUnavailable(
        "The Kubernetes API does not answer.", retry_after=max(1, int(after or 1))
    )


def shown_reason(reason: str) -> str:
    """Return a reason that is one of the API's words; empty for anything else."""
    return reason if _REASON.fullmatch(reason) else ""
