"""Replace a file in one step: readers see the old content or the new, never a mix.

The content goes to a temporary file in the same directory, to the disk, and then over the old
name (rename(2) is atomic within one directory). Whatever ends the transfer early leaves the old
file as it was and no trace.
"""

import contextlib
import os
import secrets
import stat
from types import TracebackType
from typing import Self

from sandgate_runtime.files.opening import open_parent, refuse_special
from sandgate_runtime.files.syscalls import rename_to_free_name
from sandgate_runtime.paths import Place

TEMPORARY_PREFIX = ".sandgate-upload-"
"""Its own name, so that a target whose name has the full 255 bytes works as well."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Replacement:
    """New content for a place, invisible until it is committed.

    Used as a context manager: without a commit, leaving it removes everything.
    """

    def __init__(self, place: Place, *, mode: int | None = None) -> None:
        """Create missing parents and the temporary file; refuse what is no regular file.

        Without a mode an existing file keeps its own, and a new one gets 0644 under a usual umask.
        """
        with open_parent(place, create=True) as (directory, self._name):
            found = find_regular(directory, self._name, path=place.path)
            self._temporary = TEMPORARY_PREFIX + secrets.token_hex(8)
            self._file = os.open(self._temporary, _CREATE, 0o666, dir_fd=directory)
            self._directory = os.dup(directory)
        if mode is None and found is not None:
            # A script that is written anew stays executable.
            mode = stat.S_IMODE(found.st_mode)
        if mode is not None:
            os.fchmod(self._file, mode)
        self._open = True

    def write(self, content: bytes) -> None:
        """Append to the new content."""
        view = memoryview(content)
        while view:
            view = view[os.write(self._file, view) :]

    def commit(self) -> os.stat_result:
        """Put the new content in place; return what is there now."""
        self.sync()
        return self.rename()

    def sync(self) -> None:
        """Have the content on the disk: the part of a commit that takes time."""
        os.fsync(self._file)

    def rename(self, *, only_if_absent: bool = False) -> os.stat_result:
        """Put synced content in place; raise FileExistsError where something must not be there."""
        here = self._directory
        if only_if_absent:
            rename_to_free_name((here, self._temporary), (here, self._name))
        else:
            os.replace(self._temporary, self._name, src_dir_fd=here, dst_dir_fd=here)
        found = os.fstat(self._file)
        self._close()
        return found

    def find(self, *, path: str) -> os.stat_result | None:
        """Return what is in the place now: a regular file, or nothing."""
        return find_regular(self._directory, self._name, path=path)

    def discard(self) -> None:
        """Remove the temporary file; nothing to do after a commit."""
        if self._open:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    def _close(self) -> None:
        self._open = False
        os.close(self._file)
        os.close(self._directory)


def find_regular(directory: int, name: str, *, path: str) -> os.stat_result | None:
    """Return the status of a regular file, or None if nothing has the name; refuse all else."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    refuse_special(found, path)
    return found
