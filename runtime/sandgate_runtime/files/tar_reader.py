"""Read a tar archive as it arrives, and refuse what is not to be unpacked.

No I/O: bytes in, events out. `tarfile` reads from a file that may block, holds every member, and
takes time that grows with the square of a crafted header; here a piece of any size is taken at
once, and what is held is one header. Formats: ustar, GNU long names, pax (POSIX.1-2017, pax,
"Extended Description"); of pax records `path` and `size` count, `mtime` and others are read over.

Links, devices, FIFOs, sparse and continued files, absolute names and `..` are refused, and so is
an archive without its end.
"""

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from sandgate_runtime.files.refusals import UnacceptableArchive
from sandgate_runtime.paths import MAX_NAME_BYTES, MAX_PATH_BYTES

MAX_HEADER_BYTES = 64 * 1024
"""Of one extended header: a path of 4,095 bytes and attributes of a file fit many times."""

_BLOCK = tarfile.BLOCKSIZE
_FILES = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE})
_PAX = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE})
_GNU_LONG = frozenset({tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})


@dataclass(frozen=True, slots=True)
class Member:
    """A file or directory begins; the content of a file follows as bytes."""

    parts: tuple[str, ...]
    is_directory: bool
    mode: int
    modified: int
    size: int


class TarReader:
    """Takes an archive in pieces."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._left = 0
        """Content of the current file that is still to come."""
        self._padding = 0
        self._extended: tarfile.TarInfo | None = None
        """Set while the content of an extended header is collected."""
        self._path: str | None = None
        self._size: int | None = None
        """What an extended header says of the next member."""
        self.ended = False

    def feed(self, piece: bytes) -> Iterator[Member | bytes]:
        """Take a piece; yield members and content as far as they are known."""
        if self.ended:
            return  # an archive is padded to a full record
        self._waiting += piece
        while not self.ended:
            if self._extended is not None:
                if not self._read_extended(self._extended):
                    return
            elif self._left:
                if not self._waiting:
                    return
                content = bytes(self._waiting[: self._left])
                self._left -= len(content)
                del self._waiting[: len(content)]
                yield content
            elif len(self._waiting) < self._padding + _BLOCK:
                return
            else:
                yield from self._read_header()

    def finish(self) -> None:
        """Say that nothing follows; raise UnacceptableArchive if something must."""
        if not self.ended:
            raise UnacceptableArchive("the archive has no end: it was cut off")

    def _take(self, size: int) -> bytes:
        content = bytes(self._waiting[:size])
        del self._waiting[:size]
        return content

    def _read_header(self) -> Iterator[Member | bytes]:
        self._take(self._padding)
        self._padding = 0
        block = self._take(_BLOCK)
        if not any(block):
            self.ended = True
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise UnacceptableArchive(f"the archive is malformed: {error}") from error
        if header.type in _PAX | _GNU_LONG:
            if not 0 < header.size <= MAX_HEADER_BYTES:
                raise UnacceptableArchive(f"an extended header has {header.size} bytes")
            self._extended = header
            return
        yield self._build_member(header)

    def _build_member(self, header: tarfile.TarInfo) -> Member:
        name = header.name if self._path is None else self._path
        size = header.size if self._size is None else self._size
        self._path = self._size = None
        is_directory = header.type == tarfile.DIRTYPE
        if not is_directory and header.type not in _FILES:
            raise UnacceptableArchive(f"{name!r} is neither a regular file nor a directory")
        if size < 0 or (is_directory and size):
            raise UnacceptableArchive(f"{name!r} has a size of {size}")
        self._left, self._padding = size, -size % _BLOCK
        modified = min(max(int(header.mtime), 0), 1 << 40)
        return Member(_split(name), is_directory, header.mode & 0o777, modified, size)

    def _read_extended(self, header: tarfile.TarInfo) -> bool:
        padded = header.size + -header.size % _BLOCK
        if len(self._waiting) < padded:
            return False
        content = self._take(padded)[: header.size]
        self._extended = None
        if header.type == tarfile.GNUTYPE_LONGNAME:
            self._path = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif header.type == tarfile.XHDTYPE:
            self._read_records(content)
        return True

    def _read_records(self, content: bytes) -> None:
        """Read `length key=value\n` records."""
        at = 0
        while at < len(content):
            digits, space, _ = content[at : at + 8].partition(b" ")
            length = int(digits) if space and digits.isdigit() else 0
            record = content[at : at + length]
            key, equals, value = record[len(digits) + 1 :].partition(b"=")
            if not equals or len(record) != length or not value.endswith(b"\n"):
                raise UnacceptableArchive("the archive is malformed: a pax record is wrong")
            self._read_record(key, value[:-1])
            at += length

    def _read_record(self, key: bytes, value: bytes) -> None:
        if key == b"path":
            self._path = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not (value.isdigit() and len(value) <= 18):
                raise UnacceptableArchive(f"the archive is malformed: a size is {value!r}")
            self._size = int(value)
        elif key.startswith(b"GNU.sparse."):
            raise UnacceptableArchive("the archive has a sparse file")


def _split(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in {"", "."})
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise UnacceptableArchive(f"{name!r} leads out of the archive")
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > MAX_PATH_BYTES or any(
        len(part) > MAX_NAME_BYTES for part in encoded.split(b"/")
    ):
        raise UnacceptableArchive(f"{name[:100]!r}… is too long for a path")
    return parts
