"""Paths, listings and refusals of files on the wire."""

from datetime import UTC, datetime

import pytest

from sandgate._wire.event_stream import Event
from sandgate._wire.file_errors import parse_file_refusal
from sandgate._wire.files import FileCalls, encode_path, parse_change, parse_head
from sandgate._wire.message import Call, Reply
from sandgate._wire.route import Route
from sandgate.errors import SandboxFileError, SandboxNotFound, UnexpectedAnswer
from sandgate.types import FileChange, FileInfo, Match

CALLS = FileCalls(Route("sb-1", "default", 8888))
LISTING = CALLS.list_page("", recursive=False, pattern=None, cursor=None)


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
        ("a:move", "a%3Amove"),
    ],
)
def test_a_path_is_one_segment_that_nothing_on_the_way_takes_apart(path: str, encoded: str) -> None:
    assert encode_path(path) == encoded


@pytest.mark.parametrize("path", ["a\0b", "\udcff"])
def test_a_path_that_no_url_can_carry_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        encode_path(path)


@pytest.mark.parametrize(
    ("call", "method", "target"),
    [
        (CALLS.read("a/b"), "GET", "/v1/files/a%2Fb"),
        (CALLS.write("a/b", b""), "PUT", "/v1/files/a%2Fb"),
        (CALLS.stat("x"), "HEAD", "/v1/files/x"),
        (LISTING, "GET", "/v1/files/?recursive=false"),
        (
            CALLS.list_page("d", recursive=True, pattern=None, cursor="c+1"),
            "GET",
            "/v1/files/d?recursive=true&cursor=c%2B1",
        ),
        (
            CALLS.list_page("d", recursive=False, pattern="**/*.p y", cursor=None),
            "GET",
            "/v1/files/d?recursive=false&glob=%2A%2A%2F%2A.p%20y",
        ),
        (
            CALLS.search("d", "a&b=ü", pattern="*.py", cursor=None),
            "GET",
            "/v1/files/d?grep=a%26b%3D%C3%BC&glob=%2A.py",
        ),
        (CALLS.remove("x", recursive=False), "DELETE", "/v1/files/x"),
        (CALLS.remove("x", recursive=True), "DELETE", "/v1/files/x?recursive=true"),
        (CALLS.move("a:b", "c", overwrite=False), "POST", "/v1/files/a%3Ab:move"),
        (CALLS.mkdir("x", mode=0o750), "POST", "/v1/files/x:mkdir?mode=0750"),
        (CALLS.archive("d"), "GET", "/v1/files/d?archive=tar.gz"),
        (CALLS.extract("d", [b""]), "PUT", "/v1/files/d?extract=tar.gz"),
        (CALLS.watch("a b", recursive=True), "GET", "/v1/watch?path=a%20b&recursive=true"),
    ],
)
def test_the_file_calls_are_the_routes_of_the_runtime(
    call: Call[object], method: str, target: str
) -> None:
    assert (call.request.method, call.request.target) == (method, target)
    assert ("x-sandbox-id", "sb-1") in call.request.fields
    assert (("x-sandbox-timeout", "60") in call.request.fields) is ("watch" not in target)


@pytest.mark.parametrize(
    "build",
    [
        lambda: CALLS.write("", b""),
        lambda: CALLS.read(""),
        lambda: CALLS.remove("", recursive=True),
        lambda: CALLS.move("", "x", overwrite=True),
        lambda: CALLS.move("x", "", overwrite=True),
        lambda: CALLS.mkdir("", mode=None),
    ],
)
def test_an_empty_path_names_no_file(build: object) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match="names no file"):
        build()


def test_a_listing_has_names_sizes_times_and_modes() -> None:
    body = (
        b'{"path": "/", "entries": [{"name":"b","size":3,"type":"file","mode":"0600",'
        b'"modified_at":"1970-01-01T00:00:01Z"},{"name":"a","type":"directory"}],'
        b'"next_cursor": "c"}'
    )
    page = LISTING.decode(Reply(200, [], body))
    assert page.found == [
        FileInfo("b", False, 3, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "0600"),
        FileInfo("a", True, 0, None),
    ]
    assert page.cursor == "c"


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"entries":[{"size":1}]}', b"<html>"])
def test_a_listing_of_another_shape_is_unexpected(body: bytes) -> None:
    with pytest.raises(UnexpectedAnswer):
        LISTING.decode(Reply(200, [], body))


