"""What the runtime refuses, and how it says so.

One shape under `/v1`: `{code, message, reason, path?}`. `code` is the coarse class that
sandbox daemons share, `reason` the precise one that clients turn into typed exceptions. The
legacy routes keep their own bodies and take only the status and the message from here.
"""

from typing import ClassVar


class Refusal(Exception):
    """An answer other than success; nothing was run and nothing was changed."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, path: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        """The path that the request named, as it was sent; None where none is at fault."""

    def body(self) -> dict[str, object]:
        """Return the members of the answer."""
        body: dict[str, object] = {
            "code": self.code,
            "message": self.message,
            "reason": self.reason,
        }
        if self.path is not None:
            body["path"] = self.path
        return body


class MalformedJson(Refusal):
    """The body claims to be JSON and is not."""

    status, code, reason = 400, "INVALID_ARGUMENT", "malformed_json"


class MalformedForm(Refusal):
    """The body claims to be multipart/form-data and is not, or is beyond its limits."""

    status, code, reason = 400, "INVALID_ARGUMENT", "malformed_form"


class BadPath(Refusal):
    """No file system could have such a path: NUL, too long, or links in a circle."""

    status, code, reason = 400, "INVALID_ARGUMENT", "invalid_path"


class AccessDenied(Refusal):
    """The path leads out of the base directory, or to something that is no regular file."""

    status, code, reason = 403, "PERMISSION_DENIED", "permission_denied"


class BrowserRefused(Refusal):
    """A web page asks; a page must not run code through the loopback address."""

    status, code, reason = 403, "PERMISSION_DENIED", "browser_refused"


class NotFound(Refusal):
    """The runtime has no such route."""

    status, code, reason = 404, "NOT_FOUND", "not_found"


class ProcessNotFound(Refusal):
    """No process has this id, or it was forgotten."""

    status, code, reason = 404, "NOT_FOUND", "process_not_found"


class ProcessEnded(Refusal):
    """The process has ended, so it can be told nothing any more."""

    status, code, reason = 409, "FAILED_PRECONDITION", "process_ended"


class NoTerminal(Refusal):
    """The process was started without a terminal."""

    status, code, reason = 409, "FAILED_PRECONDITION", "no_terminal"


class StdinClosed(Refusal):
    """The process takes no input, or has got the end of it."""

    status, code, reason = 409, "FAILED_PRECONDITION", "stdin_closed"


class OutcomeUnknown(Refusal):
    """The key was used for a process that this runtime no longer knows: it may have run."""

    status, code, reason = 409, "CONFLICT", "outcome_unknown"


class OutOfWindow(Refusal):
    """The events that were asked for are not kept any more."""

    status, code, reason = 410, "OUT_OF_RANGE", "events_gone"

    def __init__(self, message: str, *, first_id: int) -> None:
        super().__init__(message)
        self.first_id = first_id

    def body(self) -> dict[str, object]:
        """Return the members of the answer, with the first event that is left."""
        return {**super().body(), "first_id": self.first_id}


class ContentTooLarge(Refusal):
    """The body is above its limit."""

    status, code, reason = 413, "RESOURCE_EXHAUSTED", "content_too_large"


class UnsupportedMediaType(Refusal):
    """The body is not of the type that the route reads."""

    status, code, reason = 415, "INVALID_ARGUMENT", "unsupported_media_type"


class SandboxReplaced(Refusal):
    """The request was meant for another sandbox (RFC 9110 section 15.5.20)."""

    status, code, reason = 421, "FAILED_PRECONDITION", "sandbox_replaced"


class InvalidRequest(Refusal):
    """Well-formed JSON with the wrong content."""

    status, code, reason = 422, "INVALID_ARGUMENT", "invalid_request"


class ArgumentTooLong(InvalidRequest):
    """The kernel takes no argument of this length, and it is no script to hand over by file."""

    reason = "argument_too_long"


class BadWorkingDirectory(InvalidRequest):
    """The command's working directory cannot be entered."""

    reason = "invalid_cwd"


class IdempotencyKeyReused(InvalidRequest):
    """The key came with another request before."""

    reason = "idempotency_key_reused"


class ProcessLimit(Refusal):
    """The sandbox has as many processes as it may have."""

    status, code, reason = 429, "RESOURCE_EXHAUSTED", "process_limit"


class TooManyRequests(Refusal):
    """The runtime serves as many requests as it may."""

    status, code, reason = 429, "RESOURCE_EXHAUSTED", "too_many_requests"


class StateUnavailable(Refusal):
    """The state directory cannot be written, so a command that must run once does not run."""

    status, code, reason = 503, "UNAVAILABLE", "state_unavailable"


class ShuttingDown(Refusal):
    """The runtime is about to end and starts nothing more."""

    status, code, reason = 503, "UNAVAILABLE", "shutting_down"
