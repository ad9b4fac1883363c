"""The end of content, without a socket; every message also split at every byte."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate_router.body import (
    MAX_LINES_AT_ONCE,
    BadFraming,
    ChunkedDecoder,
    CloseDecoder,
    Decoder,
    LengthDecoder,
    encode_chunk,
)


def decode(decoder: Decoder, pieces: list[bytes]) -> bytes:
    content = b""
    for piece in pieces:
        if decoder.done:
            decoder.surplus += piece
            continue
        content += decoder.feed(piece)
        while decoder.rest:
            content += decoder.feed(decoder.rest)
    return content


GOOD = {
    "one chunk": (b"2\r\nok\r\n0\r\n\r\n", b"ok"),
    "no content": (b"0\r\n\r\n", b""),
    "upper and lower hex": (b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", b"0123456789" * 2),
    "leading zeros": (b"002\r\nok\r\n000\r\n\r\n", b"ok"),
    "M20 extensions": (b'2;a=b;c="d;\\"e";f\r\nok\r\n0;x\r\n\r\n', b"ok"),
    "CRLF in data": (b"4\r\n\r\n\r\n\r\n0\r\n\r\n", b"\r\n\r\n"),
}


@pytest.mark.parametrize(("raw", "content"), GOOD.values(), ids=GOOD.keys())
def test_chunked_content_is_the_same_wherever_it_is_split(raw: bytes, content: bytes) -> None:
    for split in range(len(raw) + 1):
        decoder = ChunkedDecoder()
        assert decode(decoder, [raw[:split], raw[split:], b"next"]) == content
        assert decoder.done
        assert decoder.surplus == b"next"
    decoder = ChunkedDecoder()
    assert decode(decoder, [raw[i : i + 1] for i in range(len(raw))]) == content
    assert decoder.done


BAD = {
    **{
        f"M15 size {size!r}": size + b"\r\nok\r\n0\r\n\r\n"
        for size in (b"+2", b"-2", b"0x2", b"1_0", b" 2", b"", b"12345678901234567", b"g")
    },
    "M16 trailing space": b"2 \r\nok\r\n0\r\n\r\n",
    "M16 bare semicolon": b"2;\r\nok\r\n0\r\n\r\n",
    "M17 line ended by LF": b"2\nok\r\n0\r\n\r\n",
    "M17 line ended by CR X": b"2\rXok\r\n0\r\n\r\n",
    "M17 data ended by LF": b"2\r\nok\n0\r\n\r\n",
    "M17 data ended by nothing": b"2\r\nok0\r\n\r\n",
    "M17 data ended by XX": b"2\r\nokXX0\r\n\r\n",
    "M18 LF in extension": b"2;a\nb\r\nok\r\n0\r\n\r\n",
    "M18 CR in extension": b"2;a\rb\r\nok\r\n0\r\n\r\n",
    "M18 NUL in extension": b"2;a\x00\r\nok\r\n0\r\n\r\n",
    "M19 long extension": b"2;" + b"a" * 20_000 + b"\r\nok\r\n0\r\n\r\n",
    "M19 many extensions": b"1;aaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 1000 + b"0\r\n\r\n",
    "M21 last line by LF": b"0\r\n\n",
    "M21 last line XX": b"0\r\nXX\r\n",
    "M22 spill": b"2\r\nabcd\r\n0\r\n\r\n",
    "M23 trailer": b"0\r\nX-T: 1\r\n\r\n",
    "M23 routing trailer": b"0\r\nX-Sandbox-ID: other\r\n\r\n",
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_chunked_content_that_readers_could_take_differently_is_refused(raw: bytes) -> None:
    with pytest.raises(BadFraming):
        decode(ChunkedDecoder(), [raw])
    with pytest.raises(BadFraming):
        decode(ChunkedDecoder(), [raw[i : i + 1] for i in range(len(raw))])


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_what_is_encoded_decodes_to_the_same_content(pieces: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(map(encode_chunk, pieces)) + b"0\r\n\r\n"
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    decoder = ChunkedDecoder()
    split = [raw[a:b] for a, b in itertools.pairwise(edges)]
    assert decode(decoder, split) == b"".join(pieces)
    assert decoder.done


def test_trailers_of_a_response_are_dropped_and_bounded() -> None:
    decoder = ChunkedDecoder(drop_trailers=True)
    assert decode(decoder, [b"1\r\na\r\n0\r\nX-T: 1\r\nY: 2\r\n\r\nrest"]) == b"a"
    assert decoder.surplus == b"rest"
    with pytest.raises(BadFraming):
        decode(ChunkedDecoder(drop_trailers=True), [b"0\r\n" + b"X-T: 1\r\n" * 10_000])
    with pytest.raises(BadFraming):
        decode(ChunkedDecoder(drop_trailers=True), [b"0\r\nno colon\r\n\r\n"])


def test_many_tiny_chunks_are_read_in_turns_and_none_is_lost() -> None:
    decoder, data = ChunkedDecoder(), b"1\r\nx\r\n" * 2_000 + b"0\r\n\r\n"
    first = decoder.feed(data)
    assert first == b"x" * (MAX_LINES_AT_ONCE // 2)
    assert len(decoder.rest) == len(data) - len(first) * 6
    assert first + decode(decoder, [decoder.rest]) == b"x" * 2_000
    assert decoder.done


def test_content_of_known_length_leaves_the_rest() -> None:
    decoder = LengthDecoder(3)
    assert decode(decoder, [b"a", b"bcd", b"e"]) == b"abc"
    assert decoder.surplus == b"de"
    assert LengthDecoder(0).done


def test_content_until_close_never_ends_by_itself() -> None:
    decoder = CloseDecoder()
    assert decode(decoder, [b"a", b"b"]) == b"ab"
    assert not decoder.done
