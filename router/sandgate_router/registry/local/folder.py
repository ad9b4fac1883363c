"""The gateway's folder under the system's temporary one: sockets, and un-isolated workspaces.

Mode 0700, so that only the gateway reaches the sockets. A lock (flock) on the folder itself
tells a live gateway's from a dead one's: the kernel drops it with the process, however it
ends, and the next gateway removes what it finds unlocked.
"""

import errno
import fcntl
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PREFIX = "sandgate-run-"
_NEWBORN = ".sandgate-new-"
"""Until it is locked a folder bears another name, or a starting gateway might sweep it."""

MAX_SOCKET_PATH = 107
"""Longest path of a unix socket on Linux: sun_path holds 108 bytes with the closing NUL."""

BACKLOG = 1024
"""Connections that wait for the runtime; more than the gateway has in flight per sandbox."""

_LONGEST_NAME = "/4294967295/ports.sock"


class RunFolder:
    """One gateway's folder, locked as long as this object is open."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._serial = 0

    @classmethod
    def create(cls) -> "RunFolder":
        """Make and lock a new folder; raise OSError when its path is too long for sockets."""
        parent = Path(tempfile.gettempdir())
        final = parent / f"{PREFIX}{secrets.token_hex(4)}"
        if len(os.fsencode(final)) + len(_LONGEST_NAME) > MAX_SOCKET_PATH:
            raise OSError(
                errno.ENAMETOOLONG,
                f"TMPDIR {str(parent)!r} is too long for unix sockets; choose a shorter one",
            )
        newborn = Path(tempfile.mkdtemp(prefix=_NEWBORN, dir=parent))
        lock = os.open(newborn, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        newborn.rename(final)
        return cls(final, lock)

    def new_subfolder(self) -> Path:
        """Make a folder of mode 0700 for one sandbox."""
        self._serial += 1
        path = self.path / str(self._serial)
        path.mkdir(mode=0o700)
        return path

    def close(self) -> None:
        """Remove the folder with all that is left in it."""
        remove_tree(self.path)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def listen_unix(path: Path) -> socket.socket:
    """Return a listening unix socket at `path`, open to this user only."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def sweep_dead() -> list[Path]:
    """Remove the folders of this user's gateways that no longer live; return them."""
    removed = []
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or gone meanwhile
        try:
            if os.fstat(lock).st_uid != os.geteuid():
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            remove_tree(path)
            removed.append(path)
        finally:
            os.close(lock)
    return removed


def remove_tree(path: Path) -> None:
    """Remove a folder whatever the modes inside; what cannot be removed stays."""
    shutil.rmtree(path, onerror=_open_up)


def _open_up(remove: Callable[..., Any], path: str, _: object) -> None:
    # Code may leave folders that even their owner cannot list; symbolic links are never
    # followed, so nothing outside can change its mode.
    if Path(path).is_symlink():
        return
    try:
        Path(path).parent.chmod(0o700)
        if Path(path).is_dir():
            Path(path).chmod(0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove(path)
    except OSError:
        return
