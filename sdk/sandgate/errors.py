"""What can go wrong, as types: made from the `code` of an answer, never from its text.

Each error says whether the sandbox may have seen the request (`reached`) and whether the same
call may be made again (`retry_safe`; it promises no success). Errors about files are also the
built-in ones, so code written for `open()` keeps working.
"""

import errno
import os
from typing import ClassVar, Literal

Reached = Literal["no", "unknown", "yes"]


class SandgateError(Exception):
    """Anything that this package raises about a gateway, a sandbox or a command."""

    default_code: ClassVar[str] = "error"

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
        self.detail: str = detail
        self.code: str = self.default_code if code is None else code
        """The machine-readable name of the failure."""
        self.status: int | None = status
        """The HTTP status that told of it; None when no answer came."""
        self.reached: Reached = reached
        """Whether the sandbox may have seen the request."""
        self.retry_safe: bool = retry_safe
        self.retry_after: float | None = retry_after
        """Seconds after which another try makes sense; None when nothing was said."""

    def __str__(self) -> str:
        return self.detail or self.code


class GatewayUnreachable(SandgateError, ConnectionError):
    """The connection to the gateway could not be made, or broke before the answer was whole."""

    default_code: ClassVar[str] = "gateway_unreachable"


class UnexpectedAnswer(SandgateError):
    """The answer is of no known shape: something else may listen there, or stand between."""

    default_code: ClassVar[str] = "unexpected_answer"


class InvalidRequest(SandgateError):
    """The request is wrong as it stands; sending it again will not help."""

    default_code: ClassVar[str] = "invalid_request"


class Unauthenticated(SandgateError):
    """No valid credential came with the request."""

    default_code: ClassVar[str] = "unauthenticated"


class Forbidden(SandgateError):
    """The credential is valid, but not for this."""

    default_code: ClassVar[str] = "forbidden"


class NotAllowedHere(SandgateError):
    """This gateway serves this to nobody; the detail says why."""

    default_code: ClassVar[str] = "not_allowed_here"


class NotFound(SandgateError):
    """What the request names does not exist."""

    default_code: ClassVar[str] = "not_found"


class SandboxNotFound(NotFound):
    """No live sandbox has this id: it was released, its lease ended, or it never was."""

    default_code: ClassVar[str] = "sandbox_not_found"


class SandboxReplaced(SandboxNotFound):
    """The name belongs to another generation of the sandbox by now."""

    default_code: ClassVar[str] = "sandbox_replaced"


class ClaimNotFound(NotFound):
    """No live claim has this name."""

    default_code: ClassVar[str] = "claim_not_found"


class SandboxFailed(NotFound):
    """The claim is there, and its sandbox died; the message says of what."""

    default_code: ClassVar[str] = "sandbox_failed"


class PoolNotFound(NotFound):
    """No pool has this name."""

    default_code: ClassVar[str] = "pool_not_found"


class RequestTimedOut(SandgateError):
    """The gateway gave up waiting for the rest of the request."""

    default_code: ClassVar[str] = "request_timeout"


class ClaimExists(SandgateError):
    """A live claim has the wanted name."""

    default_code: ClassVar[str] = "claim_exists"


class TooManyRequests(SandgateError):
    """A limit on requests under way is reached."""

    default_code: ClassVar[str] = "too_many_requests"


class QuotaExceeded(TooManyRequests):
    """The namespace holds as many claims as it may."""

    default_code: ClassVar[str] = "quota_exceeded"


class NotSupported(SandgateError):
    """This gateway or its registry does not offer this."""

    default_code: ClassVar[str] = "not_implemented"


class GatewayFault(SandgateError):
    """A fault of the gateway itself."""

    default_code: ClassVar[str] = "internal_error"


class Unavailable(SandgateError):
    """Not now; `retry_after` says when another try makes sense."""

    default_code: ClassVar[str] = "unavailable"


class SandboxNotReady(Unavailable):
    """The sandbox exists and does not serve yet."""

    default_code: ClassVar[str] = "sandbox_not_ready"


class PoolExhausted(Unavailable):
    """No member of the pool became ready in time."""

    default_code: ClassVar[str] = "pool_exhausted"


class SandboxUnreachable(SandgateError):
    """The gateway could not connect to the sandbox; no byte of the request has left."""

    default_code: ClassVar[str] = "sandbox_unreachable"


