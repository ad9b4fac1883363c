"""The legacy file routes: upload, download, list, exists."""

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest
from support.runtime_server import RuntimeServer, wait_until

FORM = {"Content-Type": "multipart/form-data; boundary=B"}


def part(filename: str, content: bytes, *, name: str = "file") -> bytes:
    head = f'--B\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n\r\n'
    return head.encode() + content + b"\r\n"


def fetch(runtime: RuntimeServer, route: str, path: str) -> httpx.Response:
    return runtime.client.get(f"/{route}/{quote(os.fsencode(path), safe='')}")


@pytest.mark.parametrize(
    "name",
    [
        "plain.txt",
        "a/b/c.txt",
        "with space.txt",
        "ümläut-日本.txt",
        "x" * 255,
        'quote".txt',
        "back\\slash.txt",
        "100%25.txt",
        "%2e%2e",
        "line\nend",
        "-rf",
        "a;b=c.txt",
    ],
)
def test_a_file_comes_back_under_the_name_it_was_written_to(
    fresh_runtime: RuntimeServer, name: str
) -> None:
    filename = name.replace('"', "%22").replace("\n", "%0A")
    body = part(filename, b"content\r\n") + b"--B--\r\n"
    answer = fresh_runtime.client.post("/upload", content=body, headers=FORM)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"message": f"File '{name}' uploaded successfully."}
    assert (fresh_runtime.base / name).read_bytes() == b"content\r\n"
    assert fetch(fresh_runtime, "download", name).content == b"content\r\n"
    assert fetch(fresh_runtime, "exists", name).json() == {"path": name, "exists": True}


