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
from sandgate_runtime.paths import Place

TEMPORARY_PREFIX = ".sandgate-upload-"
"""Its own name, so that a target whose name has the full 255 bytes works as well."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Replacement:
    """New content for a place, invisible until it is committed.

    Used as a context manager: without a commit, leaving it removes everything.
    """

    def __init__(self, place: Place) -> None:
        """Create missing parents and the temporary file; refuse what is no regular file."""
        with open_parent(place, create=True) as (directory, self._name):
            mode = _existing_mode(directory, self._name, place)
            self._temporary = TEMPORARY_PREFIX + secrets.token_hex(8)
            self._file = os.open(self._temporary, _CREATE, 0o666, dir_fd=directory)
            self._directory = os.dup(directory)
        if mode is not None:
            # A script that is written anew stays executable.
            os.fchmod(self._file, mode)
        self._open = True

    def write(self, content: bytes) -> None:
        """Append to the new content."""
        view = memoryview(content)
        while view:
            view = view[os.write(self._file, view) :]

    def commit(self) -> None:
        """Put the new content in place."""
        os.fsync(self._file)
        os.replace(
            self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory
        )
        self._close()

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


def _existing_mode(directory: int, name: str, place: Place) -> int | None:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    refuse_special(found, place)
    return stat.S_IMODE(found.st_mode)
