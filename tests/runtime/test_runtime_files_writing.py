"""PUT of a file: whole or not at all, under conditions, with a digest, at constant memory."""

import base64
import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.file_calls import at, reason
from support.runtime_server import RUNTIME, RuntimeServer, start_runtime, wait_until

FORM = {"Content-Type": "multipart/form-data; boundary=B"}


def digest(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


def put(server: RuntimeServer, path: str, content: bytes, **fields: str) -> httpx.Response:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    return server.client.put(at(path), content=content, headers=headers)


def test_a_file_is_written_with_its_folders_and_told_by_its_tag(
    fresh_runtime: RuntimeServer,
) -> None:
    answer = put(fresh_runtime, "a/b/f", b"x")
    assert (answer.status_code, answer.content) == (204, b"")
    read = fresh_runtime.client.get(at("a/b/f"))
    assert (read.content, read.headers["etag"]) == (b"x", answer.headers["etag"])


@pytest.mark.parametrize("size", [0, 1, 65_537, 8_388_609])
@pytest.mark.parametrize("declared", [True, False], ids=["length declared", "chunked"])
def test_content_of_any_size_arrives_whole(
    fresh_runtime: RuntimeServer, size: int, declared: bool
) -> None:
    content = (bytes(range(256)) * (size // 256 + 1))[:size]
    pieces = content if declared else iter([content[:7], content[7:]])
    assert fresh_runtime.client.put(at("f"), content=pieces).status_code == 204
    assert (fresh_runtime.base / "f").read_bytes() == content


def test_a_form_is_stored_as_its_file_whatever_the_filename(fresh_runtime: RuntimeServer) -> None:
    for filename in ('; filename="../../x"', ""):
        body = f'--B\r\nContent-Disposition: form-data; name="file"{filename}\r\n\r\nx\r\n--B--\r\n'
        answer = fresh_runtime.client.put(at("f"), content=body.encode(), headers=FORM)
        assert answer.status_code == 204, answer.text
        assert os.listdir(fresh_runtime.base) == ["f"]
        assert (fresh_runtime.base / "f").read_bytes() == b"x"


@pytest.mark.parametrize(
    "body",
    [
        b'--B\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--B--\r\n',
        b'--B\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n',
        b'--B\r\nContent-Disposition: form-data; name="o"\r\n\r\nx\r\n' * 100_000,
        b"garbage",
        b"",
    ],
)
def test_a_wrong_form_is_refused_and_writes_nothing(
    fresh_runtime: RuntimeServer, body: bytes
) -> None:
    answer = fresh_runtime.client.put(at("f"), content=body, headers=FORM)
    assert reason(answer) == (400, "malformed_form")
    assert os.listdir(fresh_runtime.base) == []


def test_a_mode_is_set_and_otherwise_kept(fresh_runtime: RuntimeServer) -> None:
    path = fresh_runtime.base / "run.sh"
    for query, expected in (("?mode=0755", 0o755), ("", 0o755), ("?mode=0600", 0o600)):
        answer = fresh_runtime.client.put(at("run.sh") + query, content=b"#!/bin/sh\n")
        assert answer.status_code == 204
        assert path.stat().st_mode & 0o7777 == expected
    for wrong in ("755", "0o755", "1755", "0888", "", "04755", "0644&mode=0644", "0644&x=1"):
        answer = fresh_runtime.client.put(at("run.sh") + f"?mode={wrong}", content=b"new")
        assert reason(answer) == (400, "invalid_parameter")
    assert path.read_bytes() == b"#!/bin/sh\n"


def test_a_write_goes_through_a_link_below_the_base(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "link").symlink_to("target")
    assert put(fresh_runtime, "link", b"x").status_code == 204
    assert (fresh_runtime.base / "target").read_bytes() == b"x"
    assert (fresh_runtime.base / "link").is_symlink()


def test_a_write_happens_only_under_its_conditions(fresh_runtime: RuntimeServer) -> None:
    failed = (412, "precondition_failed")
    assert reason(put(fresh_runtime, "d/f", b"x", If_Match="*")) == failed
    assert os.listdir(fresh_runtime.base) == []
    first = put(fresh_runtime, "f", b"one", If_None_Match="*")
    assert first.status_code == 204
    assert reason(put(fresh_runtime, "f", b"two", If_None_Match="*")) == failed
    second = put(fresh_runtime, "f", b"two", If_Match=first.headers["etag"])
    assert second.status_code == 204
    for fields in (
        {"If_Match": first.headers["etag"]},
        {"If_None_Match": second.headers["etag"]},
        {"If_Unmodified_Since": "Fri, 02 Jan 1970 00:00:00 GMT"},
    ):
        assert reason(put(fresh_runtime, "f", b"three", **fields)) == failed
    assert (fresh_runtime.base / "f").read_bytes() == b"two"
    assert os.listdir(fresh_runtime.base) == ["f"]


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
def test_of_many_writers_under_one_condition_exactly_one_wins(
    fresh_runtime: RuntimeServer, condition: str
) -> None:
    value = "*"
    if condition == "If-Match":
        value = put(fresh_runtime, "f", b"old").headers["etag"]

    def write(number: int) -> int:
        with httpx.Client(base_url=fresh_runtime.url, timeout=30) as client:
            content = bytes([number]) * 100_000
            answer = client.put(at("f"), content=content, headers={condition: value})
            return answer.status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = sorted(pool.map(write, range(32)))
    assert statuses == [204] + [412] * 31
    assert len(set((fresh_runtime.base / "f").read_bytes())) == 1
    assert os.listdir(fresh_runtime.base) == ["f"]


def test_a_digest_is_checked_before_anything_changes(fresh_runtime: RuntimeServer) -> None:
    answer = put(fresh_runtime, "f", b"x", Repr_Digest=digest(b"x"), Want_Repr_Digest="sha-256=1")
    assert (answer.status_code, answer.headers["repr-digest"]) == (204, digest(b"x"))
    wrong = put(fresh_runtime, "f", b"y", Repr_Digest=digest(b"z"))
    assert reason(wrong) == (400, "digest_mismatch")
    assert reason(put(fresh_runtime, "f", b"y", Repr_Digest="sha-256=:eA==:")) == (
        400,
        "invalid_parameter",
    )
    assert (fresh_runtime.base / "f").read_bytes() == b"x"
    assert os.listdir(fresh_runtime.base) == ["f"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"Content_Encoding": "gzip"}, (415, "unsupported_coding")),
        ({"Content_Range": "bytes 0-0/1"}, (400, "invalid_parameter")),
        ({"If_Match": "no tag"}, (400, "invalid_parameter")),
    ],
)
def test_fields_that_change_what_the_content_is_are_refused(
    fresh_runtime: RuntimeServer, fields: dict[str, str], expected: tuple[int, str]
) -> None:
    assert reason(put(fresh_runtime, "f", b"x", **fields)) == expected
    assert os.listdir(fresh_runtime.base) == []


