"""Calls of the system that Python has no name for: openat2, renameat2, syncfs, inotify.

Called through the C library that is loaded already. A kernel or a sandbox that lacks one of them
makes the caller take its other way, which is said at each function.
"""

import ctypes
import errno
import os

_OPENAT2 = 437
"""The same number on every architecture but Alpha; the C library has no function for it."""

_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08

_RENAME_NOREPLACE = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_beneath(directory: int, path: str, flags: int) -> int | None:
    """Open a path below a directory through no link at all, in one step of the kernel's.

    None for whatever fails: walking there name by name fails too, and says why.
    """
    how = _OpenHow(flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    descriptor = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    return None if descriptor < 0 else int(descriptor)


def rename_to_free_name(source: tuple[int, str], target: tuple[int, str]) -> None:
    """Rename within (directory, name) pairs, never over something; raise FileExistsError.

    Where the file system or the C library cannot, it is looked first and renamed then.
    """
    rename = getattr(_libc, "renameat2", None)
    if rename is not None:
        names = os.fsencode(source[1]), os.fsencode(target[1])
        if rename(source[0], names[0], target[0], names[1], _RENAME_NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
        if number not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(number, os.strerror(number), target[1])
    try:
        os.stat(target[1], dir_fd=target[0], follow_symlinks=False)
    except FileNotFoundError:
        os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target[1])


def sync_file_system(descriptor: int) -> None:
    """Write everything of the file system to its disk: one wait for any number of files."""
    if _libc.syncfs(descriptor) != 0:
        _raise()


def open_inotify() -> int:
    """Return a descriptor that tells of changes; it never waits."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def add_watch(inotify: int, directory: int, mask: int) -> int:
    """Watch an open directory, whatever its path has become; return the watch's number."""
    # A descriptor's own link under /proc leads to what is open, so nothing is looked up again.
    path = f"/proc/self/fd/{directory}".encode()
    return _checked(_libc.inotify_add_watch(inotify, path, mask))


def remove_watch(inotify: int, watch: int) -> None:
    """Watch this directory no more; nothing happens if it is gone."""
    _libc.inotify_rm_watch(inotify, watch)


def _checked(result: int) -> int:
    if result < 0:
        _raise()
    return result


def _raise() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
