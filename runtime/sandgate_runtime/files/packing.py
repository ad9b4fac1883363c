"""A directory as a tar.gz, made while it is sent.

Pieces come one at a time, so a slow reader makes the packing wait, and memory holds one piece.
The archive has regular files, directories and links as they are, with their modes and times, and
no owners. FIFOs, sockets and devices are left out, as well as what is gone when its turn comes.
A file that shrinks while it is read, or cannot be read, breaks the archive off: half of it must
not look whole.
"""

import os
import stat
import tarfile
import zlib
from collections.abc import Generator, Iterator

from sandgate_runtime.files.opening import descend, open_directory, open_regular_in
from sandgate_runtime.files.walking import Found, walk
from sandgate_runtime.paths import Place

PIECE_BYTES = 256 * 1024

GZIP_LEVEL = 1
"""The sandbox's CPU belongs to its commands: level 6 takes three times as long for 10 % less."""

_GZIP = 16 + zlib.MAX_WBITS
_BLOCK = tarfile.BLOCKSIZE


class TooShort(Exception):
    """A file had less than it said; the archive cannot be finished."""


class Packing:
    """An archive in the making; whoever made it closes it."""

    def __init__(self, place: Place) -> None:
        """Raise OSError where there is no directory."""
        self._directory = open_directory(place)
        self._blocks = _blocks(self._directory)
        self._packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP)
        self._ended = False

    def next_piece(self) -> bytes | None:
        """Return the next piece, or None after the last; raise OSError or TooShort."""
        if self._ended:
            return None
        waiting = bytearray()
        for block in self._blocks:
            waiting += self._packer.compress(block)
            if len(waiting) >= PIECE_BYTES:
                return bytes(waiting)
        self._ended = True
        return bytes(waiting) + self._packer.flush()

    def close(self) -> None:
        """Close what is open."""
        self._blocks.close()
        os.close(self._directory)


def _blocks(directory: int) -> Generator[bytes, None, None]:
    for found in walk(directory):
        if stat.S_ISREG(found.status.st_mode):
            yield from _file(directory, found)
        elif stat.S_ISDIR(found.status.st_mode):
            yield _head(found, tarfile.DIRTYPE)
        elif stat.S_ISLNK(found.status.st_mode):
            yield from _link(directory, found)
    yield bytes(2 * _BLOCK)  # two empty blocks end an archive


def _file(directory: int, found: Found) -> Iterator[bytes]:
    parent = _parent(directory, found)
    if parent is None:
        return
    try:
        descriptor, status = open_regular_in(parent, found.parts[-1], path=found.name)
    except FileNotFoundError:
        return
    finally:
        os.close(parent)
    try:
        yield _head(found, tarfile.REGTYPE, size=status.st_size)
        yield from _content(descriptor, status.st_size, found)
    finally:
        os.close(descriptor)


def _content(descriptor: int, size: int, found: Found) -> Iterator[bytes]:
    left = size
    while left:
        piece = os.read(descriptor, min(PIECE_BYTES, left))
        if not piece:
            raise TooShort(f"{found.name!r} lost {left} bytes while it was packed")
        left -= len(piece)
        yield piece
    yield bytes(-size % _BLOCK)


def _link(directory: int, found: Found) -> Iterator[bytes]:
    parent = _parent(directory, found)
    if parent is None:
        return
    try:
        target = os.readlink(found.parts[-1], dir_fd=parent)
    except OSError:
        return  # gone, or no link any more
    finally:
        os.close(parent)
    yield _head(found, tarfile.SYMTYPE, link=target)


def _parent(directory: int, found: Found) -> int | None:
    try:
        return descend(directory, found.parts[:-1])
    except OSError:
        return None


def _head(found: Found, kind: bytes, *, size: int = 0, link: str = "") -> bytes:
    member = tarfile.TarInfo(found.name)
    member.type = kind
    member.size = size
    member.linkname = link
    member.mode = stat.S_IMODE(found.status.st_mode)
    member.mtime = int(found.status.st_mtime)
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
