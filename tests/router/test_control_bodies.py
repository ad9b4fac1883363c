"""JSON bodies: strict, bounded, and never the end of the process."""

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from sandgate_router.control.bodies import (
    MAX_BODY_BYTES,
    parse_json,
    parse_struct,
    quoted,
    read_json,
)
from sandgate_router.errors import (
    BadRequest,
    ContentTooLarge,
    InvalidRequest,
    RequestTimeout,
    UnsupportedMediaType,
)

NO_JSON = [
    b"",
    b" ",
    b"{",
    b"{]",
    b"nope",
    b"{'pool': 'python'}",
    b'{"pool": "python",}',
    b'{"pool": "python"} x',
    b'{"pool": "python"}{"pool": "python"}',
    b'{"pool": "py\nthon"}',
    b'{"lease_seconds": 01}',
    b'{"lease_seconds": +1}',
    b'{"lease_seconds": .5}',
    b'{"lease_seconds": 0x10}',
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b'{"pool": "\xff"}',
    b'{"pool": "python", /* */ "name": "a"}',
]
NOT_STRICT = [
    (b'{"lease_seconds": NaN}', "NaN is no JSON number"),
    (b'{"lease_seconds": -Infinity}', "-Infinity is no JSON number"),
    (b'{"pool": "a", "pool": "b"}', "the member 'pool' twice"),
    (b'{"pool": "a", "p\\u006fol": "b"}', "the member 'pool' twice"),
    (b'{"labels": {"a": "1", "a": "1"}}', "the member 'a' twice"),
    (b'{"lease_seconds": %s}' % (b"1" * 5000), "a number of 5000 digits"),
    (b"[" * 60_000, "nested too deeply"),
    (b'{"a":' * 12_000, "nested too deeply"),
    (b"[" * 30_000 + b"]" * 30_000, "nested too deeply"),
]


class Sized(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    size: int = 1
    tags: dict[str, str] = {}
    steps: list[int] = []


def request(
    *parts: bytes,
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),),
    then: Literal["end", "silence", "departure"] = "end",
) -> Request:
    """Build a request whose body comes in `parts`, and what happens after them."""
    script = iter(parts)
    left = len(parts)

    async def receive() -> Message:
        nonlocal left
        left -= 1
        for part in script:
            return {"type": "http.request", "body": part, "more_body": left > 0 or then != "end"}
        if then == "silence":
            await asyncio.Event().wait()
        assert then == "departure"
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


@pytest.mark.parametrize("content", NO_JSON)
def test_what_is_not_json_is_a_bad_request(content: bytes) -> None:
    with pytest.raises(BadRequest, match="The body is not"):
        parse_json(content)


@pytest.mark.parametrize(("content", "reason"), NOT_STRICT)
def test_json_that_two_readers_could_read_differently_or_not_at_all_is_a_bad_request(
    content: bytes, reason: str
) -> None:
    with pytest.raises(BadRequest, match=reason):
        parse_json(content)


@pytest.mark.timeout(10)
def test_a_repeated_member_at_the_end_of_a_full_body_is_found_without_delay() -> None:
    members = ",".join(f'"{number:x}":0' for number in range(6000))
    content = f'{{{members},"0":1}}'.encode()
    with pytest.raises(BadRequest, match="the member '0' twice"):
        parse_json(content)


def test_json_is_decoded() -> None:
    assert parse_json(b' {"a": [1, 2.5, null, true, "\\u00e9"]}\n') == {
        "a": [1, 2.5, None, True, "é"]
    }


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"8888.0", 8888),
        (b"1e3", 1000),
        (b"-0.0", 0),
        (b"1.5", 1.5),
        (b"9007199254740992.0", 2**53),
        (b"1e22", 1e22),
        (b"1e999", float("inf")),
    ],
)
def test_a_whole_number_is_one_however_it_is_written(text: bytes, number: float) -> None:
    found = parse_json(text)
    assert (found, type(found)) == (number, type(number))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "The body must be a JSON object."),
        ([], "The body must be a JSON object."),
        ("x", "The body must be a JSON object."),
        ({}, "name is required"),
        ({"name": "a", "image": 1}, "'image' is unknown; allowed are name, size, tags, steps"),
        ({"name": "a", "": 1}, "'' is unknown; allowed are name, size, tags, steps"),
        ({"name": 1}, "name: expected str, got int"),
        ({"name": None}, "name: expected str, got null"),
        ({"name": "a", "size": "1"}, "size: expected int, got str"),
        ({"name": "a", "size": True}, "size: expected int, got bool"),
        ({"name": "a", "size": 1.5}, "size: expected int, got float"),
        ({"name": "a", "tags": {"k": 1}}, "tags[...]: expected str, got int"),
        ({"name": "a", "steps": [1, []]}, "steps[1]: expected int, got array"),
    ],
)
def test_a_wrong_member_is_named_first_and_what_is_allowed_after(
    value: object, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_struct(value, Sized)
    assert caught.value.message == message


def test_a_fault_of_the_whole_body_is_told_as_it_is() -> None:
    class Paired(msgspec.Struct):
        low: int
        high: int

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low is above high")

    with pytest.raises(InvalidRequest, match=r"^low is above high$"):
        parse_struct({"low": 2, "high": 1}, Paired)


def test_a_quoted_value_fits_in_a_line() -> None:
    assert quoted("a") == "'a'"
    assert quoted("a\n") == r"'a\n'"
    assert len(quoted("a" * 60_000)) == 80


async def test_a_body_in_parts_is_read_to_its_end() -> None:
    assert await read_json(request(b'{"po', b'ol": ', b"1}")) == {"pool": 1}


@pytest.mark.parametrize(
    "media_type",
    [b"application/json", b"Application/JSON; charset=utf-8", b"application/json ;a=b"],
)
async def test_parameters_and_case_of_the_content_type_do_not_matter(media_type: bytes) -> None:
    assert await read_json(request(b"1", headers=[(b"content-type", media_type)])) == 1


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"")],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"application/x-www-form-urlencoded")],
        [(b"content-type", b"multipart/form-data; boundary=application/json")],
        [(b"content-type", b"text/plain; application/json")],
        [(b"content-type", b"application/json, text/plain")],
        [(b"content-type", b"application/json-patch+json")],
        [(b"content-type", b"application/json"), (b"content-type", b"text/plain")],
        [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")],
    ],
)
async def test_a_body_that_is_not_plain_json_is_unsupported(
    headers: list[tuple[bytes, bytes]],
) -> None:
    with pytest.raises(UnsupportedMediaType):
        await read_json(request(b"{}", headers=headers))


async def test_a_body_as_large_as_the_limit_passes() -> None:
    text = b'"' + b"a" * (MAX_BODY_BYTES - 2) + b'"'
    assert len(str(await read_json(request(text)))) == MAX_BODY_BYTES - 2


@pytest.mark.parametrize("length", [b"65537", b"10000000", b"9" * 5000])
async def test_a_body_that_announces_too_much_is_refused_unread(length: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    with pytest.raises(ContentTooLarge, match="larger than 65536 bytes"):
        await read_json(request(headers=headers))


async def test_a_body_that_grows_too_large_is_refused_on_the_way() -> None:
    with pytest.raises(ContentTooLarge):
        await read_json(request(*[b" " * 1024] * 65, b"never read"))


async def test_a_body_that_stalls_is_a_request_timeout() -> None:
    with pytest.raises(RequestTimeout):
        await read_json(request(b'{"po', then="silence"), timeout=0.01)


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_noticed() -> None:
    with pytest.raises(ClientDisconnect):
        await read_json(request(b'{"po', then="departure"))
