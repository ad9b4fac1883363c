"""Changes below a directory, as the kernel tells them (inotify(7)).

Directories are watched through open descriptors that no link was followed to, so what is told
lies below the start. What does not fit is not lost in silence: it becomes one `overflow`. The
kernel's queue is the only one; whoever reads slowly is told that it ran over.

Why not `watchfiles`: it follows every link, so that one to `/` watches the whole machine; one
name that is not UTF-8 ends it with an error; and it wakes up twenty times a second for ever.
"""

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sandgate_runtime.files.opening import list_below, open_directory
from sandgate_runtime.files.refusals import WatchLimit
from sandgate_runtime.files.syscalls import add_watch, open_inotify, remove_watch
from sandgate_runtime.files.walking import Parts
from sandgate_runtime.paths import Place

MAX_DIRECTORIES = 8192
"""Of one watch. Each costs 1 KB in the kernel, which gives a user 8,192 on small machines."""

READ_BYTES = 64 * 1024
"""Of the kernel's queue at once: at most 4,096 changes."""

HIDDEN_PREFIX = ".sandgate-"
"""Our own files on their way to their names."""

_MODIFY, _CLOSE_WRITE = 0x2, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_OVERFLOW, _IGNORED, _IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORY, _EXCLUDE_UNLINKED = 0x1000000, 0x4000000

_MASK = (
    _MODIFY | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
    | _DELETE_SELF | _MOVE_SELF | _ONLY_DIRECTORY | _EXCLUDE_UNLINKED
)  # fmt: skip
_HEAD = struct.Struct("iIII")

Kind = Literal["created", "modified", "deleted", "overflow"]


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a name below the start; to the start itself, where it has no names."""

    kind: Kind
    parts: Parts = ()


class TreeWatch:
    """A watched directory; whoever made it closes it. What it does may wait for the disk."""

    def __init__(self, place: Place, *, recursive: bool) -> None:
        """Raise OSError where there is no directory, and WatchLimit."""
        self._recursive = recursive
        self._directories: dict[int, Parts] = {}
        self.ended = False
        """Whether the start is gone."""
        self._place = place
        self._identity: tuple[int, int] | None = None
        """Device and inode of the start. It is not held open: its end is told once nobody does."""
        os.close(self._open_start())
        self.inotify = _open_inotify()
        try:
            for _ in self._enter(()):
                pass
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<TreeWatch {len(self._directories)} directories>"

    def close(self) -> None:
        """Watch no more."""
        os.close(self.inotify)

    def read(self) -> list[Change]:
        """Return what has happened, each change once; nothing if nothing has."""
        try:
            content = os.read(self.inotify, READ_BYTES)
        except BlockingIOError:
            return []
        changes: dict[Change, None] = {}
        at = 0
        while at < len(content):
            watch, mask, _, length = _HEAD.unpack_from(content, at)
            at += _HEAD.size + length
            name = os.fsdecode(content[at - length : at].rstrip(b"\0"))
            changes.update(dict.fromkeys(self._translate(watch, mask, name)))
        return list(changes)

    def _translate(self, watch: int, mask: int, name: str) -> Iterator[Change]:
        if mask & _OVERFLOW:
            yield Change("overflow")
            return
        folder = self._directories.get(watch)
        if folder is None or name.startswith(HIDDEN_PREFIX):
            return
        if not name:
            yield from self._translate_own(watch, mask, folder)
            return
        parts = (*folder, name)
        if mask & (_DELETE | _MOVED_FROM):
            if mask & _IS_DIRECTORY:
                self._leave(parts)
            yield Change("deleted", parts)
        elif mask & (_CREATE | _MOVED_TO):
            yield Change("created", parts)
            if mask & _IS_DIRECTORY and self._recursive:
                yield from self._enter_new(parts)
        elif mask & (_MODIFY | _CLOSE_WRITE):
            yield Change("modified", parts)

    def _translate_own(self, watch: int, mask: int, folder: Parts) -> Iterator[Change]:
        """What happened to a watched directory itself; its parent tells that too, if watched."""
        if mask & _IGNORED:
            del self._directories[watch]
        gone = mask & (_IGNORED | _DELETE_SELF | _MOVE_SELF)
        if not folder and gone and not self.ended:
            self.ended = True
            yield Change("deleted")

    def _enter_new(self, parts: Parts) -> Iterator[Change]:
        try:
            yield from self._enter(parts)
        except WatchLimit:
            yield Change("overflow")

    def _enter(self, parts: Parts) -> Iterator[Change]:
        """Watch a directory, and those in it if `recursive`; yield what is in it already.

        Watched first and listed then: what comes in between is told twice, and never not at all.
        """
        waiting = [parts]
        while waiting:
            folder = waiting.pop()
            for name, is_directory in self._watch(folder):
                if name.startswith(HIDDEN_PREFIX):
                    continue
                yield Change("created", (*folder, name))
                if is_directory and self._recursive:
                    waiting.append((*folder, name))

    def _watch(self, parts: Parts) -> list[tuple[str, bool]]:
        if len(self._directories) >= MAX_DIRECTORIES:
            raise WatchLimit(f"more than {MAX_DIRECTORIES} directories would be watched")
        try:
            directory = self._open(parts)
        except OSError:
            return []  # gone, or not ours to read
        try:
            self._directories[_add_watch(self.inotify, directory)] = parts
            with os.scandir(directory) as entries:
                return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        finally:
            os.close(directory)

    def _open(self, parts: Parts) -> int:
        start = self._open_start()
        try:
            return list_below(start, parts)
        finally:
            os.close(start)

    def _open_start(self) -> int:
        """Open the start; raise FileNotFoundError if another directory has its place now."""
        start = open_directory(self._place)
        found = os.fstat(start)
        identity = found.st_dev, found.st_ino
        if self._identity not in {None, identity}:
            os.close(start)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._place.path)
        self._identity = identity
        return start

    def _leave(self, parts: Parts) -> None:
        for watch, folder in list(self._directories.items()):
            if folder[: len(parts)] == parts:
                del self._directories[watch]
                remove_watch(self.inotify, watch)


def _open_inotify() -> int:
    with _as_limit():
        return open_inotify()


def _add_watch(inotify: int, directory: int) -> int:
    with _as_limit():
        return add_watch(inotify, directory, _MASK)


@contextlib.contextmanager
def _as_limit() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EMFILE, errno.ENOMEM}:
            raise WatchLimit(f"the kernel watches no more: {error.strerror}") from error
        raise
