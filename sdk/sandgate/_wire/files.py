"""Files: the requests of `/v1/files` and `/v1/watch`, and what their answers say.

A path is one segment of the target, `/` encoded with the rest, so that nothing on the way
takes it apart. Relative paths start at the sandbox's working directory.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

from sandgate._wire.event_stream import Event
from sandgate._wire.file_errors import check_is_file, parse_file_refusal
from sandgate._wire.members import (
    Members,
    integer,
    optional_text,
    optional_time,
    parse_json,
    parse_list,
    parse_members,
    text,
)
from sandgate._wire.message import CALL_GAP, Body, Call, Reply, Request, base_fields, nothing
from sandgate._wire.route import Route
from sandgate.types import FileChange, FileInfo, Match

T = TypeVar("T")

ARCHIVE = "tar.gz"

_CLIENT_MARGIN = 5.0
"""Seconds by which the gateway's own time-out comes first: its answer says what happened."""


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """One page of what was asked for, and where the next begins."""

    found: list[T]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class FileCalls:
    """Builds the calls about the files of one sandbox for one route."""

    route: Route
    gap: float = field(default=CALL_GAP)

    def write(self, path: str, content: bytes | Body) -> Call[None]:
        """Replace a file; its parents are made. A body is produced while it is sent."""
        return self._call("PUT", _named(path), nothing, path=path, body=content)

    def extract(self, path: str, archive: Body) -> Call[None]:
        """Unpack an archive into a directory."""
        return self._call("PUT", path, nothing, {"extract": ARCHIVE}, body=archive)

    def read(self, path: str) -> Call[bytes]:
        """Read a whole file; the same request serves to stream it."""

        def parse(reply: Reply) -> bytes:
            check_is_file(reply.field("content-type"), path)
            return reply.body

        return self._call("GET", _named(path), parse, path=path, accept="*/*")

    def archive(self, path: str) -> Call[bytes]:
        """Read a directory as an archive; to be streamed."""
        return self._call("GET", path, _body, {"archive": ARCHIVE}, accept="*/*")

    def list_page(
        self, path: str, *, recursive: bool, pattern: str | None, cursor: str | None
    ) -> Call[Listed[FileInfo]]:
        """List a directory, or what of it has a name of this pattern, from a cursor on."""
        # Always one parameter, so that a file is an error and not its content.
        query = {"recursive": "true" if recursive else "false", "glob": pattern, "cursor": cursor}
        return self._call("GET", path, parse_listing, query)

    def search(
        self, path: str, wanted: str, *, pattern: str | None, cursor: str | None
    ) -> Call[Listed[Match]]:
        """Look for a text in the files of a directory, or in one file, from a cursor on."""
        query = {"grep": wanted, "glob": pattern, "cursor": cursor}
        return self._call("GET", path, parse_matches, query)

    def stat(self, path: str) -> Call[FileInfo]:
        """Ask what is at a path."""
        return self._call("HEAD", path, lambda reply: parse_head(reply, path), accept="*/*")

    def remove(self, path: str, *, recursive: bool) -> Call[None]:
        """Remove a file, an empty directory, or with `recursive` a directory with all in it."""
        query = {"recursive": "true"} if recursive else {}
        return self._call("DELETE", _named(path), nothing, query, path=path)

    def move(self, path: str, to: str, *, overwrite: bool) -> Call[None]:
        """Rename."""
        content = {"to": _named(to), "overwrite": overwrite}
        return self._call("POST", _named(path), nothing, verb=":move", path=path, content=content)

    def mkdir(self, path: str, *, mode: int | None) -> Call[bool]:
        """Make a directory with its parents; tell whether it is new."""
        query = {} if mode is None else {"mode": f"{mode:04o}"}
        return self._call("POST", _named(path), _is_new, query, verb=":mkdir", path=path)

    def watch(self, path: str, *, recursive: bool) -> Call[None]:
        """Follow changes; the answer is a stream."""
        query = {"path": path, "recursive": "true" if recursive else "false"}
        target = f"/v1/watch?{urlencode(query, quote_via=quote, safe='')}"
        return self._at("GET", target, nothing, path=path, accept="text/event-stream")

    def _call(
        self,
        method: str,
        place: str,
        parse: Callable[[Reply], T],
        query: Mapping[str, str | None] | None = None,
        *,
        verb: str = "",
        path: str | None = None,
        accept: str = "application/json",
        content: Mapping[str, object] | None = None,
        body: bytes | Body = b"",
    ) -> Call[T]:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"/v1/files/{encode_path(place)}{verb}"
        if given:
            target += f"?{urlencode(given, quote_via=quote, safe='')}"
        fields = []
        if content is not None:
            fields, body = [("content-type", "application/json")], json.dumps(content).encode()
        elif method == "PUT":
            fields = [("content-type", "application/octet-stream")]
        path = place if path is None else path
        return self._at(method, target, parse, path=path, accept=accept, fields=fields, body=body)

    def _at(
        self,
        method: str,
        target: str,
        parse: Callable[[Reply], T],
        *,
        path: str,
        accept: str,
        fields: list[tuple[str, str]] | None = None,
        body: bytes | Body = b"",
    ) -> Call[T]:
        def decode(reply: Reply) -> T:
            if not 200 <= reply.status < 300:
                raise parse_file_refusal(reply, method=method, path=path)
            return parse(reply)

        timeout = None if accept == "text/event-stream" else self.gap
        route = self.route.fields(timeout=timeout)
        all_fields = [*base_fields(accept=accept), *(fields or []), *route]
        gap = self.gap + _CLIENT_MARGIN
        return Call(Request(method, target, all_fields, body, gap, self.route.origin), decode)


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


