"""Server-sent events, however the bytes are cut."""

import pytest

from sandgate._wire import event_stream
from sandgate._wire.event_stream import Event, EventDecoder, EventTooLarge

STREAM = (
    b"\xef\xbb\xbf: ping\r\n\r\n"
    b"id: 1\r\nevent: started\r\ndata: {}\r\n\r\n"
    b"event:stdout\rdata: caf\xc3\xa9\rdata:  two\r\r"
    b"id: 2\ndata\n\n"
    b"retry: 5\nnonsense: x\n: only a comment\n\n"
    b"event: exit\ndata: last\n\n"
    b"event: exit\ndata: never closed\n"
)

EVENTS = [
    Event("started", "{}", "1"),
    Event("stdout", "café\n two", "1"),
    Event("message", "", "2"),
    Event("exit", "last", "2"),
]


def test_a_stream_in_one_piece_gives_its_events() -> None:
    assert EventDecoder().feed(STREAM) == EVENTS


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_cut_at_any_byte_gives_the_same_events(cut: int) -> None:
    decoder = EventDecoder()
    assert decoder.feed(STREAM[:cut]) + decoder.feed(STREAM[cut:]) == EVENTS


def test_a_stream_byte_by_byte_gives_the_same_events() -> None:
    decoder = EventDecoder()
    assert [event for byte in STREAM for event in decoder.feed(bytes([byte]))] == EVENTS


def test_an_event_is_told_with_the_byte_that_closes_it() -> None:
    decoder = EventDecoder()
    assert decoder.feed(b"data: x\r\n\r") == [Event("message", "x")]
    assert decoder.feed(b"\n") == []


def test_comments_alone_give_nothing() -> None:
    assert EventDecoder().feed(b": ping\n\n" * 100) == []


def test_an_id_with_nul_is_ignored() -> None:
    assert EventDecoder().feed(b"id: 1\nid: 2\0\ndata: x\n\n") == [Event("message", "x", "1")]


@pytest.mark.parametrize("line", [b"x" * 40, b"data: abc\n" * 5])
def test_an_endless_event_is_refused_before_it_fills_the_memory(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 30)
    with pytest.raises(EventTooLarge, match="larger than 30 bytes"):
        EventDecoder().feed(line)


def test_many_small_events_are_not_one_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 30)
    assert len(EventDecoder().feed(b"data: abc\n\n" * 100)) == 100
