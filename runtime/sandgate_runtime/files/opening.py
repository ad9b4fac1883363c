"""Open what a place names, one directory after the other, following no link.

`paths` has resolved all links; what is one now was put there since, by a command that races
with us, and is refused. So nothing outside the anchor can be reached, whoever renames what.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from sandgate_runtime.errors import AccessDenied, BadPath
from sandgate_runtime.paths import Place

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
"""Errors that say: nothing is there."""


@contextlib.contextmanager
def open_parent(place: Place, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Give the directory that holds the place, and the place's name in it.

    `create` makes missing directories on the way, as an upload into a new folder expects. The
    anchor itself is given as `.` of its own.
    """
    directory = os.open(place.anchor, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in place.parts[:-1]:
            below = _open_below(directory, name, create=create)
            os.close(directory)
            directory = below
        yield directory, place.parts[-1] if place.parts else "."
    finally:
        os.close(directory)


def open_regular(place: Place) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; the caller closes it.

    Raise AccessDenied for a FIFO, device or socket, and IsADirectoryError. Asked before it is
    opened, because opening a FIFO wakes whoever waits to write to it; and asked again after,
    because it may have been exchanged.
    """
    with open_parent(place) as (directory, name):
        refuse_special(os.stat(name, dir_fd=directory, follow_symlinks=False), place)
        descriptor = os.open(name, _READ, dir_fd=directory)
    try:
        found = os.fstat(descriptor)
        refuse_special(found, place)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found


def refuse_special(found: os.stat_result, place: Place) -> None:
    """Raise unless this is a regular file."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), place.path)
    if stat.S_ISLNK(found.st_mode):
        # Links were resolved before: this one leads in a circle, or was put here since.
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), place.path)
    if not stat.S_ISREG(found.st_mode):
        raise AccessDenied(f"{place.path!r} is no regular file", path=place.path)


def exists(place: Place) -> bool:
    """Say whether anything, of whatever kind, is at the place."""
    try:
        with open_parent(place) as (directory, name):
            os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno in MISSING or error.errno == errno.EACCES:
            return False
        raise translate(error, place) from error
    return True


def translate(error: OSError, place: Place) -> Exception:
    """Return the refusal that an error of the file system means, or the error with its path."""
    if error.errno in {errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL}:
        return BadPath(f"{place.path!r}: {error.strerror}", path=place.path)
    if error.errno in {errno.EACCES, errno.EPERM}:
        return AccessDenied("Access denied", path=place.path)
    if error.errno is None:
        return error
    # Tells the path that was asked for, not the name of a temporary file in its directory.
    return OSError(error.errno, os.strerror(error.errno), place.path)


def _open_below(directory: int, name: str, *, create: bool) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except FileNotFoundError:
        if not create:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=directory)
        return os.open(name, _DIRECTORY, dir_fd=directory)
