"""Who refused, and what that means: an answer that is no success becomes a typed error.

Only an answer with X-Sandbox-Error is the gateway's; the gateway removes that field from what
sandboxes send. Any other is the sandbox's own word, which must never be mistaken for the
gateway's: a 404 of a program inside does not mean that the sandbox is gone.
"""

import json
from typing import cast, get_args

from sandgate._wire.codes import class_for_code
from sandgate._wire.members import Members, excerpt
from sandgate._wire.message import IDEMPOTENT_METHODS, Reply
from sandgate.errors import (
    ClaimNotFound,
    EventsGone,
    Forbidden,
    InvalidRequest,
    NotAllowedHere,
    OutcomeUnknown,
    PoolNotFound,
    ProcessEnded,
    ProcessNotFound,
    Reached,
    SandboxNotFound,
    SandboxRefused,
    SandboxReplaced,
    SandboxUnreachable,
    SandgateError,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnexpectedAnswer,
)

_RUNTIME_CLASSES: dict[str, type[SandgateError]] = {
    "outcome_unknown": OutcomeUnknown,
    "sandbox_replaced": SandboxReplaced,
    "process_not_found": ProcessNotFound,
    "process_ended": ProcessEnded,
    "stdin_closed": ProcessEnded,
    "events_gone": EventsGone,
    "shutting_down": Unavailable,
    "state_unavailable": Unavailable,
    "INVALID_ARGUMENT": InvalidRequest,
    "RESOURCE_EXHAUSTED": TooManyRequests,
}
"""The runtime's `reason`, else its `code`, where the caller can tell what to do from it."""

_NEVER_PASSED_ON = (
    ClaimNotFound,
    Forbidden,
    NotAllowedHere,
    PoolNotFound,
    SandboxNotFound,
    SandboxUnreachable,
    Unauthenticated,
)
"""What a gateway says of a request before any sandbox sees it."""


def parse_refusal(reply: Reply, *, method: str) -> SandgateError:
    """Return the error that an answer other than a success stands for."""
    code = reply.field("x-sandbox-error")
    members = _members(reply.body)
    if code is not None:
        return _gateways(reply, members, code=code, method=method)
    message = members.get("message")
    if isinstance(message, str):
        return _sandboxes(reply, members, message=message, method=method)
    return UnexpectedAnswer(
        f"the answer {reply.status} is neither the gateway's nor the sandbox runtime's: "
        f"{excerpt(reply.body)}",
        status=reply.status,
        reached="unknown",
        retry_safe=method in IDEMPOTENT_METHODS,
        retry_after=_retry_after(reply),
    )


def _gateways(reply: Reply, members: Members, *, code: str, method: str) -> SandgateError:
    detail = members.get("detail")
    reached = members.get("reached")
    known = reached in get_args(Reached)
    retry_safe = members.get("retry_safe")
    if not isinstance(retry_safe, bool):
        retry_safe = (
            reached if known else _unsaid(code, method)
        ) == "no" or method in IDEMPOTENT_METHODS
    return class_for_code(code)(
        detail if isinstance(detail, str) else f"The gateway answered {reply.status} {code}.",
        code=code,
        status=reply.status,
        reached=cast(Reached, reached) if known else _unsaid(code, method),
        retry_safe=retry_safe,
        retry_after=_retry_after(reply),
    )


def _unsaid(code: str, method: str) -> Reached:
    """Return whether a sandbox was reached where no body says so."""
    # A gateway that does not say may have passed the request on; only a HEAD never has a body.
    if method == "HEAD" and issubclass(class_for_code(code), _NEVER_PASSED_ON):
        return "no"
    return "unknown"


def _sandboxes(reply: Reply, members: Members, *, message: str, method: str) -> SandgateError:
    names = [name for key in ("reason", "code") if isinstance(name := members.get(key), str)]
    known = (_RUNTIME_CLASSES[name] for name in names if name in _RUNTIME_CLASSES)
    error = next(known, SandboxRefused)(
        message,
        code=names[0].lower() if names else None,
        status=reply.status,
        reached="yes",
        retry_safe=method in IDEMPOTENT_METHODS,
        retry_after=_retry_after(reply),
    )
    first_id = members.get("first_id")
    if isinstance(error, EventsGone) and isinstance(first_id, int):
        error.first_id = first_id
    return error


def _members(body: bytes) -> Members:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _retry_after(reply: Reply) -> float | None:
    # The date form of RFC 9110 section 10.2.3 is left out: this gateway sends seconds.
    value = reply.field("retry-after")
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
