"""Paths, uploads and listings on the wire."""

import io
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import cast

import pytest
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartParser

from sandgate._wire import files
from sandgate._wire.files import build_exists, build_list, build_read, build_write, encode_path
from sandgate._wire.message import Reply
from sandgate._wire.multipart import UPLOAD_CHUNK_BYTES, Upload, build_filename, build_multipart
from sandgate._wire.route import Route
from sandgate.errors import SandboxFileError, SandboxNotFound, UnexpectedAnswer
from sandgate.types import FileInfo

ROUTE = Route("sb-1", "default", 8888)

NAMES = [
    "run.py",
    "/home/user/run.py",
    "a folder/with spaces .txt",
    " leading and trailing ",
    'quo"ted".txt',
    '"',
    "back\\slash",
    'both\\"',
    "semi;colon=x; filename=y",
    "100%.txt",
    "%2F%22",
    "naïve-日本語-😀.txt",
    "tab\tin it",
    "it's",
    "a:b",
    "*?[x]{y}~|&#+,<>",
]

WINDOWS_NAMES = ["C:\\a.txt", "\\\\host\\share"]
"""Names that form parsers cut; they arrive with ./ in front, which names the same file."""


@pytest.mark.parametrize(
    ("path", "encoded"),
    [
        ("", ""),
        ("a.txt", "a.txt"),
        ("a/b", "a%2Fb"),
        ("/", "%2F"),
        ("../x", "..%2Fx"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("a b+c", "a%20b%2Bc"),
        ("100%2F", "100%252F"),
        ("ü?#", "%C3%BC%3F%23"),
        ("a\nb", "a%0Ab"),
    ],
)
def test_a_path_is_one_segment_that_nothing_on_the_way_takes_apart(path: str, encoded: str) -> None:
    assert encode_path(path) == encoded


@pytest.mark.parametrize("path", ["a\0b", "\udcff"])
def test_a_path_that_no_url_can_carry_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        encode_path(path)


def test_the_file_calls_are_the_routes_of_the_runtime() -> None:
    requests = [
        build_read("a/b", route=ROUTE).request,
        build_list("", route=ROUTE).request,
        build_exists("x", route=ROUTE).request,
    ]
    targets = [(request.method, request.target) for request in requests]
    assert targets == [("GET", "/download/a%2Fb"), ("GET", "/list/"), ("GET", "/exists/x")]
    for request in requests:
        assert ("x-sandbox-id", "sb-1") in request.fields
        assert ("x-sandbox-timeout", "60") in request.fields


def test_an_upload_is_these_bytes() -> None:
    content_type, body = build_multipart('a "b".txt', b"\x00\r\n", boundary="B")
    assert content_type == "multipart/form-data; boundary=B"
    assert body == (
        b"--B\r\n"
        b'content-disposition: form-data; name="file"; filename="a \\"b\\".txt"\r\n'
        b"content-type: application/octet-stream\r\n\r\n"
        b"\x00\r\n"
        b"\r\n--B--\r\n"
    )


@pytest.mark.parametrize("name", NAMES)
async def test_a_form_parser_reads_the_exact_name_and_content(name: str) -> None:
    assert await _parse(name, b"\x00\xff\r\n--x") == (name, b"\x00\xff\r\n--x")


@pytest.mark.parametrize("name", WINDOWS_NAMES)
async def test_a_name_like_a_windows_path_is_not_cut_to_its_last_part(name: str) -> None:
    assert await _parse(name, b"x") == (f"./{name}", b"x")


@pytest.mark.parametrize("path", ["a\nb", "a\rb", "a\0b"])
def test_a_name_that_would_break_out_of_its_field_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        build_filename(path)


def test_a_name_that_looks_escaped_is_sent_in_the_encoded_form_too() -> None:
    assert build_filename("50%22.txt") == ("filename=\"50%22.txt\"; filename*=utf-8''50%2522.txt")
    assert build_filename("50%20.txt") == 'filename="50%20.txt"'


def test_an_empty_path_names_no_file_to_write() -> None:
    with pytest.raises(ValueError, match="names no file"):
        build_write("", b"", route=ROUTE)


def test_a_file_object_is_read_piece_by_piece_from_where_it_stands() -> None:
    source = io.BytesIO(b"skip" + b"x" * (2 * UPLOAD_CHUNK_BYTES))
    source.seek(4)
    _, body = build_multipart("a", source)
    assert isinstance(body, Upload)
    pieces = list(body)
    assert [len(piece) for piece in pieces[1:-1]] == [UPLOAD_CHUNK_BYTES] * 2
    assert not source.closed


def test_a_file_object_in_text_mode_is_refused() -> None:
    call = build_write("a", io.StringIO("text"), route=ROUTE)  # type: ignore[arg-type]
    assert isinstance(call.request.body, Upload)
    with pytest.raises(TypeError, match="binary mode"):
        list(call.request.body)


def test_a_listing_is_sorted_by_name() -> None:
    reply = Reply(
        200,
        [],
        b'[{"name":"b","size":3,"type":"file","mod_time":1.5},'
        b'{"name":"a","size":0,"type":"directory","mod_time":0}]',
    )
    assert build_list("", route=ROUTE).decode(reply) == [
        FileInfo("a", True, 0, datetime(1970, 1, 1, tzinfo=UTC)),
        FileInfo("b", False, 3, datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=UTC)),
    ]


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{"size":1}]', b"<html>"])
def test_a_listing_of_another_shape_is_unexpected(body: bytes) -> None:
    with pytest.raises(UnexpectedAnswer):
        build_list("", route=ROUTE).decode(Reply(200, [], body))


