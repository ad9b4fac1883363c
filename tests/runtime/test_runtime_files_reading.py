"""GET and HEAD of a file under `/v1`: content, ranges, conditions, digests, and what is no file."""

import base64
import hashlib
import os
import socket

import httpx
import pytest
from support.file_calls import at, reason
from support.runtime_server import RuntimeServer, start_runtime, wait_until


@pytest.fixture
def digits(fresh_runtime: RuntimeServer) -> RuntimeServer:
    (fresh_runtime.base / "f").write_bytes(b"0123456789")
    return fresh_runtime


def get(server: RuntimeServer, path: str = "f", **fields: str) -> httpx.Response:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    return server.client.get(at(path), headers=headers)


def test_a_file_comes_with_its_length_time_and_validators(digits: RuntimeServer) -> None:
    os.utime(digits.base / "f", (0, 86_400))
    answer = get(digits)
    assert (answer.status_code, answer.content) == (200, b"0123456789")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["last-modified"] == "Fri, 02 Jan 1970 00:00:00 GMT"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["etag"].startswith('"')


def test_head_tells_the_same_and_sends_nothing(digits: RuntimeServer) -> None:
    head, full = digits.client.head(at("f")), get(digits)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag", "last-modified", "content-type"):
        assert head.headers[name] == full.headers[name]
    assert digits.client.head(at("f"), headers={"Range": "bytes=0-1"}).status_code == 200
    assert digits.client.head(at("nosuch")).status_code == 404
    assert digits.client.head(at("")).headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("value", "status", "content", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=99-", 416, b"", "bytes */10"),
        ("bytes=" + ",".join(["0-"] * 1000), 200, b"0123456789", None),
    ],
)
def test_a_part_of_a_file_can_be_asked_for(
    digits: RuntimeServer, value: str, status: int, content: bytes, content_range: str | None
) -> None:
    answer = get(digits, Range=value)
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers.get("content-range") == content_range


def test_who_has_the_content_already_is_told_so(digits: RuntimeServer) -> None:
    first = get(digits)
    etag, time = first.headers["etag"], first.headers["last-modified"]
    for fields in (
        {"If_None_Match": etag},
        {"If_None_Match": f'"x", W/{etag}'},
        {"If_None_Match": "*"},
        {"If_Modified_Since": time},
    ):
        answer = get(digits, **fields)
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == etag
    for fields in (
        {"If_None_Match": '"x"'},
        # The tag counts where both are sent (RFC 9110 section 13.1.3).
        {"If_None_Match": '"x"', "If_Modified_Since": time},
        {"If_Modified_Since": "Fri, 02 Jan 1970 00:00:00 GMT"},
        {"If_Modified_Since": "yesterday"},
    ):
        assert get(digits, **fields).status_code == 200


def test_a_reader_who_wants_one_version_gets_no_other(digits: RuntimeServer) -> None:
    etag = get(digits).headers["etag"]
    assert get(digits, If_Match=etag).status_code == 200
    assert get(digits, If_Match="*").status_code == 200
    for fields in (
        {"If_Match": '"x"'},
        {"If_Match": f"W/{etag}"},
        {"If_Unmodified_Since": "Fri, 02 Jan 1970 00:00:00 GMT"},
    ):
        assert reason(get(digits, **fields)) == (412, "precondition_failed")
    assert reason(get(digits, If_Match="x")) == (400, "invalid_parameter")


def test_an_edit_that_keeps_size_and_time_changes_the_tag(digits: RuntimeServer) -> None:
    path = digits.base / "f"
    before, etag = path.stat(), get(digits).headers["etag"]
    path.write_bytes(b"9876543210")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert get(digits, If_None_Match=etag).content == b"9876543210"
    assert get(digits, Range="bytes=0-0", If_Range=etag).status_code == 200


def test_a_digest_is_told_to_who_asks(digits: RuntimeServer) -> None:
    expected = base64.b64encode(hashlib.sha256(b"0123456789").digest()).decode()
    for fields in ({}, {"Range": "bytes=0-0"}):
        answer = get(digits, Want_Repr_Digest="sha-512=3, sha-256=10", **fields)
        assert answer.headers["repr-digest"] == f"sha-256=:{expected}:"
    for value in ("sha-256=0", "md5=5"):
        assert "repr-digest" not in get(digits, Want_Repr_Digest=value).headers
    assert reason(get(digits, Want_Repr_Digest="sha-256=yes")) == (400, "invalid_parameter")


