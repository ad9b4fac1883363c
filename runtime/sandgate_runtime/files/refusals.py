"""What the file routes under `/v1` refuse, and which refusal an error of the file system is."""

import errno
import os

from sandgate_runtime.errors import AccessDenied, BadPath, Refusal


class InvalidParameter(Refusal):
    """A parameter or a field has a value that it cannot have."""

    status, code, reason = 400, "INVALID_ARGUMENT", "invalid_parameter"


class DigestMismatch(Refusal):
    """The content is not the one whose digest was sent."""

    status, code, reason = 400, "INVALID_ARGUMENT", "digest_mismatch"


class IncompleteContent(Refusal):
    """The client went away in the middle of the content; it will not read this."""

    status, code, reason = 400, "INVALID_ARGUMENT", "incomplete_content"


class IsDirectory(Refusal):
    """A file is asked for, and a directory is there."""

    status, code, reason = 400, "INVALID_ARGUMENT", "is_directory"


class NotADirectory(Refusal):
    """A directory is asked for, also in the middle of a path, and something else is there."""

    status, code, reason = 400, "INVALID_ARGUMENT", "not_a_directory"


class UnacceptableArchive(Refusal):
    """The archive is malformed, or holds what is not unpacked."""

    status, code, reason = 400, "INVALID_ARGUMENT", "unacceptable_archive"


class FileMissing(Refusal):
    """Nothing is at the path."""

    status, code, reason = 404, "NOT_FOUND", "file_not_found"


class AlreadyExists(Refusal):
    """Something is at the path, and it is not to be replaced."""

    status, code, reason = 409, "CONFLICT", "already_exists"


class DirectoryNotEmpty(Refusal):
    """The directory has entries, and nobody said `recursive`."""

    status, code, reason = 409, "CONFLICT", "directory_not_empty"


class OtherFileSystem(Refusal):
    """A directory cannot be renamed onto another file system."""

    status, code, reason = 409, "FAILED_PRECONDITION", "other_file_system"


class Busy(Refusal):
    """The kernel still uses it: a mount point, for one."""

    status, code, reason = 409, "CONFLICT", "busy"


class PreconditionFailed(Refusal):
    """What is there is not what the request says is there (RFC 9110 section 13)."""

    status, code, reason = 412, "FAILED_PRECONDITION", "precondition_failed"


class ArchiveTooLarge(Refusal):
    """The archive unpacks to more than it may."""

    status, code, reason = 413, "RESOURCE_EXHAUSTED", "archive_too_large"


class UnsupportedCoding(Refusal):
    """The content is compressed on the way; it would be stored so."""

    status, code, reason = 415, "INVALID_ARGUMENT", "unsupported_coding"


class WatchLimit(Refusal):
    """As much is watched as may be, here or by the kernel's count."""

    status, code, reason = 429, "RESOURCE_EXHAUSTED", "watch_limit"


class OutOfResources(Refusal):
    """No memory or no descriptor is left; later it may work."""

    status, code, reason = 503, "UNAVAILABLE", "out_of_resources"


class DiskFull(Refusal):
    """The disk or the quota has no space or no inode left (RFC 4918 section 11.5)."""

    status, code, reason = 507, "RESOURCE_EXHAUSTED", "disk_full"


_REFUSALS: dict[int, type[Refusal]] = {
    errno.ENOENT: FileMissing,
    errno.ENOTDIR: NotADirectory,
    errno.EISDIR: IsDirectory,
    errno.EEXIST: AlreadyExists,
    errno.ENOTEMPTY: DirectoryNotEmpty,
    errno.EXDEV: OtherFileSystem,
    errno.EBUSY: Busy,
    errno.EACCES: AccessDenied,
    errno.EPERM: AccessDenied,
    errno.EROFS: AccessDenied,
    errno.ETXTBSY: AccessDenied,
    errno.ELOOP: BadPath,
    errno.ENAMETOOLONG: BadPath,
    errno.EINVAL: BadPath,
    errno.ENXIO: AccessDenied,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EFBIG: DiskFull,
    errno.EMFILE: OutOfResources,
    errno.ENFILE: OutOfResources,
    errno.ENOMEM: OutOfResources,
}


def refuse(error: OSError, path: str) -> Exception:
    """Return the refusal that an error means for the path of the request, or the error itself."""
    if error.errno is None or error.errno not in _REFUSALS:
        return error
    return _REFUSALS[error.errno](f"{path!r}: {os.strerror(error.errno)}", path=path)
