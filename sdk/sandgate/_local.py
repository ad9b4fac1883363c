"""The local side of file transfers: sources, targets and folders, at constant memory.

What comes down stands beside its target until all of it is there, so a transfer that breaks off
leaves what was there before. Both shells use these; the asynchronous one from worker threads.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import tarfile

CHUNK_BYTES = 256 * 1024
"""How much of a file is held while it is sent."""

Progress = Callable[[int, int | None], object]
"""Gets the bytes so far and the bytes in all, None where nobody knows; what it returns does not
matter, and what it raises ends the transfer."""

LocalPath = str | os.PathLike[str]

_GZIP = 31
"""zlib's window bits for a gzip header, and the largest window."""


class Upload:
    """The content of a file object, from where it stands to its end, read while it is sent."""

    def __init__(self, content: BinaryIO, progress: Progress | None = None) -> None:
        self._content = content
        self._progress = progress
        self._start = _position(content)
        self._sent = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content; from its start where it was begun before."""
        if self._sent:
            if self._start is None:
                raise OSError("the file object cannot be read again from where it began")
            self._content.seek(self._start)
            self._sent = 0
        total = _remaining(self._content)
        while chunk := self._content.read(CHUNK_BYTES):
            if not isinstance(chunk, bytes):
                raise TypeError("the file object gives text; open it in binary mode")
            yield chunk
            self._sent += len(chunk)
            if self._progress is not None:
                self._progress(self._sent, total)


class FolderUpload:
    """A folder as a gzipped tar archive, packed while it is sent.

    Regular files and directories go along, with their modes and times. A symbolic link to a file
    of the folder is sent as a copy of it; others, and what else there is, are left out.
    """

    def __init__(self, folder: LocalPath, progress: Progress | None = None) -> None:
        self._folder = Path(folder)
        if not self._folder.is_dir():
            raise NotADirectoryError(20, "Not a directory", str(folder))
        self._progress = progress

    def __iter__(self) -> Iterator[bytes]:
        """Yield the archive."""
        import tarfile
        import zlib

        packer = zlib.compressobj(level=1, wbits=_GZIP)  # the network is rarely slower than this
        done = 0
        for path in _walk(self._folder):
            info = _describe(path, self._folder)
            if info is None:
                continue
            yield packer.compress(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            if info.isreg():
                for chunk in _read_exactly(path, info.size):
                    yield packer.compress(chunk)
                    done += len(chunk)
                    if self._progress is not None:
                        self._progress(done, None)
                yield packer.compress(bytes(-info.size % tarfile.BLOCKSIZE))
        yield packer.compress(bytes(2 * tarfile.BLOCKSIZE)) + packer.flush()


@contextmanager
def open_source(source: LocalPath) -> Iterator[BinaryIO]:
    """Open a file of this machine to read it."""
    with open(source, "rb") as content:
        yield content


@contextmanager
def replacing(target: LocalPath) -> Iterator[BinaryIO]:
    """Give a file to write to; it takes the place of `target` when the block ends well."""
    import tempfile

    path = Path(target)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    part = Path(name)
    try:
        with open(descriptor, "wb") as content:
            yield content
        part.chmod(_usual_mode(path))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def unpacking(folder: LocalPath) -> Iterator[BinaryIO]:
    """Give a file to write an archive to; it is unpacked into `folder` when the block ends well.

    Nothing of it is written outside of the folder, whatever the sandbox put into the archive.
    """
    import tarfile
    import tempfile

    with tempfile.TemporaryFile() as content:
        yield content
        content.seek(0)
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=content, mode="r:gz") as archive:
            archive.extractall(folder, filter="data")


def parse_length(value: str | None) -> int | None:
    """Return the bytes that an answer promises; None where it does not."""
    return int(value) if value is not None and value.isdecimal() else None


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path)


def _describe(path: Path, folder: Path) -> "tarfile.TarInfo | None":
    import tarfile

    info = tarfile.TarInfo(str(path.relative_to(folder)))
    if path.is_symlink() and not _leads_inside(path, folder):
        return None
    status = path.stat()
    info.mode, info.mtime = status.st_mode & 0o777, int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISREG(status.st_mode):
        info.size = status.st_size
    else:
        return None
    return info


def _leads_inside(link: Path, folder: Path) -> bool:
    # What lies elsewhere on this machine nobody has asked to send.
    target = link.resolve()
    return target.is_file() and target.is_relative_to(folder.resolve())


def _read_exactly(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as content:
        left = size
        while left:
            chunk = content.read(min(CHUNK_BYTES, left))
            if not chunk:
                # Its length stands in the archive already, so nothing whole could follow.
                raise OSError(f"{path} became shorter while it was read")
            left -= len(chunk)
            yield chunk


def _position(content: BinaryIO) -> int | None:
    try:
        return content.tell() if content.seekable() else None
    except (OSError, AttributeError):
        return None


def _remaining(content: BinaryIO) -> int | None:
    with suppress(OSError, AttributeError):
        if content.seekable():
            here = content.tell()
            end = content.seek(0, os.SEEK_END)
            content.seek(here)
            return max(0, end - here)
    return None


def _usual_mode(path: Path) -> int:
    """Return the mode that a file which is written in place would have."""
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0o022)
    os.umask(mask)
    return 0o666 & ~mask
