"""The JSON body of a control request: read within limits, decoded strictly.

Stricter than RFC 8259 section 4: a member that comes twice is refused, since two readers
would take different ones; so is NaN, which JSON does not have and Python's parser takes. That
is why the standard parser stands in front of msgspec, which sees neither.
"""

import asyncio
import json
import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from sandgate_router.errors import (
    BadRequest,
    ContentTooLarge,
    InvalidRequest,
    RequestTimeout,
    UnsupportedMediaType,
)

MAX_BODY_BYTES = 64 * 1024
"""Largest body: a claim with 64 full labels has 24 KiB. Deep nesting is bounded with it."""

BODY_SECONDS = 10.0
"""Longest wait for the whole body; the relay gives a request's head the same time."""

MAX_NUMBER_DIGITS = 32
"""Longest integer. Python's own limit, 4,300, answers with advice for programmers."""

Body = TypeVar("Body", bound=msgspec.Struct)

_MAX_EXACT = 2**53
_QUOTED_CHARACTERS = 80
_PLACE = re.compile(r"(?P<fault>.*) - at `(?:key in )?\$\.?(?P<place>.*)`", re.DOTALL)
"""How msgspec says where a value has the wrong type."""


async def read_json(request: Request, *, timeout: float = BODY_SECONDS) -> object:
    """Return the decoded body of `request`.

    Raises:
        UnsupportedMediaType, ContentTooLarge, RequestTimeout, BadRequest.
    """
    _check_media_type(request)
    try:
        async with asyncio.timeout(timeout):
            content = await _read(request)
    except TimeoutError as error:
        raise RequestTimeout from error
    return parse_json(content)


async def read_optional_json(request: Request) -> object:
    """Return the decoded body of `request`, or an empty object where it has no content.

    Raises:
        UnsupportedMediaType, ContentTooLarge, RequestTimeout, BadRequest.
    """
    if "content-type" in request.headers or _has_content(request):
        return await read_json(request)
    return {}


def parse_json(content: bytes) -> object:
    """Return `content` decoded; raise BadRequest when it is not strictly JSON in UTF-8."""
    try:
        return json.loads(
            content.decode(),
            object_pairs_hook=_unique_members,
            parse_constant=_refuse_constant,
            parse_int=_parse_int,
            parse_float=_parse_float,
        )
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8 at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}.") from error
    except RecursionError:
        raise BadRequest("The body is nested too deeply.") from None


def parse_struct(value: object, kind: type[Body]) -> Body:
    """Return `value`, a decoded JSON value, as a struct; raise InvalidRequest."""
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    members = msgspec.structs.fields(kind)
    names = [member.name for member in members]
    for name in value:
        if name not in names:
            raise InvalidRequest(f"{quoted(name)} is unknown; allowed are {', '.join(names)}")
    for member in members:
        if member.required and member.name not in value:
            raise InvalidRequest(f"{member.name} is required")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_with_place_first(str(error))) from error


def quoted(value: object) -> str:
    """Return a value of the caller's for a message: escaped and not longer than a line."""
    text = repr(value)
    return text if len(text) <= _QUOTED_CHARACTERS else text[: _QUOTED_CHARACTERS - 1] + "…"


def _check_media_type(request: Request) -> None:
    # Only forms and plain text cross origins without a preflight, so this keeps pages out, too.
    fields = request.headers.getlist("content-type")
    if len(fields) != 1 or fields[0].partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaType
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("Send the body without a Content-Encoding.")


def _has_content(request: Request) -> bool:
    fields = request.headers
    return "transfer-encoding" in fields or fields.get("content-length", "0") != "0"


async def _read(request: Request) -> bytes:
    too_large = ContentTooLarge(f"The request content is larger than {MAX_BODY_BYTES} bytes.")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > MAX_BODY_BYTES:
        raise too_large
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY_BYTES:
            raise too_large
    return bytes(content)


def _unique_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise BadRequest(f"The body has the member {quoted(name)} twice.")
        members[name] = value
    return members


def _refuse_constant(name: str) -> object:
    raise BadRequest(f"The body is not JSON: {name} is no JSON number.")


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_NUMBER_DIGITS:
        raise BadRequest(f"The body has a number of {len(digits)} digits.")
    return int(digits)


def _parse_float(text: str) -> int | float:
    # To JSON 8888 and 8888.0 are one number; beyond 2**53 a float is no exact one any more.
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= _MAX_EXACT else number


def _with_place_first(message: str) -> str:
    match = _PLACE.fullmatch(message)
    if match is None:
        return message
    fault = match["fault"].replace("`", "")
    return f"{match['place']}: {fault[0].lower()}{fault[1:]}"
