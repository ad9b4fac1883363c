"""What a directory holds, in the words of `/v1`."""

import os
import stat
from datetime import UTC, datetime
from typing import Literal, NotRequired, TypedDict

from sandgate_runtime.errors import Refusal
from sandgate_runtime.files.opening import open_parent
from sandgate_runtime.files.walking import Found
from sandgate_runtime.paths import PathRules

_SPECIAL = {
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class Entry(TypedDict):
    """One name; a link is described as what it leads to."""

    name: str
    size: int
    type: Literal["file", "directory"]
    modified_at: str
    """RFC 3339, UTC, whole seconds."""
    mode: str
    """Four octal digits."""
    special: NotRequired[str]
    """Only where it can be neither read nor written here: what it is."""


def describe(found: Found, folder: str, rules: PathRules) -> Entry | None:
    """Return the entry; None for a link that is broken or leads out."""
    status: os.stat_result | None = found.status
    if stat.S_ISLNK(found.status.st_mode):
        status = _follow(f"{folder}/{found.name}", rules)
    return None if status is None else build_entry(found.name, status)


def build_entry(name: str, status: os.stat_result) -> Entry:
    """Return the entry of what has this status."""
    entry: Entry = {
        "name": name,
        "size": status.st_size,
        "type": "directory" if stat.S_ISDIR(status.st_mode) else "file",
        "modified_at": format_time(status.st_mtime),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
    }
    special = _SPECIAL.get(stat.S_IFMT(status.st_mode))
    if special is not None:
        entry["special"] = special
    return entry


def format_time(seconds: float) -> str:
    """Return a time as RFC 3339 has it; those outside of years 1 to 9999 become the nearest."""
    # Any program can set any time on its files; a listing has to survive it.
    clamped = min(max(int(seconds // 1), -62_135_596_800), 253_402_300_799)
    moment = datetime.fromtimestamp(clamped, tz=UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _follow(path: str, rules: PathRules) -> os.stat_result | None:
    try:
        with open_parent(rules.resolve(path)) as (directory, name):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (OSError, Refusal):
        return None
    return None if stat.S_ISLNK(status.st_mode) else status