def test_a_folder_that_is_a_file_is_told(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "f").touch()
    assert reason(put(fresh_runtime, "f/x", b"x")) == (400, "not_a_directory")


def test_an_upload_that_breaks_off_leaves_the_old_file_and_no_trace(
    fresh_runtime: RuntimeServer,
) -> None:
    (fresh_runtime.base / "f").write_text("old")
    address = urlsplit(fresh_runtime.url)
    for framing in ("Content-Length: 9999999", "Transfer-Encoding: chunked"):
        with socket.create_connection((address.hostname, address.port)) as connection:
            head = f"PUT {at('f')} HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n"
            piece = b"new" * 400_000
            if "chunked" in framing:
                piece = b"%x\r\n%b\r\n" % (len(piece), piece)
            connection.sendall(head.encode() + piece)
            wait_until(lambda: len(os.listdir(fresh_runtime.base)) == 2)
        wait_until(lambda: os.listdir(fresh_runtime.base) == ["f"])
        assert (fresh_runtime.base / "f").read_text() == "old"


def test_a_runtime_that_is_stopped_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with start_runtime(tmp_path) as server:
        address = urlsplit(server.url)
        connection = socket.create_connection((address.hostname, address.port))
        head = f"PUT {at('f')} HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n"
        connection.sendall(head.encode() + b"new" * 400_000)
        wait_until(lambda: len(os.listdir(tmp_path)) == 2)
    connection.close()
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "old"


def test_a_reader_during_writes_sees_one_content_or_another(fresh_runtime: RuntimeServer) -> None:
    contents = [bytes([number]) * 300_000 for number in range(8)]
    put(fresh_runtime, "f", contents[0])
    stop = threading.Event()

    def write(content: bytes) -> None:
        with httpx.Client(base_url=fresh_runtime.url, timeout=30) as client:
            for _ in range(5):
                assert client.put(at("f"), content=content).status_code == 204

    def read() -> int:
        seen = 0
        with httpx.Client(base_url=fresh_runtime.url, timeout=30) as client:
            while not stop.is_set():
                answer = client.get(at("f"), headers={"Want-Repr-Digest": "sha-256=1"})
                assert answer.content in contents
                assert answer.headers["repr-digest"] == digest(answer.content)
                seen += 1
        return seen

    with ThreadPoolExecutor(9) as pool:
        reading = pool.submit(read)
        list(pool.map(write, contents))
        stop.set()
        assert reading.result() > 0
    assert os.listdir(fresh_runtime.base) == ["f"]


def test_200_mb_go_up_and_down_with_their_digest_at_flat_memory(
    fresh_runtime: RuntimeServer,
) -> None:
    block = os.urandom(1 << 20)
    expected = hashlib.sha256()
    for _ in range(200):
        expected.update(block)
    field = f"sha-256=:{base64.b64encode(expected.digest()).decode()}:"

    def body() -> Iterator[bytes]:
        for _ in range(200):
            yield block

    before = fresh_runtime.resident_bytes()
    answer = fresh_runtime.client.put(at("f"), content=body(), headers={"Repr-Digest": field})
    assert answer.status_code == 204, answer.text
    received = hashlib.sha256()
    wanted = {"Want-Repr-Digest": "sha-256=1"}
    with fresh_runtime.client.stream("GET", at("f"), headers=wanted) as download:
        for piece in download.iter_raw():
            received.update(piece)
    assert received.digest() == expected.digest()
    assert download.headers["repr-digest"] == field
    assert fresh_runtime.resident_bytes() - before < 16 << 20


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("size=2m", (507, "disk_full")),
        ("size=64m,nr_inodes=6", (507, "disk_full")),
        ("size=2m,ro", (403, "permission_denied")),
    ],
)
def test_a_disk_that_takes_no_more_is_told_and_keeps_what_it_has(
    tmp_path: Path, options: str, expected: tuple[int, str]
) -> None:
    mounted = f"mount -t tmpfs -o size=2m t {tmp_path} && echo old > {tmp_path}/f"
    remounted = f"mount -o remount,{options} {tmp_path}"
    script = f'{mounted} && {remounted} && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    with start_runtime(tmp_path, command=[*command, *RUNTIME]) as server:
        for number in range(5):
            path = "f" if expected[0] == 403 or "2m" in options else f"n{number}"
            answer = put(server, path, bytes(3 << 20))
        assert reason(answer) == expected
        assert server.client.get(at("f")).text == "old\n"
        listed = server.client.get(at("")).json()["entries"]
        assert not [entry for entry in listed if entry["name"].startswith(".sandgate-")]
