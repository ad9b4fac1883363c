"""The first and the last of an output."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from sandgate_runtime.processes.window import OutputWindow


@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(1, 30))
def test_what_fits_is_kept_whole_and_the_rest_as_head_and_tail(
    pieces: list[bytes], half: int
) -> None:
    window = OutputWindow(half=half)
    for piece in pieces:
        window.add(piece)
    whole = b"".join(pieces)
    if len(whole) <= 2 * half:
        expected = whole.decode("utf-8", "replace")
        assert not window.truncated
    else:
        head, tail = whole[:half], whole[-half:]
        expected = head.decode("utf-8", "replace") + tail.decode("utf-8", "replace")
        assert window.truncated
    assert window.size == min(len(whole), 2 * half)
    assert "".join(window.text()) == expected


def test_a_character_that_is_split_between_two_writes_stays_whole() -> None:
    window = OutputWindow()
    window.add("ä".encode()[:1])
    window.add("ä".encode()[1:])
    assert "".join(window.text()) == "ä"


def test_single_bytes_cost_no_more_memory_than_long_writes() -> None:
    window = OutputWindow(half=64 * 1024)
    tracemalloc.start()
    for _ in range(400_000):
        window.add(b"x")
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert current < 400_000
