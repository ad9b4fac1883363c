"""The content of a PUT, raw or as the part `file` of a form, in pieces that suit a disk."""

from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from sandgate_runtime.errors import MalformedForm
from sandgate_runtime.files.form import FileForm, parse_boundary
from sandgate_runtime.files.refusals import IncompleteContent, InvalidParameter, UnsupportedCoding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

WRITE_BYTES = 512 * 1024
"""Collected before a worker thread writes it; one hop to the thread costs as much as 64 KiB."""


def check_content_fields(request: "Request") -> None:
    """Raise for fields that would change what the content means (RFC 9110 8.4, 14.5)."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise UnsupportedCoding(f"Content-Encoding {coding!r}: send the content as it is")
    if "content-range" in request.headers:
        raise InvalidParameter("Content-Range: a file is only written as a whole")


async def read_content(request: "Request") -> "AsyncIterator[bytes]":
    """Yield the content; raise MalformedForm or IncompleteContent."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    pieces = _read_form(request) if media_type == "multipart/form-data" else request.stream()
    waiting = bytearray()
    try:
        async for piece in pieces:
            waiting += piece
            if len(waiting) >= WRITE_BYTES:
                yield bytes(waiting)
                waiting.clear()
    except ClientDisconnect as error:
        raise IncompleteContent("the client went away in the middle of the content") from error
    if waiting:
        yield bytes(waiting)


async def _read_form(request: "Request") -> "AsyncIterator[bytes]":
    form = FileForm(parse_boundary(request.headers.get("content-type", "")), named=False)
    async for piece in request.stream():
        form.feed(piece)
        yield form.take()
    form.finish()
    if form.path is None:
        raise MalformedForm("the form has no part named 'file'")
