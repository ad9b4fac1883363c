"""What a log keeps, what it drops, and whom it makes wait."""

import asyncio

import pytest

from sandgate_runtime.errors import OutOfWindow
from sandgate_runtime.processes.event_log import (
    HIGH_BYTES,
    OVERHEAD_BYTES,
    Event,
    EventLog,
    Watcher,
)


def build_log(capacity: int = 10_000) -> tuple[EventLog, list[bool]]:
    flow: list[bool] = []
    return EventLog(capacity=capacity, flow=flow.append), flow


async def take(watcher: Watcher, count: int) -> list[Event]:
    events = []
    for _ in range(count):
        event = await watcher.get()
        assert event is not None
        events.append(event)
    return events


async def test_ids_and_offsets_count_from_the_start() -> None:
    log, _ = build_log()
    log.add("started", {"pid": 1})
    log.add_output("stdout", b"abc")
    log.add_output("stderr", b"de")
    events = await take(log.watch(), 3)
    assert [(event.id, event.offset) for event in events] == [(1, 0), (2, 0), (3, 3)]
    assert (log.first_id, log.last_id, log.output_size) == (1, 3, 5)
    assert [event.id for event in await take(log.watch(after=2), 1)] == [3]


async def test_a_watcher_waits_for_the_next_event_and_ends_with_the_log() -> None:
    log, _ = build_log()
    watcher = log.watch()
    waiting = asyncio.create_task(watcher.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    log.add_output("stdout", b"x")
    event = await waiting
    assert event is not None
    assert event.content == b"x"
    ending = asyncio.create_task(watcher.get())
    await asyncio.sleep(0)
    log.finish()
    assert await ending is None
    assert await log.watch(after=1).get() is None


async def test_unwatched_the_oldest_go_and_are_counted_per_stream() -> None:
    log, flow = build_log(capacity=10 * (100 + OVERHEAD_BYTES))
    for _ in range(10):
        log.add_output("stdout", b"o" * 100)
    for _ in range(3):
        log.add_output("stderr", b"e" * 100)
    assert (log.first_id, log.last_id) == (4, 13)
    assert log.dropped == {"stdout": 300, "stderr": 0}
    assert flow == []
    for after in (0, 2, 14):
        with pytest.raises(OutOfWindow) as refused:
            log.watch(after=after)
        assert refused.value.first_id == 4
    assert [event.id for event in await take(log.watch(after=3), 10)] == list(range(4, 14))


async def test_what_a_watcher_was_given_is_not_counted_when_it_goes() -> None:
    log, _ = build_log(capacity=5 * (100 + OVERHEAD_BYTES))
    watcher = log.watch()
    for _ in range(5):
        log.add_output("stdout", b"o" * 100)
    await take(watcher, 4)
    watcher.close()
    for _ in range(5):
        log.add_output("stdout", b"o" * 100)
    assert log.first_id == 6
    assert log.dropped == {"stdout": 100, "stderr": 0}


async def test_nothing_goes_that_a_watcher_has_not_been_given() -> None:
    log, _ = build_log(capacity=1000)
    watcher = log.watch()
    for _ in range(100):
        log.add_output("stdout", b"o" * 100)
    assert len(await take(watcher, 100)) == 100
    log.add_output("stdout", b"o")
    assert log.first_id > 90
    assert log.dropped == {"stdout": 0, "stderr": 0}


async def test_the_slowest_watcher_makes_the_process_wait_and_sets_it_free() -> None:
    log, flow = build_log(capacity=10 * HIGH_BYTES)
    quick, slow = log.watch(), log.watch()
    piece = b"x" * 65536
    for _ in range(4):
        log.add_output("stdout", piece)
    await take(quick, 4)
    assert flow == [False]
    await take(slow, 2)
    assert flow == [False]
    await take(slow, 2)
    assert flow == [False, True]


async def test_a_waiting_process_is_set_free_when_its_watcher_goes() -> None:
    log, flow = build_log()
    watcher = log.watch()
    log.add_output("stdout", b"x" * (HIGH_BYTES + 1))
    assert flow == [False]
    watcher.close()
    assert flow == [False, True]


async def test_who_comes_late_makes_the_process_wait_too() -> None:
    log, flow = build_log(capacity=10 * HIGH_BYTES)
    log.add_output("stdout", b"x" * (HIGH_BYTES + 1))
    assert flow == []
    watcher = log.watch()
    assert flow == [False]
    await take(watcher, 1)
    assert flow == [False, True]


async def test_an_offset_leads_to_the_event_that_has_the_byte() -> None:
    log, _ = build_log()
    log.add("started", {})
    for content in (b"abc", b"defg", b"h"):
        log.add_output("stdout", content)
    for offset, first in ((0, 2), (2, 2), (3, 3), (6, 3), (7, 4)):
        following = await log.watch_offset(offset).get()
        assert following is not None
        assert following.id == first
    assert log.watch_offset(8).last_id == 4
    assert log.watch_offset(99).last_id == 4


def test_a_log_says_what_it_is() -> None:
    log, _ = build_log()
    assert repr(log) == "<EventLog 1..0 0 watch, flowing>"
    log.finish()
    assert repr(log) == "<EventLog 1..0 0 watch, finished>"
