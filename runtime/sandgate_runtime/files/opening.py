"""Open what a place names, through no link.

`paths` has resolved all links; what is one now was put there since, by a command that races
with us, and is refused. So nothing outside the anchor can be reached, whoever renames what. The
kernel does it in one step where it can (openat2); else we go one directory after the other.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence

from sandgate_runtime.errors import AccessDenied, BadPath
from sandgate_runtime.files.syscalls import open_beneath
from sandgate_runtime.paths import Place

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
"""Errors that say: nothing is there."""


@contextlib.contextmanager
def open_parent(place: Place, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Give the directory that holds the place, and the place's name in it.

    `create` makes missing directories on the way, as an upload into a new folder expects. The
    anchor itself is given as `.` of its own.
    """
    with open_anchor(place) as anchor:
        directory = descend(anchor, place.parts[:-1], create=create)
    try:
        yield directory, place.parts[-1] if place.parts else "."
    finally:
        os.close(directory)


@contextlib.contextmanager
def open_anchor(place: Place) -> Iterator[int]:
    """Give the directory that a place must not leave."""
    anchor = os.open(place.anchor, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield anchor
    finally:
        os.close(anchor)


def descend(start: int, names: Sequence[str], *, create: bool = False) -> int:
    """Return the directory that lies these names below another; the caller closes it."""
    at_once = open_beneath(start, "/".join(names) or ".", _DIRECTORY)
    return descend_by_name(start, names, create=create) if at_once is None else at_once


def descend_by_name(start: int, names: Sequence[str], *, create: bool = False) -> int:
    """Do the same in steps: for older kernels, for what is missing, and to know what is wrong."""
    directory = os.open(".", _DIRECTORY, dir_fd=start)
    try:
        for name in names:
            below = _open_below(directory, name, create=create)
            os.close(directory)
            directory = below
    except BaseException:
        os.close(directory)
        raise
    return directory


def open_directory(place: Place) -> int:
    """Open a directory to be listed; the caller closes it."""
    with open_parent(place) as (parent, name):
        return os.open(name, _LIST, dir_fd=parent)


def list_below(start: int, names: Sequence[str]) -> int:
    """Open the directory these names below another to be listed; the caller closes it."""
    directory = descend(start, names)
    try:
        return os.open(".", _LIST, dir_fd=directory)
    finally:
        os.close(directory)


def open_regular(place: Place) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; the caller closes it.

    Raise AccessDenied for a FIFO, device or socket, and IsADirectoryError.
    """
    with open_parent(place) as (directory, name):
        return open_regular_in(directory, name, path=place.path)


def open_regular_in(directory: int, name: str, *, path: str) -> tuple[int, os.stat_result]:
    """Do the same in an open directory.

    It is asked what it is before it is opened, because opening a FIFO wakes whoever waits to
    write to it; and asked again after, because it may have been exchanged.
    """
    refuse_special(os.stat(name, dir_fd=directory, follow_symlinks=False), path)
    descriptor = os.open(name, _READ, dir_fd=directory)
    try:
        found = os.fstat(descriptor)
        refuse_special(found, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found


def refuse_special(found: os.stat_result, path: str) -> None:
    """Raise unless this is a regular file."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if stat.S_ISLNK(found.st_mode):
        # Links were resolved before: this one leads in a circle, or was put here since.
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if not stat.S_ISREG(found.st_mode):
        raise AccessDenied(f"{path!r} is no regular file", path=path)


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
    """Return the refusal that an error means to a legacy route, or the error with its path."""
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