def parse_listing(reply: Reply) -> Listed[FileInfo]:
    """Return a page of the entries of a directory."""
    members = parse_members(parse_json(reply))
    entries = [_parse_entry(parse_members(one)) for one in parse_list(members.get("entries"))]
    return Listed(entries, optional_text(members, "next_cursor"))


def parse_matches(reply: Reply) -> Listed[Match]:
    """Return a page of what a search found."""
    members = parse_members(parse_json(reply))
    found = [
        Match(text(match, "name"), integer(match, "line"), text(match, "text"))
        for match in map(parse_members, parse_list(members.get("matches")))
    ]
    return Listed(found, optional_text(members, "next_cursor"))


def parse_head(reply: Reply, path: str) -> FileInfo:
    """Return what the fields of an answer say of a path."""
    is_dir = (reply.field("content-type") or "").startswith("application/json")
    length = reply.field("content-length") or ""
    return FileInfo(
        name=path.rstrip("/").rpartition("/")[2],
        is_dir=is_dir,
        size=int(length) if length.isdecimal() and not is_dir else 0,
        modified=_time(reply.field("last-modified")),
    )


def parse_change(event: Event) -> FileChange | None:
    """Return the change that an event tells; None for `ready` and what is unknown here."""
    members = parse_members(json.loads(event.data))
    match event.type:
        case "created" | "modified" | "deleted":
            return FileChange(event.type, text(members, "name"))
        case "overflow":
            return FileChange("overflow", "")
    return None


def _parse_entry(members: Members) -> FileInfo:
    return FileInfo(
        name=text(members, "name"),
        is_dir=text(members, "type", default="file") == "directory",
        size=integer(members, "size", default=0),
        modified=optional_time(members, "modified_at"),
        mode=optional_text(members, "mode"),
    )


def _named(path: str) -> str:
    if not path:
        raise ValueError("path is empty: it names no file")
    return path


def _body(reply: Reply) -> bytes:
    return reply.body


def _is_new(reply: Reply) -> bool:
    return reply.status == 201


def _time(value: str | None) -> datetime | None:
    from email.utils import parsedate_to_datetime  # it brings half of the standard library

    try:
        return parsedate_to_datetime(value or "")
    except ValueError:
        return None
