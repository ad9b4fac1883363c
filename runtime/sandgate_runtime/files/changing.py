"""Make, move and remove what a place names, all relative to open directories.

A link in the last name is the thing itself here: it is moved or removed, not what it leads to.
"""

import errno
import os
import stat

from sandgate_runtime.files.opening import descend, open_parent, open_regular_in
from sandgate_runtime.files.refusals import AlreadyExists
from sandgate_runtime.files.replacing import Replacement
from sandgate_runtime.files.syscalls import rename_to_free_name
from sandgate_runtime.paths import Place

COPY_BYTES = 1 << 20


def make_directory(place: Place, *, mode: int | None) -> bool:
    """Make a directory and its parents; say whether it is new. Raise AlreadyExists for a file."""
    if not place.parts:
        return False
    with open_parent(place, create=True) as (parent, name):
        try:
            os.mkdir(name, dir_fd=parent)
        except FileExistsError as error:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                raise AlreadyExists(f"{place.path!r} is no directory", path=place.path) from error
            return False
        if mode is not None:
            directory = descend(parent, [name])
            try:
                set_mode(directory, mode)
            finally:
                os.close(directory)
    return True


def set_mode(directory: int, mode: int) -> None:
    """Change the mode of an open directory, also of one that is open for its path alone."""
    os.chmod(f"/proc/self/fd/{directory}", mode)


def move(source: Place, target: Place, *, overwrite: bool) -> None:
    """Rename; with `overwrite` a file takes the place of a file, and never of a directory."""
    with open_parent(source) as here, open_parent(target, create=True) as there:
        try:
            if overwrite:
                os.rename(here[1], there[1], src_dir_fd=here[0], dst_dir_fd=there[0])
            else:
                rename_to_free_name(here, there)
        except OSError as error:
            # Folders of a sandbox may be mounts of their own: /tmp and the workspace, for one.
            found = os.stat(here[1], dir_fd=here[0], follow_symlinks=False)
            if error.errno != errno.EXDEV or not stat.S_ISREG(found.st_mode):
                raise
            _move_content(here, source, target, overwrite=overwrite)


def _move_content(here: tuple[int, str], source: Place, target: Place, *, overwrite: bool) -> None:
    descriptor, found = open_regular_in(*here, path=source.path)
    try:
        _copy(descriptor, target, mode=stat.S_IMODE(found.st_mode), overwrite=overwrite)
    finally:
        os.close(descriptor)
    os.unlink(here[1], dir_fd=here[0])


def _copy(descriptor: int, target: Place, *, mode: int, overwrite: bool) -> None:
    with Replacement(target, mode=mode) as replacement:
        while piece := os.read(descriptor, COPY_BYTES):
            replacement.write(piece)
        replacement.sync()
        replacement.rename(only_if_absent=not overwrite)
