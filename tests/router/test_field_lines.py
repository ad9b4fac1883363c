"""Field lines: what is remembered of them, and that nothing else depends on it."""

from collections.abc import Iterator

import pytest

from sandgate_router import field_lines
from sandgate_router.field_lines import (
    MAX_REMEMBERED_BYTES,
    REMEMBERED_LINES,
    BadFieldLine,
    index_fields,
    read_fields,
)


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    field_lines._known.clear()
    field_lines._names.clear()
    yield
    field_lines._known.clear()
    field_lines._names.clear()


def test_a_line_reads_alike_the_first_time_and_afterwards() -> None:
    lines = [b"Accept:\t a/b ", b"ACCEPT: a/b", b"X:", b"a: b:c"]
    first = read_fields(lines)
    assert first == [(b"accept", b"a/b"), (b"accept", b"a/b"), (b"x", b""), (b"a", b"b:c")]
    assert read_fields(lines) == first
    assert all(line in field_lines._known for line in lines)


@pytest.mark.parametrize(
    "line",
    [b"", b"a", b": b", b"a : b", b" a: b", b"a: b\r", b"a: b\nc: d", b"a: \x00", b"\xe9: a"],
)
def test_a_bad_line_is_refused_every_time(line: bytes) -> None:
    for _ in range(2):
        with pytest.raises(BadFieldLine):
            read_fields([b"Accept: a", line])
    assert line not in field_lines._known


@pytest.mark.parametrize(
    "name",
    [
        b"Authorization",
        b"Proxy-Authorization",
        b"Cookie",
        b"Set-Cookie",
        b"X-Sandbox-Token",
        b"X-API-Key",
        b"x-amz-security-token",
        b"X-Client-Secret",
        b"Password",
        b"X-Signature",
        b"X-Session-Id",
        b"X-Request-ID",
        b"traceparent",
    ],
)
def test_a_line_that_may_hold_a_secret_or_changes_each_time_is_not_kept(name: bytes) -> None:
    line = name + b": value"
    assert read_fields([line]) == [(name.lower(), b"value")]
    assert line not in field_lines._known


def test_a_long_line_is_not_kept() -> None:
    line = b"X: " + b"a" * (MAX_REMEMBERED_BYTES - 3)
    read_fields([line, line + b"a"])
    assert line in field_lines._known
    assert (line + b"a") not in field_lines._known


def test_what_is_kept_is_bounded() -> None:
    for number in range(REMEMBERED_LINES):
        read_fields([b"X: %d" % number])
    assert (b"X: 0") in field_lines._known
    read_fields([b"X: more"])
    assert (b"X: more") in field_lines._known
    assert (b"X: 0") not in field_lines._known


def test_many_names_do_not_disturb_what_is_read() -> None:
    for number in range(field_lines.REMEMBERED_NAMES * 2):
        name = b"X-Token-%d" % number
        assert read_fields([name + b": a"]) == [(name.lower(), b"a")]
        assert (name + b": a") not in field_lines._known


def test_the_first_value_counts_and_repeats_are_known() -> None:
    fields = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    assert index_fields(fields) == ({b"a": b"1", b"b": b"2"}, {b"a"})
    assert index_fields(fields[:2]) == ({b"a": b"1", b"b": b"2"}, frozenset())
