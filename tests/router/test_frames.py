"""Following WebSocket frames, and closing between them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode

from sandgate_router.frames import MAX_FRAMES_AT_ONCE, FrameFollower, build_close


def encoded(opcode: Opcode, payload: bytes, *, masked: bool) -> bytes:
    return Frame(opcode, payload).serialize(mask=masked)


SIZES = [0, 1, 125, 126, 127, 65_535, 65_536, 70_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("masked", [False, True])
def test_a_frame_of_any_length_ends_where_its_bytes_end(size: int, masked: bool) -> None:
    raw = encoded(Opcode.BINARY, b"x" * size, masked=masked)
    follower = FrameFollower()
    states = []
    for piece in (raw[:-1], raw[-1:]):
        follower.feed(piece)
        states.append((follower.between, follower.closed))
    assert states == [(False, False), (True, False)]


@given(
    payloads=st.lists(st.binary(max_size=300), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 2000), max_size=8),
    masked=st.booleans(),
)
def test_frames_are_followed_however_they_are_cut(
    payloads: list[bytes], cuts: list[int], masked: bool
) -> None:
    frames = [encoded(Opcode.PING, payload[:125], masked=masked) for payload in payloads]
    raw = b"".join(frames)
    ends = {len(b"".join(frames[: count + 1])) for count in range(len(frames))}
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    follower = FrameFollower()
    for start, end in itertools.pairwise(edges):
        follower.feed(raw[start:end])
        assert follower.between is (end in ends)


def test_a_close_frame_is_seen_as_soon_as_it_begins() -> None:
    raw = encoded(Opcode.CLOSE, Close(1000, "bye").serialize(), masked=True)
    follower = FrameFollower()
    follower.feed(raw[:7])
    assert follower.closed
    assert not follower.between


@pytest.mark.parametrize("masked", [False, True])
def test_our_close_frame_is_a_valid_one(masked: bool) -> None:
    raw = build_close(1001, "x" * 500, masked=masked)
    follower = FrameFollower()
    follower.feed(raw)
    assert follower.between
    assert follower.closed
    assert len(raw) <= 2 + 4 + 125
    if not masked:
        assert Close.parse(raw[2:]) == Close(1001, "x" * 123)
    else:
        mask, covered = raw[2:6], raw[6:]
        payload = bytes(byte ^ mask[index % 4] for index, byte in enumerate(covered))
        assert Close.parse(payload).code == 1001


def test_many_tiny_frames_are_followed_in_turns() -> None:
    raw = b"\x82\x00" * (MAX_FRAMES_AT_ONCE + 10) + b"\x88\x00"
    follower = FrameFollower()
    passing = follower.feed(raw)
    assert passing == 2 * MAX_FRAMES_AT_ONCE
    assert follower.feed(raw[passing:]) == len(raw) - passing
    assert follower.closed


def test_a_header_that_came_in_two_reads_counts_once() -> None:
    follower = FrameFollower()
    frames = b"\x82\x01a" * (MAX_FRAMES_AT_ONCE + 1)
    assert follower.feed(frames[:1]) == 1
    passing = follower.feed(frames[1:])
    assert passing == 3 * MAX_FRAMES_AT_ONCE - 2  # up to the last one's payload
    assert follower.feed(frames[1 + passing :]) == 4
    assert follower.between
