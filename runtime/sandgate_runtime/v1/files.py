"""`/v1/files/{path}`: read, write, remove, move and make.

Every step that may wait for a disk runs in a worker thread; a slow client never holds one. What
the file system refuses becomes a refusal with the path as the request named it.
"""

import asyncio
import hashlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from starlette.responses import Response

from sandgate_runtime.errors import AccessDenied, BadPath, InvalidRequest
from sandgate_runtime.exchange import read_json
from sandgate_runtime.files.changing import make_directory, move
from sandgate_runtime.files.digests import build_digest, check_digest, is_wanted, parse_digest
from sandgate_runtime.files.opening import MISSING, open_parent
from sandgate_runtime.files.refusals import (
    InvalidParameter,
    IsDirectory,
    PreconditionFailed,
    refuse,
)
from sandgate_runtime.files.removing import empty, remove
from sandgate_runtime.files.replacing import Replacement, find_regular
from sandgate_runtime.files.unpacking import Unpacking
from sandgate_runtime.files.validators import Conditions, build_etag, build_last_modified
from sandgate_runtime.paths import PathRules, Place, decode_path
from sandgate_runtime.v1.content import check_content_fields, read_content
from sandgate_runtime.v1.parameters import read_mode, read_parameters, read_switch
from sandgate_runtime.v1.reading import ARCHIVE, open_answer, parse_reading, refuse_missing

if TYPE_CHECKING:
    import os

    from starlette.requests import Request
    from starlette.types import ASGIApp

T = TypeVar("T")

ROUTE = b"/v1/files/"

MAX_MOVE_BYTES = 64 * 1024
"""Of the body of a move: a path of 4,095 bytes, escaped as \\uXXXX, still fits."""