@pytest.mark.parametrize("size", [0, 1, 18_433, 65_537, 8_388_609])
@pytest.mark.parametrize("declared", [True, False], ids=["length declared", "chunked"])
def test_files_of_any_size_arrive_whole(
    fresh_runtime: RuntimeServer, size: int, declared: bool
) -> None:
    content = (bytes(range(256)) + b"\r\n--B\r\n--") * (size // 256 + 1)
    content = content[:size].replace(b"\r\n--B", b"\r\n--C")
    body = part("f", content) + b"--B--\r\n"
    pieces = body if declared else iter([body[:7], body[7:100], body[100:]])
    answer = fresh_runtime.client.post("/upload", content=pieces, headers=FORM)
    assert answer.status_code == 200
    assert (fresh_runtime.base / "f").read_bytes() == content
    assert fetch(fresh_runtime, "download", "f").content == content


def test_300_mb_go_up_and_down_at_flat_memory(fresh_runtime: RuntimeServer) -> None:
    block = os.urandom(1 << 20)
    digest = hashlib.sha256(block * 300).hexdigest()

    def body() -> Iterator[bytes]:
        yield part("big", b"")[:-2]
        for _ in range(300):
            yield block
        yield b"\r\n--B--\r\n"

    before = fresh_runtime.resident_bytes()
    assert fresh_runtime.client.post("/upload", content=body(), headers=FORM).status_code == 200
    received = hashlib.sha256()
    with fresh_runtime.client.stream("GET", "/download/big") as answer:
        for piece in answer.iter_raw():
            received.update(piece)
    assert received.hexdigest() == digest
    assert fresh_runtime.resident_bytes() - before < 16 << 20


def test_an_upload_that_breaks_off_leaves_the_old_file_and_no_trace(
    fresh_runtime: RuntimeServer,
) -> None:
    (fresh_runtime.base / "f").write_text("old")
    address = urlsplit(fresh_runtime.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n"
            b"Content-Type: multipart/form-data; boundary=B\r\n\r\n" + part("f", b"new" * 300_000)
        )
        wait_until(lambda: len(os.listdir(fresh_runtime.base)) == 2)
    wait_until(lambda: os.listdir(fresh_runtime.base) == ["f"])
    assert (fresh_runtime.base / "f").read_text() == "old"


def test_a_reader_during_a_write_sees_the_old_content_or_the_new(
    fresh_runtime: RuntimeServer,
) -> None:
    contents = [bytes([n]) * 300_000 for n in range(8)]
    fresh_runtime.upload("f", contents[0])
    stop = threading.Event()

    def write(content: bytes) -> None:
        with httpx.Client(base_url=fresh_runtime.url) as client:
            for _ in range(5):
                client.post("/upload", files={"file": ("f", content)})

    def read() -> int:
        seen = 0
        with httpx.Client(base_url=fresh_runtime.url) as client:
            while not stop.is_set():
                assert client.get("/download/f").content in contents
                seen += 1
        return seen

    with ThreadPoolExecutor(9) as pool:
        reading = pool.submit(read)
        list(pool.map(write, contents))
        stop.set()
        assert reading.result() > 0
    assert os.listdir(fresh_runtime.base) == ["f"]


def test_a_file_that_is_written_anew_stays_executable(fresh_runtime: RuntimeServer) -> None:
    fresh_runtime.upload("run.sh", b"#!/bin/sh\necho one\n")
    (fresh_runtime.base / "run.sh").chmod(0o755)
    fresh_runtime.upload("run.sh", b"#!/bin/sh\necho two\n")
    assert fresh_runtime.run("./run.sh")["stdout"] == "two\n"


def test_a_write_through_a_link_goes_to_what_it_names(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "link").symlink_to("target")
    fresh_runtime.upload("link", b"x")
    assert (fresh_runtime.base / "target").read_bytes() == b"x"
    assert (fresh_runtime.base / "link").is_symlink()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (part("f", b"x", name="other") + b"--B--\r\n", 422),
        (b'--B\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n--B--\r\n', 422),
        (part("f", b"x"), 400),
        (b"garbage", 400),
        (b"", 400),
        (part("f", b"x") + part("g", b"x") + b"--B--\r\n", 400),
        (part("x", b"x", name="other") * 100 + part("f", b"x") + b"--B--\r\n", 400),
        (part("f" + "x" * 20_000, b"x") + b"--B--\r\n", 400),
        (part("", b"x") + b"--B--\r\n", 400),
        (part("x" * 256, b"x") + b"--B--\r\n", 400),
        (part("a\0b", b"x") + b"--B--\r\n", 400),
        (part("../f", b"x") + b"--B--\r\n", 403),
    ],
)
def test_a_wrong_upload_is_refused_and_writes_nothing(
    fresh_runtime: RuntimeServer, body: bytes, status: int
) -> None:
    answer = fresh_runtime.client.post("/upload", content=body, headers=FORM)
    assert answer.status_code == status, answer.text
    assert os.listdir(fresh_runtime.base) == []
    assert fresh_runtime.client.get("/").status_code == 200


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", None])
def test_an_upload_that_is_no_form_is_refused(
    runtime: RuntimeServer, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert runtime.client.post("/upload", content=b"x", headers=headers).status_code == 400


def test_an_upload_to_a_directory_fails_with_the_known_text(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "d").mkdir()
    answer = fresh_runtime.upload("d", b"x")
    assert answer.status_code == 500
    assert answer.json()["message"].startswith("File upload failed: [Errno 21] Is a directory")


def test_nothing_but_regular_files_is_opened_or_waited_for(fresh_runtime: RuntimeServer) -> None:
    base = fresh_runtime.base
    os.mkfifo(base / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(base / "socket"))
    for name in ("fifo", "socket"):
        assert fetch(fresh_runtime, "download", name).status_code == 404
        assert fresh_runtime.upload(name, b"x").status_code == 403
        assert fetch(fresh_runtime, "exists", name).json()["exists"] is True
    (base / "loop").symlink_to("loop")
    assert fetch(fresh_runtime, "download", "loop").status_code == 400
    assert {entry["name"] for entry in fresh_runtime.client.get("/list/").json()} == {
        "fifo",
        "loop",
        "socket",
    }


@pytest.mark.parametrize("route", ["download", "list", "exists"])
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("..%2F..%2Fetc%2Fpasswd", 403),
        ("%2e%2e%2fx", 403),
        ("out%2Fpasswd", 403),
        ("a%00b", 400),
        ("x" * 256, 400),
        ("y%2F" * 2100, 400),
    ],
)
def test_paths_that_lead_out_or_nowhere_are_refused(
    fresh_runtime: RuntimeServer, route: str, path: str, status: int
) -> None:
    (fresh_runtime.base / "out").symlink_to("/etc")
    answer = fresh_runtime.client.get(f"/{route}/{path}")
    assert answer.status_code == status
    assert answer.json().keys() == {"message"}
    if status == 403:
        assert answer.json() == {"message": "Access denied"}


def test_un_isolated_an_absolute_path_is_looked_for_below_the_base(
    runtime: RuntimeServer,
) -> None:
    assert fetch(runtime, "download", "/etc/passwd").status_code == 404
    assert fetch(runtime, "exists", "/etc/passwd").json() == {
        "path": "/etc/passwd",
        "exists": False,
    }


def test_a_path_is_decoded_once_on_the_whole_way(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "%2e").write_text("literal")
    assert fresh_runtime.client.get("/download/%252e").text == "literal"
    assert fresh_runtime.client.get("/exists/%2e").json()["path"] == "."


def test_a_name_that_is_not_utf_8_makes_the_round_trip(fresh_runtime: RuntimeServer) -> None:
    (fresh_runtime.base / "\udcff").write_bytes(b"x")
    assert [entry["name"] for entry in fresh_runtime.client.get("/list/").json()] == ["\udcff"]
    assert fresh_runtime.client.get("/download/%FF").content == b"x"


