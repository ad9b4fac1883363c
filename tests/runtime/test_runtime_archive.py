"""Whole directories as tar.gz, out of a sandbox and into it."""

import gzip
import io
import os
import socket
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.file_calls import at, build_tar, member, reason
from support.runtime_server import RuntimeServer, wait_until

PACK = {"archive": "tar.gz"}
UNPACK = {"extract": "tar.gz"}


def unpack(server: RuntimeServer, archive: bytes, path: str = "d") -> httpx.Response:
    return server.client.put(at(path), params=UNPACK, content=archive)


def contents(base: Path) -> dict[str, str | bytes]:
    """Return what is below a directory: content of files, targets of links, empty for folders."""
    found: dict[str, str | bytes] = {}
    for path in sorted(base.rglob("*")):
        name = str(path.relative_to(base))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = b"" if path.is_dir() else path.read_bytes()
    return found


def test_a_directory_makes_the_round_trip_with_names_modes_and_times(
    fresh_runtime: RuntimeServer,
) -> None:
    source = fresh_runtime.base / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    for name in ("run.sh", "sub/ä b", "\udcff", "x" * 255, "sub/" + "y" * 255):
        (source / name).write_bytes(os.urandom(70_000))
        os.utime(source / name, (1_000_000_000, 1_000_000_000))
    (source / "run.sh").chmod(0o755)
    (source / "sub").chmod(0o700)
    answer = fresh_runtime.client.get(at("source"), params=PACK)
    assert answer.headers["content-type"] == "application/gzip"
    assert unpack(fresh_runtime, answer.content, "copy").status_code == 204
    copy = fresh_runtime.base / "copy"
    assert contents(copy) == contents(source)
    for path in ("run.sh", "sub", "sub/ä b"):
        assert (copy / path).stat().st_mode == (source / path).stat().st_mode
    assert (copy / "run.sh").stat().st_mtime == 1_000_000_000


def test_other_programs_read_what_is_packed_and_links_are_packed_as_links(
    fresh_runtime: RuntimeServer, tmp_path: Path
) -> None:
    source = fresh_runtime.base / "source"
    source.mkdir()
    (source / "f").write_text("f")
    (source / "out").symlink_to("/etc")
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    archive = fresh_runtime.client.get(at("source"), params=PACK).content
    (tmp_path / "there").mkdir()
    subprocess.run(["tar", "xz", "-C", tmp_path / "there"], input=archive, check=True)
    assert contents(tmp_path / "there") == {"f": b"f", "out": "/etc"}
    assert reason(unpack(fresh_runtime, archive)) == (400, "unacceptable_archive")


def test_what_other_programs_pack_is_unpacked(fresh_runtime: RuntimeServer, tmp_path: Path) -> None:
    (tmp_path / "there" / "sub").mkdir(parents=True)
    (tmp_path / "there" / "sub" / ("n" * 200)).write_bytes(b"x" * 100_000)
    for tar_format in ("gnu", "pax", "ustar"):
        command = ["tar", "cz", f"--format={tar_format}", "-C", str(tmp_path / "there"), "."]
        made = subprocess.run(command, check=False, capture_output=True)
        if made.returncode == 0:
            assert unpack(fresh_runtime, made.stdout, tar_format).status_code == 204
            assert contents(fresh_runtime.base / tar_format) == contents(tmp_path / "there")
    two = gzip.compress(build_tar([member("a", b"1")], mode="w")[:512])
    two += gzip.compress(build_tar([member("a", b"1")], mode="w")[512:])
    assert unpack(fresh_runtime, two, "two").status_code == 204
    assert contents(fresh_runtime.base / "two") == {"a": b"1"}


def test_unpacking_replaces_files_and_leaves_what_else_is_there(
    fresh_runtime: RuntimeServer,
) -> None:
    base = fresh_runtime.base
    (base / "d" / "sub").mkdir(parents=True)
    (base / "d" / "sub").chmod(0o711)
    (base / "d" / "sub" / "old").write_text("old")
    (base / "d" / "sub" / "f").write_text("old")
    archive = build_tar(
        [
            member("sub", kind=tarfile.DIRTYPE, mode=0o700),
            member("sub/f", b"one"),
            member("sub/f", b"new", mode=0o600),
            member("more/g", b"g"),
        ]
    )
    assert unpack(fresh_runtime, archive).status_code == 204
    assert contents(base / "d") == {
        "more": b"", "more/g": b"g", "sub": b"", "sub/f": b"new", "sub/old": b"old",
    }  # fmt: skip
    assert (base / "d" / "sub").stat().st_mode & 0o777 == 0o711
    assert (base / "d" / "sub" / "f").stat().st_mode & 0o777 == 0o600


def test_a_form_may_carry_an_archive(fresh_runtime: RuntimeServer) -> None:
    archive = build_tar([member("f", b"x")])
    answer = fresh_runtime.client.put(at(""), params=UNPACK, files={"file": ("a.tgz", archive)})
    assert answer.status_code == 204
    assert contents(fresh_runtime.base) == {"f": b"x"}


UNACCEPTABLE = (400, "unacceptable_archive")


