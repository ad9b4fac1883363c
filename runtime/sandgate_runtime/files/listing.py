"""What a directory holds, as the legacy route tells it."""

import os
import stat
from typing import Literal, TypedDict

from sandgate_runtime.files.opening import open_parent
from sandgate_runtime.paths import Place

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Entry(TypedDict):
    """One name in a directory."""

    name: str
    size: int
    type: Literal["file", "directory"]
    mod_time: float
    """Seconds since 1970."""


def list_directory(place: Place) -> list[Entry]:
    """Return the entries sorted by name; raise NotADirectoryError or FileNotFoundError."""
    with open_parent(place) as (parent, name):
        directory = os.open(name, _LIST, dir_fd=parent)
    try:
        with os.scandir(directory) as entries:
            found = [_describe(entry, directory) for entry in entries]
    finally:
        os.close(directory)
    return sorted((entry for entry in found if entry), key=lambda entry: entry["name"])


def _describe(entry: "os.DirEntry[str]", directory: int) -> Entry | None:
    """Describe what a name stands for: the target of a link, or the link itself if that fails."""
    try:
        status = os.stat(entry.name, dir_fd=directory)
    except OSError:
        try:
            status = os.stat(entry.name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None  # removed while we were looking
    return {
        "name": entry.name,
        "size": status.st_size,
        "type": "directory" if stat.S_ISDIR(status.st_mode) else "file",
        "mod_time": status.st_mtime,
    }
