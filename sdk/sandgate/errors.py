"""What can go wrong, as types: made from the `code` of an answer, never from its text.

Each error says whether the sandbox may have seen the request (`reached`) and whether the same
call may be made again (`retry_safe`; it promises no success). Errors about files are also the
built-in ones, so code written for `open()` keeps working.
"""

import errno
import os
from typing import Literal

Reached = Literal["no", "unknown", "yes"]


class SandgateError(Exception):
    """Anything that this package raises about a gateway, a sandbox or a command."""

    default_code = "error"

    def __init__(
        self,
        detail: str = "",
        *,
        code: str | None = None,
        status: int | None = None,
        reached: Reached = "no",
        retry_safe: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = self.default_code if code is None else code
        """The machine-readable name of the failure."""
        self.status = status
        """The HTTP status that told of it; None when no answer came."""
        self.reached: Reached = reached
        """Whether the sandbox may have seen the request."""
        self.retry_safe = retry_safe
        self.retry_after = retry_after
        """Seconds after which another try makes sense; None when nothing was said."""

    def __str__(self) -> str:
        return self.detail or self.code


class GatewayUnreachable(SandgateError, ConnectionError):
    """The connection to the gateway could not be made, or broke before the answer was whole."""

    default_code = "gateway_unreachable"


class UnexpectedAnswer(SandgateError):
    """The answer is of no known shape: something else may listen there, or stand between."""

    default_code = "unexpected_answer"


class InvalidRequest(SandgateError):
    """The request is wrong as it stands; sending it again will not help."""

    default_code = "invalid_request"


class Unauthenticated(SandgateError):
    """No valid credential came with the request."""

    default_code = "unauthenticated"


class Forbidden(SandgateError):
    """The credential is valid, but not for this."""

    default_code = "forbidden"


class NotAllowedHere(SandgateError):
    """This gateway serves this to nobody; the detail says why."""

    default_code = "not_allowed_here"


class NotFound(SandgateError):
    """What the request names does not exist."""

    default_code = "not_found"


class SandboxNotFound(NotFound):
    """No live sandbox has this id: it was released, its lease ended, or it never was."""

    default_code = "sandbox_not_found"


class SandboxReplaced(SandboxNotFound):
    """The name belongs to another generation of the sandbox by now."""

    default_code = "sandbox_replaced"


class ClaimNotFound(NotFound):
    """No live claim has this name."""

    default_code = "claim_not_found"


class SandboxFailed(NotFound):
    """The claim is there, and its sandbox died; the message says of what."""

    default_code = "sandbox_failed"


class PoolNotFound(NotFound):
    """No pool has this name."""

    default_code = "pool_not_found"


class RequestTimedOut(SandgateError):
    """The gateway gave up waiting for the rest of the request."""

    default_code = "request_timeout"


class ClaimExists(SandgateError):
    """A live claim has the wanted name."""

    default_code = "claim_exists"


class TooManyRequests(SandgateError):
    """A limit on requests under way is reached."""

    default_code = "too_many_requests"


class QuotaExceeded(TooManyRequests):
    """The namespace holds as many claims as it may."""

    default_code = "quota_exceeded"


class NotSupported(SandgateError):
    """This gateway or its registry does not offer this."""

    default_code = "not_implemented"


class GatewayFault(SandgateError):
    """A fault of the gateway itself."""

    default_code = "internal_error"


class Unavailable(SandgateError):
    """Not now; `retry_after` says when another try makes sense."""

    default_code = "unavailable"


class SandboxNotReady(Unavailable):
    """The sandbox exists and does not serve yet."""

    default_code = "sandbox_not_ready"


class PoolExhausted(Unavailable):
    """No member of the pool became ready in time."""

    default_code = "pool_exhausted"


class SandboxUnreachable(SandgateError):
    """The gateway could not connect to the sandbox; no byte of the request has left."""

    default_code = "sandbox_unreachable"


class ConnectionRefused(SandboxUnreachable, ConnectionRefusedError):
    """Nothing listens on this port of the sandbox."""

    default_code = "connection_refused"


class OutcomeUnknown(SandgateError):
    """The sandbox may have done what was asked: the answer that would tell never came whole."""

    default_code = "outcome_unknown"


class UpstreamClosed(OutcomeUnknown):
    """The sandbox closed the connection before it answered."""

    default_code = "upstream_closed"


class UpstreamTimeout(OutcomeUnknown):
    """The sandbox did not answer in time."""

    default_code = "upstream_timeout"


class BadUpstreamResponse(OutcomeUnknown):
    """What the sandbox sent is no HTTP response."""

    default_code = "bad_upstream_response"


class SandboxRefused(SandgateError):
    """The server inside the sandbox refused the request; `detail` has its words."""

    default_code = "sandbox_refused"


class CommandTimeout(SandgateError, TimeoutError):
    """The command ran into its timeout and was killed; what it had printed is kept here."""

    default_code = "command_timeout"

    def __init__(
        self,
        detail: str = "",
        *,
        stdout: bytes = b"",
        stderr: bytes = b"",
        duration: float = 0.0,
    ) -> None:
        super().__init__(detail, reached="yes")
        self.stdout_bytes = stdout
        self.stderr_bytes = stderr
        self.stdout = stdout.decode(errors="replace")
        self.stderr = stderr.decode(errors="replace")
        self.duration = duration
        """Seconds from the start of the command to its end."""


class SandboxFileError(SandgateError, OSError):
    """A path in the sandbox could not be used; `errno` and `filename` are as in OSError."""

    default_code = "file_error"
    default_errno = errno.EIO

    def __init__(
        self,
        detail: str = "",
        *,
        path: str = "",
        number: int | None = None,
        status: int | None = None,
        retry_safe: bool = False,
    ) -> None:
        super().__init__(detail, status=status, reached="yes", retry_safe=retry_safe)
        self.errno = self.default_errno if number is None else number
        self.strerror = os.strerror(self.errno)
        self.filename = path


class SandboxFileNotFound(SandboxFileError, FileNotFoundError):
    """The path does not exist in the sandbox, or is no file."""

    default_code = "file_not_found"
    default_errno = errno.ENOENT


class SandboxIsADirectory(SandboxFileError, IsADirectoryError):
    """The path is a directory in the sandbox."""

    default_code = "is_directory"
    default_errno = errno.EISDIR


class SandboxNotADirectory(SandboxFileError, NotADirectoryError):
    """The path is no directory in the sandbox, or does not exist."""

    default_code = "not_a_directory"
    default_errno = errno.ENOTDIR


class SandboxPermissionDenied(SandboxFileError, PermissionError):
    """The sandbox does not let this path be used."""

    default_code = "permission_denied"
    default_errno = errno.EACCES
