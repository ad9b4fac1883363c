"""Files, over the runtime's routes `/upload`, `/download`, `/list` and `/exists`.

A path is one segment of the target, `/` encoded with the rest, so that nothing on the way
takes it apart. Relative paths start at the sandbox's working directory.
"""

import errno
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import BinaryIO, TypeVar
from urllib.parse import quote

from sandgate._wire.members import (
    Members,
    integer,
    number,
    parse_json,
    parse_list,
    parse_members,
    text,
)
from sandgate._wire.message import CALL_GAP, Body, Call, Reply, Request, base_fields, nothing
from sandgate._wire.multipart import build_multipart
from sandgate._wire.refusals import parse_refusal
from sandgate._wire.route import Route
from sandgate.errors import (
    SandboxFileError,
    SandboxFileNotFound,
    SandboxIsADirectory,
    SandboxNotADirectory,
    SandboxPermissionDenied,
    SandboxRefused,
    SandgateError,
    UnexpectedAnswer,
)
from sandgate.types import FileInfo

T = TypeVar("T")

_CLIENT_MARGIN = 5.0
"""Seconds by which the gateway's own time-out comes first: its answer says what happened."""

_MESSAGES: dict[str, type[SandboxFileError]] = {
    "File not found": SandboxFileNotFound,
    "Access denied": SandboxPermissionDenied,
    "Path is not a directory": SandboxNotADirectory,
}

_NUMBERS: dict[int, type[SandboxFileError]] = {
    errno.ENOENT: SandboxFileNotFound,
    errno.EISDIR: SandboxIsADirectory,
    errno.ENOTDIR: SandboxNotADirectory,
    errno.EACCES: SandboxPermissionDenied,
    errno.EPERM: SandboxPermissionDenied,
}

_ERRNO = re.compile(r"\[Errno ([0-9]{1,3})\]")


def build_write(path: str, content: bytes | BinaryIO, *, route: Route) -> Call[None]:
    """Replace a file; its parents are made. A file object is read while it is sent."""
    if not path:
        raise ValueError("path is empty: it names no file")
    content_type, body = build_multipart(path, content)
    return _call(
        "POST",
        "/upload",
        nothing,
        path=path,
        route=route,
        fields=[("content-type", content_type)],
        body=body,
    )


def build_read(path: str, *, route: Route) -> Call[bytes]:
    """Read a whole file; the same request serves to stream it."""
    return _call(
        "GET",
        f"/download/{encode_path(path)}",
        lambda reply: reply.body,
        path=path,
        route=route,
        accept="*/*",
    )


def build_list(path: str, *, route: Route) -> Call[list[FileInfo]]:
    """List a directory, sorted by name."""
    return _call("GET", f"/list/{encode_path(path)}", parse_listing, path=path, route=route)


def build_exists(path: str, *, route: Route) -> Call[bool]:
    """Ask whether a path exists."""
    return _call("GET", f"/exists/{encode_path(path)}", _parse_exists, path=path, route=route)


def encode_path(path: str) -> str:
    """Return `path` as one segment of a target; raise ValueError for NUL and lone surrogates."""
    if "\0" in path:
        raise ValueError(f"path {path!r} holds NUL")
    try:
        encoded = quote(path, safe="", errors="strict")
    except UnicodeEncodeError as error:
        raise ValueError(f"path {path!r} is no Unicode text") from error
    # "." and ".." are unreserved, and as a segment every proxy may resolve them (RFC 3986 5.2.4).
    return encoded.replace(".", "%2E") if path in {".", ".."} else encoded


def parse_listing(reply: Reply) -> list[FileInfo]:
    """Return the entries of a directory, sorted by name."""
    entries = [_parse_entry(parse_members(entry)) for entry in parse_list(parse_json(reply))]
    return sorted(entries, key=lambda entry: entry.name)


def parse_file_refusal(reply: Reply, *, method: str, path: str) -> SandgateError:
    """Return the error of a refused file call, the built-in one where there is one."""
    error = parse_refusal(reply, method=method)
    if not isinstance(error, SandboxRefused):
        return error
    number = _ERRNO.search(error.detail)
    code = int(number[1]) if number else None
    if code is None and "is a directory" in error.detail.lower():
        code = errno.EISDIR
    by_number = SandboxFileError if code is None else _NUMBERS.get(code, SandboxFileError)
    return _MESSAGES.get(error.detail, by_number)(
        f"{path!r}: {error.detail}",
        path=path,
        number=code,
        status=error.status,
        retry_safe=error.retry_safe,
    )


def _call(
    method: str,
    target: str,
    parse: Callable[[Reply], T],
    *,
    path: str,
    route: Route,
    accept: str = "application/json",
    fields: list[tuple[str, str]] | None = None,
    body: bytes | Body = b"",
) -> Call[T]:
    def decode(reply: Reply) -> T:
        if not 200 <= reply.status < 300:
            raise parse_file_refusal(reply, method=method, path=path)
        return parse(reply)

    all_fields = [*base_fields(accept=accept), *(fields or []), *route.fields(timeout=CALL_GAP)]
    return Call(Request(method, target, all_fields, body, CALL_GAP + _CLIENT_MARGIN), decode)


def _parse_exists(reply: Reply) -> bool:
    exists = parse_members(parse_json(reply)).get("exists")
    if not isinstance(exists, bool):
        raise UnexpectedAnswer(f"member 'exists' is {exists!r:.60}, not a boolean", reached="yes")
    return exists


def _parse_entry(members: Members) -> FileInfo:
    return FileInfo(
        name=text(members, "name"),
        is_dir=text(members, "type", default="file") == "directory",
        size=integer(members, "size", default=0),
        modified=datetime.fromtimestamp(number(members, "mod_time", default=0.0), tz=UTC),
    )
