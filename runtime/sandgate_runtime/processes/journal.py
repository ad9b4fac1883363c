"""Idempotency keys on disk, so that a runtime that starts again knows what it may have run.

A file of lines, each a JSON object: `{key, request, at}` when a key is reserved, `{key, void}`
when nothing was started after all. Keys and requests are digests. A line is synced before its
command is started; the last one may be torn by a crash, and then nothing was started. Half a
line that a full disk left is taken back, and every line begins at the start of one: what follows
a torn line can be read. What is too old is left out when the file is read at the start and
written anew.
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterable
from typing import NamedTuple

FILE_NAME = "idempotency.jsonl"


class Reservation(NamedTuple):
    """A key, the request that it came with, and when."""

    key: str
    request: str
    at: float
    """Seconds since 1970: it must mean the same after a restart."""


class Journal:
    """The file; its calls block."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, FILE_NAME)
        self._descriptor: int | None = None
        self._torn = False
        """Whether half a line could not be taken back: nothing is added until a rewrite."""

    def read(self) -> list[Reservation]:
        """Return what was reserved and not given back; raise OSError."""
        found: dict[str, Reservation] = {}
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            for line in file:
                _apply(line, found)
        return list(found.values())

    def rewrite(self, reservations: Iterable[Reservation]) -> None:
        """Replace the file by these and go on behind them; raise OSError."""
        temporary = f"{self._path}.new"
        descriptor = os.open(
            temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            _write(descriptor, b"".join(map(_spell, reservations)))
            os.fsync(descriptor)
            os.rename(temporary, self._path)
            self._sync_directory()
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor = descriptor
        self._torn = False

    def reserve(self, reservation: Reservation) -> None:
        """Write a key down; it is on disk when this returns; raise OSError."""
        self._append(_spell(reservation))

    def give_back(self, key: str) -> None:
        """Write down that nothing was started for a key; raise OSError."""
        self._append(json.dumps({"key": key, "void": True}).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None, "rewrite comes first"
        if self._torn:
            raise OSError(errno.EIO, "half a line could not be taken back from the journal")
        size = os.fstat(self._descriptor).st_size
        try:
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            _write(self._descriptor, line)
            os.fdatasync(self._descriptor)
        except BaseException:
            self._take_back(self._descriptor, size)
            raise

    def _take_back(self, descriptor: int, size: int) -> None:
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            self._torn = True

    def _sync_directory(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _spell(reservation: Reservation) -> bytes:
    return json.dumps(reservation._asdict()).encode() + b"\n"


def _apply(line: bytes, found: dict[str, Reservation]) -> None:
    # A torn line, or one of a later version, says nothing.
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        members = json.loads(line)
        if members.get("void"):
            found.pop(members["key"], None)
        else:
            found[members["key"]] = Reservation(
                str(members["key"]), str(members["request"]), float(members["at"])
            )


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
