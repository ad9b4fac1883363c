"""The pure parts of the file routes: patterns, digests, conditions, cursors, walks."""

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate_runtime.files.cursors import Cursor, parse_cursor
from sandgate_runtime.files.digests import build_digest, check_digest, is_wanted, parse_digest
from sandgate_runtime.files.patterns import Pattern
from sandgate_runtime.files.refusals import (
    DigestMismatch,
    DiskFull,
    FileMissing,
    InvalidParameter,
    refuse,
)
from sandgate_runtime.files.searching import Position, search
from sandgate_runtime.files.validators import Conditions
from sandgate_runtime.files.walking import NAMES_AT_ONCE, Budget, walk
from sandgate_runtime.v1.metadata import Metadata


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("**", "a", True),
        ("**", "a/b/c", True),
        ("**", ".a", False),
        ("**/**", "a", True),
        ("a/**", "a", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "a/x/.y/b", False),
        ("a/**/.y/b", "a/x/.y/b", True),
        ("a/**/b", "b", False),
        ("a*", "a/b", False),
        ("*", "a\nb", True),
        ("[ab]", "b", True),
        ("a**b", "axb", True),
        (".*", ".", True),
        ("?", "\udcff", True),
    ],
)
def test_a_pattern_matches_whole_paths(pattern: str, path: str, expected: bool) -> None:
    assert Pattern(pattern).matches(tuple(path.split("/"))) is expected


@pytest.mark.parametrize(
    ("pattern", "depth"), [("*", 1), ("a/*", 2), ("a/**", None), ("**/a", None)]
)
def test_a_pattern_tells_how_deep_it_reaches(pattern: str, depth: int | None) -> None:
    assert Pattern(pattern).max_depth == depth


def test_no_pattern_takes_long_whatever_the_path() -> None:
    """A search by backtracking would not end here within the life of the universe."""
    pattern = Pattern("/".join(["**", "*a*a*a*a*a*a"] * 4))
    assert not pattern.matches(("a" * 254 + "b",) * 40 + ("b",))


@pytest.mark.parametrize(
    "value", ["", "x", "sha-256", "sha-256=", "sha-256=x", "sha-256=::", "sha-256=:x:", "=", ",",
              "sha-256=:" + "A" * 43 + ":", "sha-256=:" + "A" * 88 + ":"],
)  # fmt: skip
def test_a_malformed_digest_is_refused(value: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_digest(value)


def test_a_digest_is_read_among_others_and_compared() -> None:
    digest = hashlib.sha256(b"x").digest()
    assert parse_digest(f"md5=:eA==:, {build_digest(digest)}") == digest
    assert parse_digest("sha-512=:eA==:") is None
    assert parse_digest(None) is None
    check_digest(None, digest, path="f")
    check_digest(digest, digest, path="f")
    with pytest.raises(DigestMismatch, match="sha-256=:"):
        check_digest(bytes(32), digest, path="f")
    assert is_wanted("sha-256=10")
    assert not is_wanted("sha-512=10")


@pytest.mark.parametrize("value", ["x", '"a', "W/", 'w/"a"', '"a" "b"', '"a", *', "", '"\x7f"'])
@pytest.mark.parametrize("field", ["if-match", "if-none-match"])
def test_a_malformed_list_of_tags_is_refused(value: str, field: str) -> None:
    with pytest.raises(InvalidParameter):
        Conditions.parse({field: value})


def test_lists_of_tags_are_read_as_the_rfc_writes_them() -> None:
    conditions = Conditions.parse({"if-match": ' "a" ,W/"b",, "" ', "if-none-match": " * "})
    assert conditions.match == ('"a"', 'W/"b"', '""')
    assert conditions.only_if_absent


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.integers(0, 10**18 - 1))
def test_a_cursor_comes_back_as_it_was_given(names: list[bytes], number: int) -> None:
    cleaned = [name.replace(b"/", b"x").replace(b"\0", b"y") for name in names]
    parts = tuple(os.fsdecode(name) for name in cleaned if name not in {b".", b".."})
    for position in (None, Position(number, number)):
        cursor = Cursor(parts, position)
        assert parse_cursor(cursor.encode()) == cursor


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=60))
def test_any_text_is_a_cursor_or_is_refused(text: str) -> None:
    try:
        cursor = parse_cursor(text)
    except InvalidParameter:
        return
    assert ".." not in cursor.parts


def test_a_walk_reads_a_directory_of_more_names_than_it_holds(tmp_path: Path) -> None:
    count = NAMES_AT_ONCE * 2 + 1
    for number in range(count):
        os.mknod(tmp_path / f"{number:05}")
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        names = [found.name for found in walk(directory)]
        assert names == [f"{number:05}" for number in range(count)]
        assert [found.name for found in walk(directory, after=(names[-2],))] == names[-1:]
    finally:
        os.close(directory)


def test_a_budget_is_spent_by_names_or_by_time() -> None:
    now = [0.0]
    by_names = Budget(names=2, seconds=5, clock=lambda: now[0])
    by_time = Budget(names=2, seconds=5, clock=lambda: now[0])
    by_names.take()
    by_time.take()
    assert (by_names.spent, by_time.spent) == (False, False)
    by_names.take()
    assert (by_names.spent, by_time.spent) == (True, False)
    now[0] = 5
    assert (by_names.spent, by_time.spent) == (True, True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from([b"xx", b"needle", b"", b"needleneedle", b"\r"]), max_size=30),
    st.integers(1, 5),
)
def test_a_search_finds_the_lines_that_python_finds(lines: list[bytes], limit: int) -> None:
    content = b"\n".join(lines)
    expected = [n for n, line in enumerate(content.split(b"\n"), 1) if b"needle" in line]
    found: list[int] = []
    position = Position()
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        while True:
            steps = list(search(file.fileno(), b"needle", start=position, limit=limit))
            matches = [number for step in steps for number, _ in step.matches]
            found += matches
            if len(matches) < limit:
                break
            position = steps[-1].next
    assert found == expected


def test_an_error_of_the_file_system_keeps_the_path_of_the_request() -> None:
    missing = refuse(FileNotFoundError(2, "x", "/secret/place"), "f")
    assert isinstance(missing, FileMissing)
    assert missing.body()["path"] == "f"
    assert "secret" not in missing.message
    assert isinstance(refuse(OSError(28, "x"), "f"), DiskFull)
    unknown = OSError(5, "I/O")
    assert refuse(unknown, "f") is unknown


async def test_metadata_tells_what_is_named_for_it_and_no_secret() -> None:
    environ = {"SANDBOX_ID": "a", "PATH": "b", "SANDBOX_API_KEY": "c", "SANDBOX_MY_TOKEN_X": "d",
               "SANDBOX_Certificate": "e", "XSANDBOX_B": "f"}  # fmt: skip
    answer = await Metadata(environ).metadata(None)  # type: ignore[arg-type]
    assert answer.body == b'{"env": {"SANDBOX_ID": "a"}}'