def test_nothing_but_regular_files_is_read_or_waited_for(fresh_runtime: RuntimeServer) -> None:
    base = fresh_runtime.base
    os.mkfifo(base / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(base / "socket"))
    (base / "loop").symlink_to("loop")
    (base / "d").mkdir()
    for name in ("fifo", "socket"):
        assert reason(get(fresh_runtime, name)) == (403, "permission_denied")
        assert reason(fresh_runtime.client.put(at(name), content=b"x")) == (
            403,
            "permission_denied",
        )
    assert reason(get(fresh_runtime, "loop")) == (400, "invalid_path")
    assert reason(fresh_runtime.client.put(at("d"), content=b"x")) == (400, "is_directory")
    assert reason(fresh_runtime.client.put(at("d/"), content=b"x")) == (400, "is_directory")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("nosuch", (404, "file_not_found")),
        ("f/below", (404, "file_not_found")),
        ("../../etc/passwd", (403, "permission_denied")),
        ("..", (403, "permission_denied")),
        ("out/passwd", (403, "permission_denied")),
        ("a\0b", (400, "invalid_path")),
        ("x" * 256, (400, "invalid_path")),
        ("y/" * 2100 + "y", (400, "invalid_path")),
    ],
)
def test_a_wrong_path_is_refused_by_every_method(
    digits: RuntimeServer, path: str, expected: tuple[int, str]
) -> None:
    (digits.base / "out").symlink_to("/etc")
    answer = get(digits, path)
    assert reason(answer) == expected
    assert answer.json().keys() >= {"code", "message", "reason"}
    assert reason(digits.client.delete(at(path))) == expected
    body = {"to": "new"}
    assert reason(digits.client.post(at(path, ":move"), json=body)) == expected
    if expected[0] != 404:
        assert reason(digits.client.put(at(path), content=b"x")) == expected
        assert reason(digits.client.post(at(path, ":mkdir"))) == expected
        assert reason(digits.client.post(at("f", ":move"), json={"to": path})) == expected


@pytest.mark.parametrize(
    "name", ["a b", "ä/日本.txt", "x" * 255, "a\nb", "%2e%2e", "\udcff", ":move"]
)
def test_a_name_of_any_bytes_makes_the_round_trip(fresh_runtime: RuntimeServer, name: str) -> None:
    assert fresh_runtime.client.put(at(name), content=b"x\r\n").status_code == 204
    assert (fresh_runtime.base / name).read_bytes() == b"x\r\n"
    assert get(fresh_runtime, name).content == b"x\r\n"
    listed = fresh_runtime.client.get(at(""), params={"recursive": ""}).json()["entries"]
    assert name in [entry["name"] for entry in listed]


def test_un_isolated_a_path_below_the_base_means_itself_and_others_are_re_rooted(
    digits: RuntimeServer,
) -> None:
    assert get(digits, str(digits.base / "f")).content == b"0123456789"
    assert get(digits, "/f").content == b"0123456789"
    assert reason(get(digits, "/etc/passwd")) == (404, "file_not_found")


def test_isolated_an_absolute_path_is_the_same_to_files_and_commands(
    fresh_runtime: RuntimeServer,
) -> None:
    base = fresh_runtime.base
    elsewhere = base.parent / "else" / "where.sh"
    with start_runtime(base, env={"SANDGATE_ISOLATED": "1"}) as isolated:
        assert isolated.client.put(at(str(elsewhere)), content=b"echo ran").status_code == 204
        assert isolated.run(f"sh {elsewhere}")["stdout"] == "ran\n"
        assert isolated.client.get(at(str(elsewhere.parent))).json()["path"] == str(
            elsewhere.parent
        )
        for path in ("/proc/self/mem", "/proc/cpuinfo", "/dev/null", "/dev/zero"):
            assert reason(get(isolated, path)) == (403, "permission_denied")
        assert reason(isolated.client.delete(at("/"), params={"recursive": "true"})) == (
            403,
            "permission_denied",
        )


def test_a_reader_who_leaves_leaves_no_descriptor_behind(digits: RuntimeServer) -> None:
    (digits.base / "big").write_bytes(bytes(8 << 20))
    before = digits.descriptors()
    for _ in range(20):
        with digits.client.stream("GET", at("big")) as answer:
            next(answer.iter_raw())
        with digits.client.stream("GET", at(""), params={"archive": "tar.gz"}) as answer:
            next(answer.iter_raw())
    digits.client.close()
    with httpx.Client(base_url=digits.url) as client:
        client.get("/v1/health")
        wait_until(lambda: digits.descriptors() <= before + 1)
