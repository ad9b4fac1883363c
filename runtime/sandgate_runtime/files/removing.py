"""Remove files, links and whole trees, relative to open directories and following no link.

A tree may be deeper than a path can be long, wider than memory, and change meanwhile: the
commands that fill it may be running. So it is taken apart in steps that hold nothing but a few
descriptors, and not for ever.
"""

import errno
import os
import secrets
import stat
import time

from sandgate_runtime.files.opening import open_directory, open_parent
from sandgate_runtime.files.refusals import DirectoryNotEmpty
from sandgate_runtime.files.validators import Conditions
from sandgate_runtime.paths import Place

MAX_OPEN = 64
"""Directories that are open at once; a deeper one is moved up to the top before it is emptied."""

MAX_SECONDS = 120.0
"""For a tree: a million files take 20. A command that refills it cannot hold a worker longer."""

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(place: Place, *, recursive: bool, conditions: Conditions) -> None:
    """Remove a file, a link or a directory; what is in it only if `recursive`."""
    with open_parent(place) as (parent, name):
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        conditions.check(found, path=place.path)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
            return
        if recursive:
            directory = os.open(name, _LIST, dir_fd=parent)
            try:
                empty_directory(directory)
            finally:
                os.close(directory)
        os.rmdir(name, dir_fd=parent)


def empty(place: Place, *, recursive: bool) -> None:
    """Remove what is in a directory and leave the directory; raise DirectoryNotEmpty."""
    if not recursive:
        text = "the base directory is only ever emptied, and that with recursive=true"
        raise DirectoryNotEmpty(text, path=place.path)
    directory = open_directory(place)
    try:
        empty_directory(directory)
    finally:
        os.close(directory)


def empty_directory(top: int) -> None:
    """Remove what is in an open directory; raise OSError (EBUSY) if that does not end."""
    deadline = time.monotonic() + MAX_SECONDS
    below: list[tuple[int, str]] = []
    try:
        while True:
            directory = below[-1][0] if below else top
            name = _unlink_to_directory(directory, deadline)
            if name is not None and len(below) < MAX_OPEN:
                below.append((os.open(name, _LIST, dir_fd=directory), name))
            elif name is not None:
                free = f".sandgate-removed-{secrets.token_hex(8)}"
                os.rename(name, free, src_dir_fd=directory, dst_dir_fd=top)
            elif below:
                descriptor, name = below.pop()
                os.close(descriptor)
                os.rmdir(name, dir_fd=below[-1][0] if below else top)
            else:
                return
    finally:
        for descriptor, _ in below:
            os.close(descriptor)


def _unlink_to_directory(directory: int, deadline: float) -> str | None:
    """Unlink entries up to the first directory, and return its name; None if there is none."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            if entry.is_dir(follow_symlinks=False):
                return entry.name
            os.unlink(entry.name, dir_fd=directory)
    return None