def test_a_listing_is_sorted_and_tells_size_kind_and_time(fresh_runtime: RuntimeServer) -> None:
    base = fresh_runtime.base
    (base / "d" / "sub").mkdir(parents=True)
    (base / "d" / "b.txt").write_bytes(b"12345")
    os.utime(base / "d" / "b.txt", (1.5, 1.5))
    (base / "d" / "a-link").symlink_to("sub")
    (base / "d" / "broken").symlink_to("nosuch")
    entries = fresh_runtime.client.get("/list/d").json()
    assert [(entry["name"], entry["type"]) for entry in entries] == [
        ("a-link", "directory"),
        ("b.txt", "file"),
        ("broken", "file"),
        ("sub", "directory"),
    ]
    assert entries[1] == {"name": "b.txt", "size": 5, "type": "file", "mod_time": 1.5}


@pytest.mark.parametrize("path", ["nosuch", "d/f", "d/f/g"])
def test_listing_what_is_no_directory_is_404(fresh_runtime: RuntimeServer, path: str) -> None:
    (fresh_runtime.base / "d").mkdir()
    (fresh_runtime.base / "d" / "f").touch()
    answer = fetch(fresh_runtime, "list", path)
    assert (answer.status_code, answer.json()) == (404, {"message": "Path is not a directory"})


@pytest.mark.parametrize("path", ["", "d", "nosuch", "d/x"])
def test_downloading_what_is_no_file_is_404(fresh_runtime: RuntimeServer, path: str) -> None:
    (fresh_runtime.base / "d").mkdir()
    answer = fetch(fresh_runtime, "download", path)
    assert (answer.status_code, answer.json()) == (404, {"message": "File not found"})


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
    fresh_runtime: RuntimeServer,
    value: str,
    status: int,
    content: bytes,
    content_range: str | None,
) -> None:
    (fresh_runtime.base / "f").write_bytes(b"0123456789")
    answer = fresh_runtime.client.get("/download/f", headers={"Range": value})
    assert (answer.status_code, answer.content) == (status, content)
    assert answer.headers.get("content-range") == content_range


def test_a_range_of_a_file_that_has_changed_is_answered_with_the_whole_file(
    fresh_runtime: RuntimeServer,
) -> None:
    path = fresh_runtime.base / "f"
    path.write_bytes(b"0123456789")
    first = fresh_runtime.client.get("/download/f")
    assert first.headers["accept-ranges"] == "bytes"
    assert first.headers["content-disposition"] == 'attachment; filename="f"'
    assert first.headers["content-type"] == "application/octet-stream"
    assert first.headers["last-modified"].endswith(" GMT")
    wanted = {"Range": "bytes=1-1", "If-Range": first.headers["etag"]}
    assert fresh_runtime.client.get("/download/f", headers=wanted).content == b"1"
    path.write_bytes(b"abcdefghijk")
    assert fresh_runtime.client.get("/download/f", headers=wanted).content == b"abcdefghijk"


def test_a_file_that_shrinks_on_the_way_is_never_told_as_whole(
    fresh_runtime: RuntimeServer,
) -> None:
    path = fresh_runtime.base / "f"
    path.write_bytes(b"x" * (64 << 20))

    def read_and_shrink() -> None:
        with fresh_runtime.client.stream("GET", "/download/f") as answer:
            for index, _ in enumerate(answer.iter_raw()):
                if index == 0:
                    os.truncate(path, 10)

    with pytest.raises(httpx.RemoteProtocolError):
        read_and_shrink()


def test_a_name_cannot_add_fields_to_the_answer(fresh_runtime: RuntimeServer) -> None:
    name = 'a"\r\nX-Evil: 1\r\n'
    (fresh_runtime.base / name).write_bytes(b"x")
    answer = fetch(fresh_runtime, "download", name)
    assert answer.content == b"x"
    assert "x-evil" not in answer.headers


def test_a_link_that_is_swapped_in_between_never_leads_out(
    fresh_runtime: RuntimeServer, tmp_path: Path
) -> None:
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "f").write_text("secret")
    base = fresh_runtime.base
    (base / "good").mkdir()
    (base / "good" / "f").write_text("public")
    (base / "evil").symlink_to(secret)
    stop = threading.Event()

    def swap() -> None:
        names = [base / "good", base / "evil"]
        while not stop.is_set():
            for name in names:
                temporary = base / "d.new"
                temporary.symlink_to(name)
                temporary.replace(base / "d")

    def swap_directories() -> None:
        while not stop.is_set():
            (base / "e").symlink_to(secret)
            (base / "e").unlink()
            (base / "good2").rename(base / "e")
            (base / "e").rename(base / "good2")

    (base / "good2").mkdir()
    (base / "good2" / "f").write_text("public")
    with ThreadPoolExecutor(2) as pool:
        swapping = [pool.submit(swap), pool.submit(swap_directories)]
        try:
            for _ in range(400):
                for path in ("d/f", "e/f"):
                    answer = fetch(fresh_runtime, "download", path)
                    assert answer.text != "secret"
                    assert answer.status_code in {200, 400, 403, 404}
                fresh_runtime.upload("e/g", b"x")
        finally:
            stop.set()
            for future in swapping:
                future.exception()
    assert os.listdir(secret) == ["f"]
