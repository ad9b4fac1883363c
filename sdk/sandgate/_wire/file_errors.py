"""What the runtime refuses about a path, as the error that `open()` would raise."""

import errno

from sandgate._wire.message import Reply
from sandgate._wire.refusals import parse_refusal
from sandgate.errors import (
    SandboxFileError,
    SandboxFileExists,
    SandboxFileNotFound,
    SandboxIsADirectory,
    SandboxNotADirectory,
    SandboxPermissionDenied,
    SandgateError,
    UnexpectedAnswer,
)

_REASONS: dict[str, tuple[type[SandboxFileError], int]] = {
    "file_not_found": (SandboxFileNotFound, errno.ENOENT),
    "is_directory": (SandboxIsADirectory, errno.EISDIR),
    "not_a_directory": (SandboxNotADirectory, errno.ENOTDIR),
    "permission_denied": (SandboxPermissionDenied, errno.EACCES),
    "already_exists": (SandboxFileExists, errno.EEXIST),
    "directory_not_empty": (SandboxFileError, errno.ENOTEMPTY),
    "other_file_system": (SandboxFileError, errno.EXDEV),
    "busy": (SandboxFileError, errno.EBUSY),
    "invalid_path": (SandboxFileError, errno.EINVAL),
    "unacceptable_archive": (SandboxFileError, errno.EINVAL),
    "archive_too_large": (SandboxFileError, errno.EFBIG),
    "disk_full": (SandboxFileError, errno.ENOSPC),
    "watch_limit": (SandboxFileError, errno.ENOSPC),
}
"""The runtime's `reason`, and what the kernel calls the same."""

_STATUSES: dict[int, str] = {403: "permission_denied", 404: "file_not_found"}
"""A refused HEAD has no body, and for most there is but one reason."""


def parse_file_refusal(reply: Reply, *, method: str, path: str) -> SandgateError:
    """Return the error of a refused file call, the built-in one where there is one."""
    error = parse_refusal(reply, method=method)
    if reply.field("x-sandbox-error") is not None:
        return error
    reason = error.code
    if isinstance(error, UnexpectedAnswer) and method == "HEAD" and not reply.body:
        reason = _STATUSES.get(reply.status, "invalid_path" if reply.status == 400 else reason)
    if reason not in _REASONS:
        return error
    kind, number = _REASONS[reason]
    silent = isinstance(error, UnexpectedAnswer)
    return kind(
        f"{path!r}: nothing more is told" if silent else error.detail,
        path=path,
        number=number,
        code=reason,
        status=error.status,
        retry_safe=error.retry_safe,
    )


def check_is_file(content_type: str | None, path: str) -> None:
    """Raise for an answer that lists a directory, where a file was asked for."""
    if (content_type or "").startswith("application/json"):
        raise SandboxIsADirectory(f"{path!r} is a directory", path=path, code="is_directory")
