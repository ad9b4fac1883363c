"""Send a file in pieces, at constant memory and at the reader's pace.

The file is read through one open descriptor, so a name that is replaced meanwhile changes
nothing: the reader gets the whole old content. A file that shrinks under our hands cannot keep
the length that was promised, so the connection is broken off, never ended cleanly.
"""

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from sandgate_runtime.exchange import until_gone
from sandgate_runtime.files.digests import build_digest
from sandgate_runtime.files.ranges import RangeNotSatisfiable, parse_range
from sandgate_runtime.files.validators import Conditions, build_etag, build_last_modified

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    Fields = list[tuple[str, str]]

PIECE_BYTES = 256 * 1024
"""Read at once. Below 64 KiB the hop to the worker thread costs more than the reading."""

_NO_CONDITIONS = Conditions()


class FileAnswer:
    """An ASGI answer with the content of an open file, which it closes."""

    def __init__(
        self,
        descriptor: int,
        found: os.stat_result,
        *,
        request: "Mapping[str, str]",
        name: str,
        conditions: Conditions = _NO_CONDITIONS,
        head_only: bool = False,
        with_digest: bool = False,
    ) -> None:
        """`request` holds the fields of the request, `name` is the path as it was asked for.

        If-Match and If-Unmodified-Since are the caller's to check.
        """
        self._descriptor = descriptor
        self._found = found
        self._size = found.st_size
        self._request = request
        self._name = name
        self._conditions = conditions
        self._head_only = head_only
        self._with_digest = with_digest

    async def __call__(self, _scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Send head and content; stop when the reader goes."""
        gone = asyncio.create_task(until_gone(receive))
        try:
            await self._answer(send, gone)
        finally:
            gone.cancel()
            await asyncio.wait([gone])
            os.close(self._descriptor)

    async def _answer(self, send: "Send", gone: "asyncio.Task[None]") -> None:
        fields = [("etag", build_etag(self._found)), ("last-modified", self._modified)]
        if self._conditions.is_known(self._found):
            await _end(send, 304, fields)
            return
        fields += [
            ("content-type", "application/octet-stream"),
            ("content-disposition", _attachment(self._name)),
            ("accept-ranges", "bytes"),
        ]
        try:
            wanted = self._wanted_range()
        except RangeNotSatisfiable:
            fields += [("content-range", f"bytes */{self._size}"), ("content-length", "0")]
            await _end(send, 416, fields)
            return
        first, end = wanted if wanted is not None else (0, self._size)
        fields.append(("content-length", str(end - first)))
        if wanted is not None:
            fields.append(("content-range", f"bytes {first}-{end - 1}/{self._size}"))
        if self._with_digest:
            fields.append(("repr-digest", build_digest(await self._digest(gone))))
        await _start(send, 200 if wanted is None else 206, fields)
        await self._send_content(send, gone, first, first if self._head_only else end)

    @property
    def _modified(self) -> str:
        return build_last_modified(self._found)

    def _wanted_range(self) -> tuple[int, int] | None:
        value = self._request.get("range")
        condition = self._request.get("if-range")
        if value is None or self._head_only:
            return None  # ranges are defined for GET alone (RFC 9110 section 14.2)
        if condition is not None and condition not in {build_etag(self._found), self._modified}:
            return None
        return parse_range(value, self._size)

    async def _digest(self, gone: "asyncio.Task[None]") -> bytes:
        """Read it all once before the head goes out: constant memory has this price."""
        digest = hashlib.sha256()
        position = 0
        while position < self._size and not gone.done():
            wanted = min(PIECE_BYTES, self._size - position)
            piece = await asyncio.to_thread(_read_into, digest, self._descriptor, wanted, position)
            if not piece:
                break  # it shrank: sending it will fail too
            position += piece
        return digest.digest()

    async def _send_content(
        self, send: "Send", gone: "asyncio.Task[None]", first: int, end: int
    ) -> None:
        while first < end and not gone.done():
            wanted = min(PIECE_BYTES, end - first)
            piece = await asyncio.to_thread(os.pread, self._descriptor, wanted, first)
            if not piece:
                return  # it shrank: the server closes a connection whose answer is incomplete
            first += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _attachment(name: str) -> str:
    """Build Content-Disposition (RFC 6266): plain where possible, encoded otherwise."""
    encoded = quote(os.fsencode(name), safe="/")
    if encoded == name:
        return f'attachment; filename="{name}"'
    return f"attachment; filename*=utf-8''{encoded}"


def _read_into(digest: "hashlib._Hash", descriptor: int, size: int, position: int) -> int:
    piece = os.pread(descriptor, size, position)
    digest.update(piece)
    return len(piece)


async def _end(send: "Send", status: int, fields: "Fields") -> None:
    await _start(send, status, fields)
    await send({"type": "http.response.body", "body": b""})


async def _start(send: "Send", status: int, fields: "Fields") -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in fields]
    await send({"type": "http.response.start", "status": status, "headers": headers})