class V1Files:
    """The routes of files."""

    def __init__(self, rules: PathRules) -> None:
        self._rules = rules
        self._changing = threading.Lock()
        """Held from the last look at a file's validator to its replacement: of two writers who
        both saw the old file, one wins and the other is told. Commands do not take part in it."""

    async def read(self, request: "Request") -> "ASGIApp":
        """GET or HEAD."""
        path = _path(request)
        reading = parse_reading(request)
        return await _on_disk(path, lambda: open_answer(request, path, reading, self._rules))

    async def write(self, request: "Request") -> Response:
        """PUT: replace a file, or unpack an archive into a directory."""
        path = _path(request)
        parameters = read_parameters(request, "mode", "extract")
        check_content_fields(request)
        if "extract" in parameters:
            if parameters != {"extract": ARCHIVE}:
                raise InvalidParameter(f"extract can only be {ARCHIVE}, and no mode with it")
            return await self._unpack(request, path)
        if path.endswith("/"):
            raise IsDirectory(f"{path!r} names a directory: it ends in a slash", path=path)
        return await self._replace(request, path, mode=read_mode(parameters))

    async def remove(self, request: "Request") -> Response:
        """DELETE: a link goes itself, not what it leads to; the base directory is emptied."""
        path = _path(request)
        recursive = read_switch(read_parameters(request, "recursive"), "recursive")
        conditions = Conditions.parse(request.headers)

        def act() -> None:
            place = self._rules.resolve_entry(path)
            if place.path == self._rules.base:
                empty(place, recursive=recursive)
                return
            refuse_missing(place, path)
            self._keep_base(place, path)
            remove(place, recursive=recursive, conditions=conditions)

        await _on_disk(path, act)
        return Response(status_code=204)

    async def move(self, request: "Request") -> Response:
        """POST …:move with `{to, overwrite?}`."""
        path = _path(request, verb=b":move")
        read_parameters(request)
        target, overwrite = _read_move(await read_json(request, maximum=MAX_MOVE_BYTES))

        def act() -> None:
            source, place = self._rules.resolve_entry(path), self._rules.resolve_entry(target)
            refuse_missing(source, path)
            self._keep_base(source, path)
            self._keep_base(place, target)
            move(source, place, overwrite=overwrite)

        await _on_disk(path, act)
        return Response(status_code=204)

    async def make(self, request: "Request") -> Response:
        """POST …:mkdir: 201, or 204 where the directory is there already."""
        path = _path(request, verb=b":mkdir")
        mode = read_mode(read_parameters(request, "mode"))
        is_new = await _on_disk(path, lambda: make_directory(self._rules.resolve(path), mode=mode))
        return Response(status_code=201 if is_new else 204)

    async def _replace(self, request: "Request", path: str, *, mode: int | None) -> Response:
        conditions = Conditions.parse(request.headers)
        expected = parse_digest(request.headers.get("repr-digest"))
        wanted = is_wanted(request.headers.get("want-repr-digest"))
        digest = hashlib.sha256()

        def begin() -> Replacement:
            place = self._rules.resolve(path)
            conditions.check(_find(place), path=path)
            return Replacement(place, mode=mode)

        def write(piece: bytes) -> None:
            if expected is not None or wanted:
                digest.update(piece)
            replacement.write(piece)

        def commit() -> "os.stat_result":
            check_digest(expected, digest.digest(), path=path)
            replacement.sync()
            with self._changing:
                return _rename(replacement, conditions, path)

        replacement = await _on_disk(path, begin)
        try:
            async for piece in read_content(request):
                await _on_disk(path, lambda piece=piece: write(piece))  # type: ignore[misc]
            found = await _on_disk(path, commit)
        finally:
            replacement.discard()
        answer = Response(status_code=204)
        answer.headers["etag"] = build_etag(found)
        answer.headers["last-modified"] = build_last_modified(found)
        if wanted:
            answer.headers["repr-digest"] = build_digest(digest.digest())
        return answer

    async def _unpack(self, request: "Request", path: str) -> Response:
        unpacking = await _on_disk(path, lambda: Unpacking(self._rules.resolve(path)))
        try:
            async for piece in read_content(request):
                await _on_disk(path, lambda piece=piece: unpacking.write(piece))  # type: ignore[misc]
            await _on_disk(path, unpacking.commit)
        finally:
            await asyncio.to_thread(unpacking.discard)
        return Response(status_code=204)

    def _keep_base(self, place: Place, path: str) -> None:
        """Raise for the base directory and what holds it: commands start there."""
        base = self._rules.base
        if not place.parts or base == place.path or base.startswith(place.path + "/"):
            raise AccessDenied(f"{path!r} is or holds the base directory", path=path)


def _path(request: "Request", *, verb: bytes = b"") -> str:
    raw: bytes = request.scope["raw_path"]
    if not raw.endswith(verb):
        raise BadPath(f"the path spells {verb.decode()!r} encoded")
    return decode_path(raw[: len(raw) - len(verb)], ROUTE)


async def _on_disk(path: str, act: Callable[[], T]) -> T:
    """Run a step in a worker thread."""
    try:
        return await asyncio.to_thread(act)
    except OSError as error:
        raise refuse(error, path) from error


def _find(place: Place) -> "os.stat_result | None":
    try:
        with open_parent(place) as (directory, name):
            return find_regular(directory, name, path=place.path)
    except OSError as error:
        if error.errno in MISSING:
            return None  # what is wrong with the path is told when it is opened to be written
        raise


def _rename(replacement: Replacement, conditions: Conditions, path: str) -> "os.stat_result":
    conditions.check(replacement.find(path=path), path=path)
    try:
        return replacement.rename(only_if_absent=conditions.only_if_absent)
    except FileExistsError as error:
        raise PreconditionFailed(f"{path!r} is there already", path=path) from error


def _read_move(body: object) -> tuple[str, bool]:
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    unknown = sorted(body.keys() - {"to", "overwrite"})
    if unknown:
        raise InvalidRequest(f"unknown members: {', '.join(map(repr, unknown))}")
    to, overwrite = body.get("to"), body.get("overwrite", False)
    if not isinstance(to, str) or not to:
        raise InvalidRequest("'to' is not a path")
    if not isinstance(overwrite, bool):
        raise InvalidRequest("'overwrite' is neither true nor false")
    return to, overwrite
