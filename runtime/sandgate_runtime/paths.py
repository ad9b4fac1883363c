"""What a path in a request means.

Relative paths start at the base directory, which is also the working directory of commands.
Absolute ones depend on who owns the file system:

- **Isolated**, all of it belongs to the sandbox: an absolute path means what it says, so that
  `/home/user/run.py` is the same file to an upload and to `python3 /home/user/run.py`.
- **Un-isolated**, the file system is the host's: the leading slash is dropped, and nothing
  outside the base directory is reached, through symbolic links neither. An absolute path at or
  below the base directory, as a command there prints it, means itself.

The legacy routes differ, because the clients they are for drop the leading slash before they
send a path (`/home/user/run.py` arrives as `home/user/run.py`). Un-isolated they always start at
the base directory. In an isolated sandbox a path without a slash names, in this order:

1. what exists there, seen from the base directory;
2. the absolute path, if that lies at or below the base directory or below `/tmp`, and the base
   directory has no entry of the path's first name (a project's own `tmp/` or `home/` wins);
3. when reading, the absolute path, if something exists there;
4. the path seen from the base directory.

So `lib/x.py` of a project never lands in `/lib`, and the usual workflow works as written. A path
is percent-decoded once, from the bytes on the wire. Places are resolved here and opened by
`files`, which follows no link any more: a link put in between leads nowhere.
"""

import os
import posixpath
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from sandgate_runtime.errors import AccessDenied, BadPath

MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255
"""What Linux takes (PATH_MAX less its NUL, NAME_MAX)."""

SHARED_TEMPORARY_DIRECTORY = "/tmp"  # noqa: S108 - a rule about paths, nothing is created here


@dataclass(frozen=True, slots=True)
class Place:
    """A path without symbolic links, and the directory that it must not leave."""

    anchor: str
    parts: tuple[str, ...]
    """Names below the anchor; none when the place is the anchor itself."""

    @property
    def path(self) -> str:
        """The absolute path."""
        return posixpath.join(self.anchor, *self.parts)


def decode_path(raw_path: bytes, route: bytes) -> str:
    """Return what follows `route` in the request's raw path, percent-decoded once.

    Bytes that are not UTF-8 become surrogates (PEP 383) and reach the file system unchanged.
    """
    if not raw_path.startswith(route):
        # The router matches the decoded path, so an encoded slash can stand in the route.
        raise BadPath(f"the path {os.fsdecode(raw_path)!r} spells {os.fsdecode(route)!r} encoded")
    return os.fsdecode(unquote_to_bytes(raw_path[len(route) :]))


class PathRules:
    """Turns paths of requests into places."""

    def __init__(self, base_directory: str, *, isolated: bool) -> None:
        self.base = os.path.realpath(base_directory)
        self.isolated = isolated

    def resolve(self, path: str) -> Place:
        """Return the place that a path names; raise BadPath or AccessDenied."""
        _check_spelling(path)
        return self._confine(os.path.realpath(self._absolute(path)), path)

    def resolve_entry(self, path: str) -> Place:
        """Return the place of the name itself: where that is a link, not what it leads to."""
        _check_spelling(path)
        parent, name = posixpath.split(self._absolute(path).rstrip("/"))
        if name in {"", ".", ".."}:
            return self.resolve(path)
        return self._confine(posixpath.join(os.path.realpath(parent), name), path)

    def resolve_legacy(self, path: str, *, writing: bool) -> Place:
        """Return the place that a path of a legacy route names."""
        _check_spelling(path)
        if not self.isolated:
            real = os.path.realpath(posixpath.join(self.base, path.lstrip("/")))
            return self._confine(real, path)
        if path and not path.startswith("/"):
            path = self._restore_slash(path, writing=writing)
        return self.resolve(path)

    def spell(self, place: Place) -> str:
        """Return the absolute path under which a client reaches a place."""
        return place.path if self.isolated else posixpath.join("/", *place.parts)

    def _absolute(self, path: str) -> str:
        if self.isolated or _is_at_or_below(posixpath.normpath(path), self.base):
            return posixpath.join(self.base, path)
        return posixpath.join(self.base, path.lstrip("/"))

    def _confine(self, real: str, path: str) -> Place:
        if self.isolated:
            return _place("/", real)
        if not _is_at_or_below(real, self.base):
            raise AccessDenied("Access denied", path=path)
        return _place(self.base, real)

    def _restore_slash(self, path: str, *, writing: bool) -> str:
        if os.path.lexists(posixpath.join(self.base, path)):
            return path
        absolute = posixpath.normpath("/" + path)
        first_name = path.split("/", 1)[0]
        usual = _is_at_or_below(absolute, self.base) or absolute.startswith(
            SHARED_TEMPORARY_DIRECTORY + "/"
        )
        if usual and not os.path.lexists(posixpath.join(self.base, first_name)):
            return absolute
        if not writing and os.path.lexists(absolute):
            return absolute
        return path


def _check_spelling(path: str) -> None:
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise BadPath("the path has a lone surrogate", path=ascii(path)) from error
    if b"\0" in encoded:
        raise BadPath("the path has a NUL byte", path=path)
    if len(encoded) > MAX_PATH_BYTES:
        raise BadPath(f"the path is longer than {MAX_PATH_BYTES} bytes")
    if any(len(name) > MAX_NAME_BYTES for name in encoded.split(b"/")):
        raise BadPath(f"a name in the path is longer than {MAX_NAME_BYTES} bytes", path=path)


def _is_at_or_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _place(anchor: str, real: str) -> Place:
    relative = posixpath.relpath(real, anchor)
    return Place(anchor, () if relative == "." else tuple(relative.split("/")))
