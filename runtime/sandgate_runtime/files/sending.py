"""Send a file in pieces, at constant memory and at the reader's pace.

The file is read through one open descriptor, so a name that is replaced meanwhile changes
nothing: the reader gets the whole old content. A file that shrinks under our hands cannot keep
the length that was promised, so the connection is broken off, never ended cleanly.
"""

import asyncio
import os
from email.utils import formatdate
from typing import TYPE_CHECKING
from urllib.parse import quote

from sandgate_runtime.exchange import until_gone
from sandgate_runtime.files.ranges import RangeNotSatisfiable, parse_range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

PIECE_BYTES = 256 * 1024
"""Read at once. Below 64 KiB the hop to the worker thread costs more than the reading."""


class FileAnswer:
    """An ASGI answer with the content of an open file, which it closes."""

    def __init__(
        self, descriptor: int, found: os.stat_result, *, request: "Mapping[str, str]", name: str
    ) -> None:
        """`request` holds the fields of the request, `name` is the path as it was asked for."""
        self._descriptor = descriptor
        self._size = found.st_size
        self._etag = f'"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}"'
        self._modified = formatdate(found.st_mtime, usegmt=True)
        self._request = request
        self._name = name

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
        fields = [
            ("content-type", "application/octet-stream"),
            ("content-disposition", _attachment(self._name)),
            ("accept-ranges", "bytes"),
            ("etag", self._etag),
            ("last-modified", self._modified),
        ]
        try:
            wanted = self._wanted_range()
        except RangeNotSatisfiable:
            fields += [("content-range", f"bytes */{self._size}"), ("content-length", "0")]
            await _start(send, 416, fields)
            await send({"type": "http.response.body", "body": b""})
            return
        first, end = wanted if wanted is not None else (0, self._size)
        fields.append(("content-length", str(end - first)))
        if wanted is not None:
            fields.append(("content-range", f"bytes {first}-{end - 1}/{self._size}"))
        await _start(send, 200 if wanted is None else 206, fields)
        await self._send_content(send, gone, first, end)

    def _wanted_range(self) -> tuple[int, int] | None:
        value = self._request.get("range")
        condition = self._request.get("if-range")
        if value is None or (condition is not None and condition not in self._validators()):
            return None
        return parse_range(value, self._size)

    def _validators(self) -> tuple[str, str]:
        return self._etag, self._modified

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


async def _start(send: "Send", status: int, fields: list[tuple[str, str]]) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in fields]
    await send({"type": "http.response.start", "status": status, "headers": headers})
