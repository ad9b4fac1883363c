"""What every route needs of an exchange: a JSON body in, a JSON body out, and who has gone."""

import asyncio
import json
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from sandgate_runtime.errors import ContentTooLarge, MalformedJson, UnsupportedMediaType

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.requests import Request
    from starlette.types import Receive

T = TypeVar("T")


def json_answer(content: object, *, status: int = 200) -> Response:
    """Build a JSON answer; names that are not UTF-8 stay readable as escaped surrogates."""
    return Response(json.dumps(content), status_code=status, media_type="application/json")


def media_type_of(request: "Request") -> str:
    """Return what the body is said to be, in lower case and without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json(request: "Request", *, maximum: int) -> object:
    """Return the decoded body; raise UnsupportedMediaType, ContentTooLarge or MalformedJson."""
    return parse_json(await read_body(request, maximum=maximum))


async def read_body(request: "Request", *, maximum: int) -> bytes:
    """Return the bytes of a JSON body; raise UnsupportedMediaType or ContentTooLarge.

    The type is asked for because a web page can send text/plain anywhere without permission, and
    `application/json` only after a preflight that is refused here.
    """
    if media_type_of(request) != "application/json":
        raise UnsupportedMediaType("send the body as Content-Type: application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > maximum:
            raise ContentTooLarge(f"the body is longer than {maximum} bytes")
    return bytes(body)


def parse_json(body: bytes) -> object:
    """Return what the bytes spell; raise MalformedJson."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(f"the body is not JSON: {error}") from error


async def until_gone(receive: "Receive") -> None:
    """Return when the client has closed its connection; to be awaited once the body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(
    work: "Coroutine[object, None, T]", gone: "Coroutine[object, None, None]"
) -> T:
    """Return what the work does; cancel it and raise ClientDisconnect if its client goes first."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(gone)
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
