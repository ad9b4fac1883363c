"""The tar reader against tarfile, and against archives that tarfile would take."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.file_calls import build_tar, member

from sandgate_runtime.files.refusals import UnacceptableArchive
from sandgate_runtime.files.tar_reader import MAX_HEADER_BYTES, Member, TarReader

LONG = "/".join(["d" * 100] * 20)


def read(archive: bytes, *, piece: int = 1 << 20) -> list[tuple[str, bool, bytes]]:
    """Return (path, is a directory, content) of each member."""
    reader = TarReader()
    found: list[tuple[str, bool, bytes]] = []
    for first in range(0, len(archive), piece):
        for event in reader.feed(archive[first : first + piece]):
            if isinstance(event, Member):
                found.append(("/".join(event.parts), event.is_directory, b""))
            else:
                path, is_directory, content = found.pop()
                found.append((path, is_directory, content + event))
    reader.finish()
    return found


def read_with_tarfile(archive: bytes) -> list[tuple[str, bool, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return [
            (found.name, found.isdir(), b"" if found.isdir() else opened.extractfile(found).read())  # type: ignore[union-attr]
            for found in opened
        ]


@pytest.mark.parametrize(
    "tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
@pytest.mark.parametrize("piece", [1, 511, 512, 513, 1 << 20])
def test_archives_of_every_format_are_read_in_pieces_of_any_size(
    tar_format: int, piece: int
) -> None:
    members = [member("a"), member("d/", kind=tarfile.DIRTYPE), member("d/b", b"x" * 1300)]
    if tar_format != tarfile.USTAR_FORMAT:
        members += [member(LONG, b"long"), member("ä/日本", b"y")]
    archive = build_tar(members, mode="w", tar_format=tar_format)
    assert read(archive, piece=piece) == [
        (path.rstrip("/"), is_directory, content)
        for path, is_directory, content in read_with_tarfile(archive)
    ]


_NAMES = st.lists(
    st.text("ab.ä ", min_size=1, max_size=120).filter(lambda name: name not in {".", ".."}),
    min_size=1,
    max_size=4,
).map("/".join)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    members=st.lists(st.tuples(_NAMES, st.binary(max_size=2000)), max_size=6),
    piece=st.integers(1, 3000),
    tar_format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_what_tarfile_writes_is_read_as_tarfile_reads_it(
    members: list[tuple[str, bytes]], piece: int, tar_format: int
) -> None:
    archive = build_tar([member(*pair) for pair in members], mode="w", tar_format=tar_format)
    assert read(archive, piece=piece) == read_with_tarfile(archive)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_no_damage_does_more_than_a_refusal(data: st.DataObject) -> None:
    archive = bytearray(build_tar([member(LONG, b"x" * 700), member("b", b"y")], mode="w"))
    for _ in range(data.draw(st.integers(1, 6))):
        archive[data.draw(st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    try:
        for path, _, _ in read(bytes(archive[: data.draw(st.integers(0, len(archive)))])):
            assert not path.startswith("/")
            assert ".." not in path.split("/")
    except UnacceptableArchive:
        pass


@pytest.mark.parametrize(
    "bad",
    [
        member("../x"),
        member("a/../../x"),
        member("a/.."),
        member("/etc/passwd"),
        member("l", kind=tarfile.SYMTYPE),
        member("l", kind=tarfile.LNKTYPE),
        member("l", kind=tarfile.FIFOTYPE),
        member("l", kind=tarfile.CHRTYPE),
        member("l", kind=tarfile.BLKTYPE),
        member("l", kind=tarfile.CONTTYPE),
        member("l", kind=b"Z"),
        member("d", b"x", kind=tarfile.DIRTYPE),
        member("x" * 256),
        member("d/" * 2100),
    ],
)
def test_what_is_not_to_be_unpacked_is_refused(bad: tuple[tarfile.TarInfo, bytes]) -> None:
    with pytest.raises(UnacceptableArchive):
        read(build_tar([member("good"), bad], mode="w"))


def extended(kind: bytes, content: bytes, *, size: int | None = None) -> bytes:
    """Return an extended header and a member behind it."""
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, len(content) if size is None else size
    padded = content + bytes(-len(content) % 512)
    return header.tobuf(tarfile.GNU_FORMAT) + padded + build_tar([member("a", b"x")], mode="w")


@pytest.mark.parametrize(
    "record",
    [
        b"11 path=../\n",
        b"13 path=/etc\n",
        b"11 size=-1\n\n",
        b"10 size=x\n",
        b"22 GNU.sparse.major=1\n",
        b"99 path=a\n",
        b"0 path=a\n",
        b" path=a\n",
        b"10 path-ab\n",
        b"9 path=ab\n",
        b"-9 path=a\n",
        b"\xb2 path=a\n",
        b"1" * 1000,
    ],
)
def test_a_wrong_pax_record_is_refused(record: bytes) -> None:
    with pytest.raises(UnacceptableArchive):
        read(extended(tarfile.XHDTYPE, record))


def test_a_pax_record_decides_name_and_size_of_the_next_member_alone() -> None:
    archive = extended(tarfile.XHDTYPE, b"12 path=new\n11 mtime=1\n")
    assert [path for path, _, _ in read(archive)] == ["new"]
    assert [path for path, _, _ in read(extended(tarfile.XGLTYPE, b"12 path=new\n"))] == ["a"]


@pytest.mark.parametrize("size", [0, MAX_HEADER_BYTES + 1, 1 << 40])
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_extended_header_is_never_collected_beyond_its_limit(kind: bytes, size: int) -> None:
    with pytest.raises(UnacceptableArchive):
        read(extended(kind, b"", size=size))


def test_an_archive_without_its_end_is_refused() -> None:
    archive = build_tar([member("a", b"x" * 3000)], mode="w")
    for end in (0, 100, 512, 1000, 512 + 3072):
        with pytest.raises(UnacceptableArchive):
            read(archive[:end])


def test_a_size_below_zero_is_refused() -> None:
    header = bytearray(member("a")[0].tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 12  # base-256, -1
    header[148:156] = b"        "
    header[148:155] = b"%06o\0" % sum(header)
    with pytest.raises(UnacceptableArchive):
        read(bytes(header) + bytes(1024))
