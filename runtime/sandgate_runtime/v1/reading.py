"""GET and HEAD of a path: a file, a directory, a search, or an archive."""

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import Response

from sandgate_runtime.errors import AccessDenied
from sandgate_runtime.exchange import json_answer, until_gone
from sandgate_runtime.files.cursors import parse_cursor
from sandgate_runtime.files.digests import is_wanted
from sandgate_runtime.files.opening import exists, open_regular
from sandgate_runtime.files.packing import Packing, TooShort
from sandgate_runtime.files.pages import MAX_ENTRIES, START, Query, list_page
from sandgate_runtime.files.patterns import Pattern
from sandgate_runtime.files.refusals import (
    FileMissing,
    InvalidParameter,
    NotADirectory,
    PreconditionFailed,
)
from sandgate_runtime.files.search_pages import MAX_MATCHES, search_page
from sandgate_runtime.files.sending import FileAnswer
from sandgate_runtime.files.validators import Conditions
from sandgate_runtime.paths import PathRules, Place
from sandgate_runtime.v1.parameters import read_limit, read_parameters, read_switch

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

ARCHIVE = "tar.gz"

MAX_WANTED_BYTES = 1000
"""Of the text of a search; so a match fits into what an answer shows of a line."""

_KERNEL_FOLDERS = ("/proc", "/sys")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a GET asks for."""

    query: Query
    wanted: bytes | None
    """The text of a search."""
    archive: bool
    plain: bool
    """Whether no parameter speaks of a directory, so that a file may be the answer."""


def parse_reading(request: "Request") -> Reading:
    """Read the parameters; raise InvalidParameter."""
    known = ("recursive", "glob", "grep", "limit", "cursor", "archive")
    parameters = read_parameters(request, *known)
    if "archive" in parameters and (len(parameters) > 1 or parameters["archive"] != ARCHIVE):
        raise InvalidParameter(f"archive can only be {ARCHIVE}, and no other parameter with it")
    wanted = _read_wanted(parameters.get("grep"))
    query = Query(
        recursive=read_switch(parameters, "recursive", default=wanted is not None),
        pattern=Pattern(parameters["glob"]) if "glob" in parameters else None,
        limit=read_limit(parameters, maximum=MAX_ENTRIES if wanted is None else MAX_MATCHES),
        cursor=parse_cursor(parameters["cursor"]) if parameters.get("cursor") else START,
    )
    return Reading(query, wanted, "archive" in parameters, plain=not parameters)


def open_answer(request: "Request", path: str, reading: Reading, rules: PathRules) -> "ASGIApp":
    """Return the answer; may wait for the disk. Raise OSError or a Refusal."""
    place = rules.resolve(path)
    refuse_missing(place, path)
    if reading.archive:
        return ArchiveAnswer(Packing(place), place)
    if reading.wanted is not None:
        return json_answer(search_page(place, rules, reading.query, reading.wanted))
    try:
        return _open_file(request, path, reading, place)
    except IsADirectoryError:
        if request.method == "HEAD":
            answer = Response(media_type="application/json")
            del answer.headers["content-length"]  # known only once it is listed
            return answer
        return json_answer(list_page(place, rules, reading.query))


def refuse_missing(place: Place, path: str) -> None:
    """Raise FileMissing, also where the path leads through a file."""
    if not exists(place):
        raise FileMissing(f"{path!r}: nothing is there", path=path)


def _open_file(request: "Request", path: str, reading: Reading, place: Place) -> FileAnswer:
    conditions = Conditions.parse(request.headers)
    with_digest = is_wanted(request.headers.get("want-repr-digest"))
    descriptor, found = open_regular(place)
    try:
        _check_file(found, path, reading, conditions)
    except BaseException:
        os.close(descriptor)
        raise
    return FileAnswer(
        descriptor,
        found,
        request=request.headers,
        name=path,
        conditions=conditions,
        head_only=request.method == "HEAD",
        with_digest=with_digest,
    )


def _check_file(found: os.stat_result, path: str, reading: Reading, conditions: Conditions) -> None:
    if found.st_dev in {_device(folder) for folder in _KERNEL_FOLDERS}:
        # They are made while they are read, like /proc/self/mem: no size is true.
        raise AccessDenied(f"{path!r} is a file of the kernel's: read it by a command", path=path)
    if not reading.plain:
        raise NotADirectory(f"{path!r} is a file; it can only be read or searched", path=path)
    if not conditions.allow_reading(found):
        raise PreconditionFailed(f"{path!r} is not what the request says it is", path=path)


class ArchiveAnswer:
    """An ASGI answer that packs a directory at the reader's pace."""

    def __init__(self, packing: Packing, place: Place) -> None:
        self._packing = packing
        self._name = quote(os.fsencode(place.parts[-1] if place.parts else "files"), safe="")

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Send it; break off what cannot be finished."""
        name = f"attachment; filename*=utf-8''{self._name}.{ARCHIVE}".encode()
        headers = [(b"content-type", b"application/gzip"), (b"content-disposition", name)]
        gone = asyncio.create_task(until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if scope["method"] != "HEAD" and not await self._send_pieces(send, gone):
                return  # the server closes a connection whose answer is incomplete
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            await asyncio.wait([gone])
            self._packing.close()

    async def _send_pieces(self, send: "Send", gone: "asyncio.Task[None]") -> bool:
        try:
            while (piece := await asyncio.to_thread(self._packing.next_piece)) is not None:
                if gone.done():
                    return False
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (OSError, TooShort):
            return False
        return True


def _read_wanted(text: str | None) -> bytes | None:
    if text is None:
        return None
    wanted = text.encode("utf-8", "surrogateescape")
    if not wanted or len(wanted) > MAX_WANTED_BYTES or b"\n" in wanted:
        raise InvalidParameter(f"grep must be a text of 1 to {MAX_WANTED_BYTES} bytes in one line")
    return wanted


def _device(folder: str) -> int | None:
    try:
        return os.stat(folder).st_dev
    except OSError:
        return None
