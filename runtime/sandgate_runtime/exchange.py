"""What every route needs of an exchange: a JSON body in, a JSON body out, and who has gone."""

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from sandgate_runtime.errors import ContentTooLarge, MalformedJson, UnsupportedMediaType
from sandgate_runtime.limits import MAX_JSON_BYTES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive


def json_answer(content: object, *, status: int = 200) -> Response:
    """Build a JSON answer; names that are not UTF-8 stay readable as escaped surrogates."""
    return Response(json.dumps(content), status_code=status, media_type="application/json")


async def read_json(request: "Request") -> object:
    """Return the decoded body; raise UnsupportedMediaType, ContentTooLarge or MalformedJson.

    The type is asked for because a web page can send text/plain anywhere without permission, and
    `application/json` only after a preflight that is refused here.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType("send the body as Content-Type: application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_JSON_BYTES:
            raise ContentTooLarge(f"the body is longer than {MAX_JSON_BYTES} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedJson(f"the body is not JSON: {error}") from error


async def until_gone(receive: "Receive") -> None:
    """Return when the client has closed its connection; to be awaited once the body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass
