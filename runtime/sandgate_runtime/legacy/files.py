"""`/upload`, `/download/…`, `/list/…` and `/exists/…`.

Statuses, bodies and texts are the upstream runtime's. Uploads make missing directories on the
way. What is no regular file is never opened: it answers as if nothing were there.
"""

import asyncio
import os
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from sandgate_runtime.errors import AccessDenied, BadPath, MalformedForm, Refusal
from sandgate_runtime.exchange import json_answer
from sandgate_runtime.files.form import FileForm, parse_boundary
from sandgate_runtime.files.listing import list_directory
from sandgate_runtime.files.opening import MISSING, exists, open_regular, translate
from sandgate_runtime.files.replacing import Replacement
from sandgate_runtime.files.sending import FileAnswer
from sandgate_runtime.paths import PathRules, Place, decode_path

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

WRITE_BYTES = 512 * 1024
"""Collected before a worker thread writes it; one hop to the thread costs as much as 64 KiB."""


class LegacyFiles:
    """The four file routes."""

    def __init__(self, rules: PathRules) -> None:
        self._rules = rules

    async def upload(self, request: "Request") -> "Response":
        """Write the uploaded file to the path that is its filename."""
        try:
            form = FileForm(parse_boundary(request.headers.get("content-type", "")))
            await self._store(request, form)
        except Refusal as error:
            return _refuse(error)
        except OSError as error:
            return json_answer({"message": f"File upload failed: {error}"}, status=500)
        if form.path is None:
            kind, message = "missing", "Field required"
            if form.field_without_file:
                kind, message = "value_error", "Value error, Expected UploadFile, received: str"
            detail = [{"type": kind, "loc": ["body", "file"], "msg": message}]
            return json_answer({"detail": detail}, status=422)
        return json_answer({"message": f"File '{form.path}' uploaded successfully."})

    async def download(self, request: "Request") -> "ASGIApp":
        """Send a file."""
        path = decode_path(request.scope["raw_path"], b"/download/")
        try:
            place = self._rules.resolve_legacy(path, writing=False)
            descriptor, found = await asyncio.to_thread(_open, place)
        except AccessDenied as error:
            return _refuse(error)
        except FileNotFoundError:
            return json_answer({"message": "File not found"}, status=404)
        return FileAnswer(descriptor, found, request=request.headers, name=path)

    async def list(self, request: "Request") -> "Response":
        """List a directory."""
        path = decode_path(request.scope["raw_path"], b"/list/")
        place = self._rules.resolve_legacy(path, writing=False)
        try:
            return json_answer(await asyncio.to_thread(list_directory, place))
        except OSError as error:
            if error.errno in MISSING:
                return json_answer({"message": "Path is not a directory"}, status=404)
            refusal = translate(error, place)
            if isinstance(refusal, Refusal):
                return _refuse(refusal)
            return json_answer({"message": f"List files failed: {error}"}, status=500)

    async def exists(self, request: "Request") -> "Response":
        """Say whether something is there."""
        path = decode_path(request.scope["raw_path"], b"/exists/")
        place = self._rules.resolve_legacy(path, writing=False)
        return json_answer({"path": path, "exists": await asyncio.to_thread(exists, place)})

    async def _store(self, request: "Request", form: FileForm) -> None:
        """Stream the body into a replacement of the file, and put it in place at the end."""
        replacement: Replacement | None = None
        try:
            async for piece in request.stream():
                form.feed(piece)
                if form.path is None or (replacement and form.waiting < WRITE_BYTES):
                    continue
                if replacement is None:
                    replacement = await self._begin(form.path)
                await asyncio.to_thread(replacement.write, form.take())
            form.finish()
            if replacement is not None:
                await asyncio.to_thread(_finish, replacement, form.take())
        except ClientDisconnect as error:
            raise MalformedForm("the client went away in the middle of the body") from error
        finally:
            if replacement is not None:
                replacement.discard()

    async def _begin(self, path: str) -> Replacement:
        place = self._rules.resolve_legacy(path, writing=True)
        if not place.parts:
            raise BadPath("the filename does not name a file", path=path)
        return await asyncio.to_thread(_create, place)


def _open(place: Place) -> tuple[int, os.stat_result]:
    try:
        return open_regular(place)
    except IsADirectoryError as error:
        raise FileNotFoundError from error
    except AccessDenied as error:
        # A FIFO, a device, a socket: there is no file to be downloaded.
        raise FileNotFoundError from error
    except OSError as error:
        if error.errno in MISSING:
            raise FileNotFoundError from error
        raise translate(error, place) from error


def _create(place: Place) -> Replacement:
    try:
        return Replacement(place)
    except (IsADirectoryError, NotADirectoryError):
        raise
    except OSError as error:
        raise translate(error, place) from error


def _finish(replacement: Replacement, rest: bytes) -> None:
    replacement.write(rest)
    replacement.commit()


def _refuse(error: Refusal) -> "Response":
    return json_answer({"message": error.message}, status=error.status)