def test_exists_needs_a_plain_yes_or_no() -> None:
    call = build_exists("x", route=ROUTE)
    assert call.decode(Reply(200, [], b'{"path":"x","exists":true}')) is True
    with pytest.raises(UnexpectedAnswer, match="not a boolean"):
        call.decode(Reply(200, [], b'{"exists":"no"}'))


@pytest.mark.parametrize(
    ("status", "message", "built_in", "code"),
    [
        (404, "File not found", FileNotFoundError, "file_not_found"),
        (403, "Access denied", PermissionError, "permission_denied"),
        (404, "Path is not a directory", NotADirectoryError, "not_a_directory"),
        (500, "File upload failed: [Errno 21] Is a directory: 'x'", IsADirectoryError, "is_dir"),
        (500, "File upload failed: Is a directory", IsADirectoryError, "is_directory"),
        (500, "File upload failed: [Errno 13] Permission denied", PermissionError, "permission"),
        (500, "File upload failed: [Errno 28] No space left on device", OSError, "file_error"),
        (500, "File upload failed: who knows", OSError, "file_error"),
    ],
)
def test_a_file_error_is_also_the_built_in_one(
    status: int, message: str, built_in: type[OSError], code: str
) -> None:
    reply = Reply(status, [], b'{"message":"%s"}' % message.encode())
    with pytest.raises(built_in) as caught:
        build_read("dir/x", route=ROUTE).decode(reply)
    error = caught.value
    assert isinstance(error, SandboxFileError)
    assert error.code.startswith(code)
    assert error.filename == "dir/x"
    assert error.status == status
    assert error.reached == "yes"
    assert str(error) == f"'dir/x': {message}"


def test_a_full_disk_keeps_its_error_number() -> None:
    reply = Reply(500, [], b'{"message":"[Errno 28] No space left on device"}')
    error = files.parse_file_refusal(reply, method="POST", path="x")
    assert isinstance(error, OSError)
    assert error.errno == 28


def test_a_missing_sandbox_is_no_missing_file() -> None:
    reply = Reply(404, [("x-sandbox-error", "sandbox_not_found")], b'{"detail":"gone"}')
    error = files.parse_file_refusal(reply, method="GET", path="x")
    assert isinstance(error, SandboxNotFound)
    assert not isinstance(error, OSError)


async def _parse(name: str, content: bytes) -> tuple[str | None, bytes]:
    content_type, body = build_multipart(name, content)

    async def stream() -> AsyncIterator[bytes]:
        yield cast(bytes, body)

    headers = Headers({"content-type": content_type})
    form = await MultiPartParser(headers, stream()).parse()  # type: ignore[arg-type]
    try:
        upload = form["file"]
        assert isinstance(upload, UploadFile)
        return upload.filename, await upload.read()
    finally:
        await form.close()