class ConnectionRefused(SandboxUnreachable, ConnectionRefusedError):
    """Nothing listens on this port of the sandbox."""

    default_code: ClassVar[str] = "connection_refused"


class OutcomeUnknown(SandgateError):
    """The sandbox may have done what was asked: the answer that would tell never came whole."""

    default_code: ClassVar[str] = "outcome_unknown"


class UpstreamClosed(OutcomeUnknown):
    """The sandbox closed the connection before it answered."""

    default_code: ClassVar[str] = "upstream_closed"


class UpstreamTimeout(OutcomeUnknown):
    """The sandbox did not answer in time."""

    default_code: ClassVar[str] = "upstream_timeout"


class BadUpstreamResponse(OutcomeUnknown):
    """What the sandbox sent is no HTTP response."""

    default_code: ClassVar[str] = "bad_upstream_response"


class ProcessNotFound(NotFound):
    """The sandbox knows no process with this id, or has forgotten it."""

    default_code: ClassVar[str] = "process_not_found"


class ProcessEnded(SandgateError):
    """The process has ended, or takes no more input, so it can be told nothing any more."""

    default_code: ClassVar[str] = "process_ended"


class EventsGone(SandgateError):
    """The sandbox does not keep these events of a process any more."""

    default_code: ClassVar[str] = "events_gone"
    first_id: int = 1
    """The first event that is left."""


class TunnelFailed(GatewayUnreachable):
    """`kubectl port-forward` does not run; the detail has its last words."""

    default_code: ClassVar[str] = "tunnel_failed"


class SandboxRefused(SandgateError):
    """The server inside the sandbox refused the request; `detail` has its words."""

    default_code: ClassVar[str] = "sandbox_refused"


class CommandTimeout(SandgateError, TimeoutError):
    """The command ran into its timeout and was killed; what it had printed is kept here."""

    default_code: ClassVar[str] = "command_timeout"

    def __init__(
        self,
        detail: str = "",
        *,
        stdout: bytes = b"",
        stderr: bytes = b"",
        duration: float = 0.0,
    ) -> None:
        super().__init__(detail, reached="yes")
        self.stdout_bytes: bytes = stdout
        self.stderr_bytes: bytes = stderr
        self.stdout: str = stdout.decode(errors="replace")
        self.stderr: str = stderr.decode(errors="replace")
        self.duration: float = duration
        """Seconds from the start of the command to its end."""


class SandboxFileError(SandgateError, OSError):
    """A path in the sandbox could not be used; `errno` and `filename` are as in OSError."""

    default_code: ClassVar[str] = "file_error"
    default_errno: ClassVar[int] = errno.EIO

    def __init__(
        self,
        detail: str = "",
        *,
        path: str = "",
        number: int | None = None,
        code: str | None = None,
        status: int | None = None,
        retry_safe: bool = False,
    ) -> None:
        super().__init__(detail, code=code, status=status, reached="yes", retry_safe=retry_safe)
        self.errno: int = self.default_errno if number is None else number
        self.strerror: str = os.strerror(self.errno)
        self.filename: str = path


class SandboxFileNotFound(SandboxFileError, FileNotFoundError):
    """The path does not exist in the sandbox, or is no file."""

    default_code: ClassVar[str] = "file_not_found"
    default_errno: ClassVar[int] = errno.ENOENT


class SandboxIsADirectory(SandboxFileError, IsADirectoryError):
    """The path is a directory in the sandbox."""

    default_code: ClassVar[str] = "is_directory"
    default_errno: ClassVar[int] = errno.EISDIR


class SandboxFileExists(SandboxFileError, FileExistsError):
    """Something is at the path in the sandbox, and it is not to be replaced."""

    default_code: ClassVar[str] = "already_exists"
    default_errno: ClassVar[int] = errno.EEXIST


class SandboxNotADirectory(SandboxFileError, NotADirectoryError):
    """The path is no directory in the sandbox, or does not exist."""

    default_code: ClassVar[str] = "not_a_directory"
    default_errno: ClassVar[int] = errno.ENOTDIR


class SandboxPermissionDenied(SandboxFileError, PermissionError):
    """The sandbox does not let this path be used."""

    default_code: ClassVar[str] = "permission_denied"
    default_errno: ClassVar[int] = errno.EACCES
