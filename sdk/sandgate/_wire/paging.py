"""All pages of what a sandbox lists, as one list."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sandgate._wire.files import FileCalls, Listed
from sandgate._wire.flow import Flow
from sandgate._wire.lease import Lease
from sandgate._wire.message import Call
from sandgate._wire.route import Route
from sandgate.errors import SandboxFileNotFound
from sandgate.types import FileInfo

T = TypeVar("T")


def collect(
    lease: Lease,
    build: Callable[[FileCalls, str | None], Call[Listed[T]]],
    *,
    limit: int | None = None,
) -> Flow[list[T]]:
    """Return what all pages hold, or the first `limit` of it."""
    found: list[T] = []
    cursor: str | None = None
    while limit is None or len(found) < limit:
        page: Listed[T] = yield from lease.authorized(partial(_build_page, build, cursor))
        found += page.found
        cursor = page.cursor
        if cursor is None:
            break
    return found if limit is None else found[:limit]


def _build_page(
    build: Callable[[FileCalls, str | None], Call[Listed[T]]], cursor: str | None, route: Route
) -> Call[Listed[T]]:
    return build(FileCalls(route), cursor)


def exists(lease: Lease, path: str) -> Flow[bool]:
    """Return whether anything is at a path."""
    try:
        yield from lease.authorized(lambda route: FileCalls(route).stat(path))
    except SandboxFileNotFound:
        return False
    return True


def list_sorted(lease: Lease, path: str, *, recursive: bool) -> Flow[list[FileInfo]]:
    """Return the entries of a directory, sorted by name."""
    entries: list[FileInfo] = yield from collect(
        lease,
        lambda calls, cursor: calls.list_page(
            path, recursive=recursive, pattern=None, cursor=cursor
        ),
    )
    return sorted(entries, key=lambda entry: entry.name)
