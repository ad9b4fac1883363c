"""Which part of a file is meant."""

import pytest

from sandgate_runtime.files.ranges import RangeNotSatisfiable, parse_range


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-4", (2, 5)),
        ("bytes=2-", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=8-99", (8, 10)),
        ("Bytes=0-0", (0, 1)),
        ("bytes=4-2", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("items=0-1", None),
        ("bytes=0-1,3-4", None),
        ("bytes=" + ",".join(["0-9"] * 1000), None),
    ],
)
def test_a_single_range_is_served_and_all_else_means_the_whole_file(
    value: str, expected: tuple[int, int] | None
) -> None:
    assert parse_range(value, 10) == expected


@pytest.mark.parametrize("value", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_a_range_behind_the_end_cannot_be_satisfied(value: str) -> None:
    with pytest.raises(RangeNotSatisfiable):
        parse_range(value, 10)


def test_an_empty_file_has_no_last_bytes() -> None:
    with pytest.raises(RangeNotSatisfiable):
        parse_range("bytes=-1", 0)
