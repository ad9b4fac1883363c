"""Unpack a tar.gz as it arrives: all of it, or nothing.

It is unpacked into a directory of its own beside its destination, and moved from there, file by
file, when its end has come and was found right. So an archive that is refused or cut off changes
nothing, and each single file is replaced at once. Directories that exist already keep their
modes and what else is in them.

Bombs: what comes out is counted against limits while it comes, at most a megabyte at a time.
"""

import contextlib
import os
import secrets
import stat
import zlib
from collections.abc import Iterator

from sandgate_runtime.files.changing import make_directory, set_mode
from sandgate_runtime.files.opening import descend, open_directory, open_parent, refuse_special
from sandgate_runtime.files.refusals import ArchiveTooLarge, NotADirectory, UnacceptableArchive
from sandgate_runtime.files.removing import empty_directory
from sandgate_runtime.files.syscalls import sync_file_system
from sandgate_runtime.files.tar_reader import Member, TarReader
from sandgate_runtime.files.walking import Found, walk
from sandgate_runtime.paths import Place

MAX_BYTES = 8 << 30
"""Unpacked. The disk of a sandbox is smaller, and fills first: this is for disks that are not."""

MAX_MEMBERS = 250_000
"""A large node_modules has 100,000; an empty member costs its sender 3 bytes."""

MAX_RATIO = 200
"""Unpacked to packed bytes. Logs and sources reach 30; gzip's utmost is 1,030."""

RATIO_COUNTS_ABOVE = 16 << 20
"""Unpacked bytes: below, no ratio does harm."""

PIECE_BYTES = 1 << 20

_GZIP = 16 + zlib.MAX_WBITS
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacking:
    """An archive on its way into a directory; without a commit, `discard` leaves no trace."""

    def __init__(self, place: Place) -> None:
        """Make the directory if there is none."""
        self._place = place
        self._is_new = make_directory(place, mode=None)
        self._target = open_directory(place)
        self._name = f".sandgate-unpack-{secrets.token_hex(8)}"
        os.mkdir(self._name, 0o700, dir_fd=self._target)
        self._staging = os.open(self._name, _LIST, dir_fd=self._target)
        self._reader = TarReader()
        self._gunzip = zlib.decompressobj(_GZIP)
        self._packed = self._unpacked = self._members = 0
        self._file: int | None = None
        self._member: Member | None = None

    def write(self, piece: bytes) -> None:
        """Take the next piece of the archive; raise UnacceptableArchive or ArchiveTooLarge."""
        self._packed += len(piece)
        for content in self._decompress(piece):
            self._count(len(content))
            for event in self._reader.feed(content):
                if isinstance(event, Member):
                    self._begin(event)
                else:
                    self._append(event)

    def commit(self) -> None:
        """Put everything in its place."""
        self._close_file()
        if not self._gunzip.eof:
            raise UnacceptableArchive("the archive was cut off, or is no gzip")
        self._reader.finish()
        for found in walk(self._staging):
            _check(self._target, found)
        sync_file_system(self._staging)
        for found in walk(self._staging):
            self._place_found(found)

    def discard(self) -> None:
        """Remove what is left of the unpacking; to be called in any case."""
        self._close_file()
        with contextlib.suppress(OSError):
            empty_directory(self._staging)
            os.rmdir(self._name, dir_fd=self._target)
        os.close(self._staging)
        os.close(self._target)
        if self._is_new:
            # Stays if something is in it by now.
            with contextlib.suppress(OSError), open_parent(self._place) as (parent, name):
                os.rmdir(name, dir_fd=parent)

    def _decompress(self, piece: bytes) -> Iterator[bytes]:
        try:
            while piece:
                if self._gunzip.eof:
                    # Members of gzip may follow each other; zeros may pad the last.
                    if not piece.strip(b"\0"):
                        return
                    self._gunzip = zlib.decompressobj(_GZIP)
                yield self._gunzip.decompress(piece, PIECE_BYTES)
                piece = self._gunzip.unused_data or self._gunzip.unconsumed_tail
        except zlib.error as error:
            raise UnacceptableArchive(f"the archive is no gzip: {error}") from error

    def _count(self, size: int) -> None:
        self._unpacked += size
        if self._unpacked > MAX_BYTES:
            raise ArchiveTooLarge(f"the archive unpacks to more than {MAX_BYTES} bytes")
        if self._unpacked > max(RATIO_COUNTS_ABOVE, MAX_RATIO * self._packed):
            raise ArchiveTooLarge(f"the archive unpacks to more than {MAX_RATIO} times its size")

    def _begin(self, member: Member) -> None:
        self._close_file()
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise ArchiveTooLarge(f"the archive has more than {MAX_MEMBERS} members")
        if member.is_directory:
            directory = descend(self._staging, member.parts, create=True)
            try:
                # Open to us while it is filled, whatever its mode will be.
                set_mode(directory, member.mode | stat.S_IRWXU)
            finally:
                os.close(directory)
            return
        if not member.parts:
            raise UnacceptableArchive("the archive has a file without a name")
        directory = descend(self._staging, member.parts[:-1], create=True)
        try:
            self._file = _create(directory, member)
        finally:
            os.close(directory)
        self._member = member

    def _append(self, content: bytes) -> None:
        assert self._file is not None, "content belongs to a file"
        view = memoryview(content)
        while view:
            view = view[os.write(self._file, view) :]

    def _close_file(self) -> None:
        if self._file is not None and self._member is not None:
            os.utime(self._file, (self._member.modified, self._member.modified))
            os.close(self._file)
            self._file = None

    def _place_found(self, found: Found) -> None:
        there = descend(self._target, found.parts[:-1], create=True)
        try:
            if stat.S_ISDIR(found.status.st_mode):
                _make(there, found)
                return
            here = descend(self._staging, found.parts[:-1])
            try:
                name = found.parts[-1]
                os.rename(name, name, src_dir_fd=here, dst_dir_fd=there)
            finally:
                os.close(here)
        finally:
            os.close(there)


def _make(parent: int, found: Found) -> None:
    """Make a directory with the mode that it was unpacked with, unless it is there already."""
    try:
        os.mkdir(found.parts[-1], dir_fd=parent)
    except FileExistsError:
        return
    directory = descend(parent, found.parts[-1:])
    try:
        set_mode(directory, stat.S_IMODE(found.status.st_mode))
    finally:
        os.close(directory)


def _create(directory: int, member: Member) -> int:
    name = member.parts[-1]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)  # of two members with one name the last counts
    descriptor = os.open(name, _CREATE, 0o600, dir_fd=directory)
    os.fchmod(descriptor, member.mode)
    return descriptor


def _check(target: int, found: Found) -> None:
    """Raise unless what was unpacked can take its place, as far as can be known before."""
    try:
        directory = descend(target, found.parts[:-1])
    except FileNotFoundError:
        return
    try:
        there = os.stat(found.parts[-1], dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    finally:
        os.close(directory)
    if not stat.S_ISDIR(found.status.st_mode):
        refuse_special(there, found.name)
    elif not stat.S_ISDIR(there.st_mode):
        raise NotADirectory(f"{found.name!r} is no directory", path=found.name)