@pytest.mark.parametrize(
    ("archive", "expected"),
    [
        (build_tar([member("a", b"x"), member("../out")]), UNACCEPTABLE),
        (build_tar([member("a", b"x"), member("/out")]), UNACCEPTABLE),
        (build_tar([member("a"), member("l", kind=tarfile.SYMTYPE)]), UNACCEPTABLE),
        (build_tar([member("a"), member("l", kind=tarfile.LNKTYPE)]), UNACCEPTABLE),
        (build_tar([member("a"), member("l", kind=tarfile.FIFOTYPE)]), UNACCEPTABLE),
        (build_tar([member("a"), member("./")]), UNACCEPTABLE),
        (build_tar([member("a"), member("a/b")]), (400, "not_a_directory")),
        (build_tar([member("a/b"), member("a")]), (400, "is_directory")),
        (build_tar([member("f/a")]), (400, "not_a_directory")),
        (build_tar([member("sub")]), (400, "is_directory")),
        (build_tar([member("fifo")]), (403, "permission_denied")),
        (build_tar([member("link/a")]), (400, "not_a_directory")),
        (build_tar([member("a", b"x" * 5000)])[:-20], UNACCEPTABLE),
        (gzip.compress(b"x" * 5000), UNACCEPTABLE),
        (gzip.compress(build_tar([member("a")], mode="w")[:512]), UNACCEPTABLE),
        (b"no archive", UNACCEPTABLE),
        (b"", UNACCEPTABLE),
        (build_tar([member("a", bytes(64 << 20))]), (413, "archive_too_large")),
        (build_tar([member("a")]) + b"trailing", UNACCEPTABLE),
    ],
)  # fmt: skip
def test_a_wrong_archive_is_refused_and_changes_nothing(
    fresh_runtime: RuntimeServer, archive: bytes, expected: tuple[int, str]
) -> None:
    base = fresh_runtime.base / "d"
    (base / "sub").mkdir(parents=True)
    (base / "f").write_text("f")
    (base / "a").write_text("old")
    (base / "link").symlink_to("/tmp")
    os.mkfifo(base / "fifo")
    names = sorted(os.listdir(base))
    assert reason(unpack(fresh_runtime, archive)) == expected
    assert sorted(os.listdir(base)) == names
    assert (base / "a").read_text() == "old"


def test_a_directory_that_was_made_for_a_wrong_archive_goes_again(
    fresh_runtime: RuntimeServer,
) -> None:
    assert unpack(fresh_runtime, b"no archive").status_code == 400
    assert os.listdir(fresh_runtime.base) == []
    (fresh_runtime.base / "f").touch()
    assert reason(unpack(fresh_runtime, b"", "f")) == (409, "already_exists")


def test_a_bomb_is_refused_while_it_comes_and_costs_no_memory(
    fresh_runtime: RuntimeServer,
) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    header, _ = member("zeros")
    header.size = 4 << 30
    bomb = packer.compress(header.tobuf(tarfile.PAX_FORMAT))
    zeros = bytes(1 << 20)
    bomb += b"".join(packer.compress(zeros) for _ in range(600))
    before = fresh_runtime.resident_bytes()
    assert reason(unpack(fresh_runtime, bomb)) == (413, "archive_too_large")
    assert os.listdir(fresh_runtime.base) == []
    assert fresh_runtime.resident_bytes() - before < 16 << 20


def test_an_archive_that_breaks_off_changes_nothing(fresh_runtime: RuntimeServer) -> None:
    address = urlsplit(fresh_runtime.url)
    (fresh_runtime.base / "f").write_text("old")
    archive = build_tar([member("f", os.urandom(2_000_000))])
    with socket.create_connection((address.hostname, address.port)) as connection:
        head = (
            f"PUT /v1/files/?extract=tar.gz HTTP/1.1\r\nHost: x\r\nContent-Length: {len(archive)}"
        )
        connection.sendall(head.encode() + b"\r\n\r\n" + archive[:1_500_000])
        wait_until(lambda: len(os.listdir(fresh_runtime.base)) == 2)
    wait_until(lambda: os.listdir(fresh_runtime.base) == ["f"])
    assert (fresh_runtime.base / "f").read_text() == "old"


def test_100_mb_go_in_and_out_at_flat_memory(fresh_runtime: RuntimeServer) -> None:
    block = os.urandom(1 << 20)
    packer = zlib.compressobj(0, zlib.DEFLATED, 31)
    header, _ = member("big")
    header.size = 100 << 20

    def archive() -> Iterator[bytes]:
        yield packer.compress(header.tobuf(tarfile.PAX_FORMAT))
        for _ in range(100):
            yield packer.compress(block)
        yield packer.compress(bytes(1024)) + packer.flush()

    before = fresh_runtime.resident_bytes()
    answer = fresh_runtime.client.put(at(""), params=UNPACK, content=archive())
    assert answer.status_code == 204, answer.text
    unpacker = zlib.decompressobj(31)
    received = 0
    with fresh_runtime.client.stream("GET", at(""), params=PACK) as download:
        for piece in download.iter_raw():
            received += len(unpacker.decompress(piece))
    assert received == 512 + (100 << 20) + 1024
    assert unpacker.eof
    assert fresh_runtime.resident_bytes() - before < 16 << 20


def test_a_file_that_shrinks_while_it_is_packed_breaks_the_archive_off(
    fresh_runtime: RuntimeServer,
) -> None:
    path = fresh_runtime.base / "f"
    path.write_bytes(os.urandom(64 << 20))

    def read_and_shrink() -> None:
        with fresh_runtime.client.stream("GET", at(""), params=PACK) as answer:
            for index, _ in enumerate(answer.iter_raw()):
                if index == 0:
                    os.truncate(path, 10)

    with pytest.raises(httpx.RemoteProtocolError):
        read_and_shrink()


def test_10_000_files_are_packed_whole(fresh_runtime: RuntimeServer) -> None:
    for number in range(10_000):
        (fresh_runtime.base / f"{number:05}").write_bytes(b"x")
    archive = fresh_runtime.client.get(at(""), params=PACK).content
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        assert len(opened.getnames()) == 10_000