def test_a_search_tells_names_lines_and_texts() -> None:
    body = b'{"path": "/", "matches": [{"name": "a/b", "line": 7, "text": "found"}]}'
    page = CALLS.search("", "found", pattern=None, cursor=None).decode(Reply(200, [], body))
    assert page.found == [Match("a/b", 7, "found")]
    assert page.cursor is None


def test_a_head_tells_a_file_from_a_directory() -> None:
    fields = [
        ("content-type", "application/octet-stream"),
        ("content-length", "12"),
        ("last-modified", "Mon, 30 Nov 2026 12:00:00 GMT"),
    ]
    found = parse_head(Reply(200, fields, b""), "d/a.txt")
    assert found == FileInfo("a.txt", False, 12, datetime(2026, 11, 30, 12, tzinfo=UTC))
    folder = parse_head(Reply(200, [("content-type", "application/json")], b""), "d/")
    assert folder == FileInfo("d", True, 0, None)


def test_the_listing_of_a_directory_is_not_taken_for_a_files_content() -> None:
    reply = Reply(200, [("content-type", "application/json")], b'{"path": "/", "entries": []}')
    with pytest.raises(IsADirectoryError):
        CALLS.read("src").decode(reply)


@pytest.mark.parametrize(
    ("event", "change"),
    [
        (Event("created", '{"name": "a/b"}'), FileChange("created", "a/b")),
        (Event("modified", '{"name": "a"}'), FileChange("modified", "a")),
        (Event("deleted", '{"name": "a"}'), FileChange("deleted", "a")),
        (Event("overflow", "{}"), FileChange("overflow", "")),
        (Event("renamed", '{"name": "a"}'), None),
    ],
)
def test_a_change_has_its_kind_and_name(event: Event, change: FileChange | None) -> None:
    assert parse_change(event) == change


@pytest.mark.parametrize(
    ("status", "reason", "built_in", "number"),
    [
        (404, "file_not_found", FileNotFoundError, 2),
        (403, "permission_denied", PermissionError, 13),
        (400, "not_a_directory", NotADirectoryError, 20),
        (400, "is_directory", IsADirectoryError, 21),
        (409, "already_exists", FileExistsError, 17),
        (409, "directory_not_empty", OSError, 39),
        (400, "invalid_path", OSError, 22),
        (507, "disk_full", OSError, 28),
    ],
)
def test_a_file_error_is_also_the_built_in_one(
    status: int, reason: str, built_in: type[OSError], number: int
) -> None:
    body = b'{"code": "X", "reason": "%s", "message": "as it is"}' % reason.encode()
    with pytest.raises(built_in) as caught:
        CALLS.read("dir/x").decode(Reply(status, [], body))
    error = caught.value
    assert isinstance(error, SandboxFileError)
    assert (error.code, error.status, error.reached) == (reason, status, "yes")
    assert (error.filename, error.errno) == ("dir/x", number)
    assert str(error) == "as it is"


@pytest.mark.parametrize(
    ("status", "built_in"), [(404, FileNotFoundError), (403, PermissionError), (400, OSError)]
)
def test_a_refused_head_has_no_body_and_still_its_meaning(
    status: int, built_in: type[OSError]
) -> None:
    with pytest.raises(built_in):
        CALLS.stat("x").decode(Reply(status, [], b""))


def test_a_missing_sandbox_is_no_missing_file() -> None:
    reply = Reply(404, [("x-sandbox-error", "sandbox_not_found")], b"")
    for method in ("GET", "HEAD"):
        error = parse_file_refusal(reply, method=method, path="x")
        assert isinstance(error, SandboxNotFound)
        assert not isinstance(error, OSError)
