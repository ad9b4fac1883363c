"""The file of keys, and what a crash may leave of it."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandgate_runtime.errors import IdempotencyKeyReused, OutcomeUnknown, StateUnavailable
from sandgate_runtime.processes.journal import FILE_NAME, Journal, Reservation
from sandgate_runtime.processes.keys import KEEP_SECONDS, MAX_KEYS, Keys

ONE, TWO = Reservation("a", "ra", 1.0), Reservation("b", "rb", 2.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_what_was_reserved_and_not_given_back_is_read_again(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    assert journal.read() == []
    journal.rewrite([ONE])
    journal.reserve(TWO)
    journal.give_back("a")
    journal.close()
    assert Journal(str(tmp_path)).read() == [TWO]


@pytest.mark.parametrize(
    "torn", [b'{"key": "b", "requ', b"\xff\n", b"{}\n", b"[]\n", b'{"key": "b"}\n', b"null\n"]
)
def test_a_torn_or_strange_line_says_nothing(tmp_path: Path, torn: bytes) -> None:
    journal = Journal(str(tmp_path))
    journal.rewrite([ONE])
    journal.close()
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(torn)
    assert Journal(str(tmp_path)).read() == [ONE]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size (EFBIG; Python ignores SIGXFSZ)."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.rewrite([ONE])
    size = (tmp_path / FILE_NAME).stat().st_size
    with room_for(size + 10), pytest.raises(OSError, match="File too large"):
        journal.reserve(Reservation("lost", "r", 1.5))
    assert (tmp_path / FILE_NAME).stat().st_size == size
    journal.reserve(TWO)
    journal.close()
    assert Journal(str(tmp_path)).read() == [ONE, TWO]


def test_what_cannot_be_taken_back_stops_the_journal_until_it_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _size: int) -> None:
        raise OSError(5, "Input/output error")

    journal = Journal(str(tmp_path))
    journal.rewrite([ONE])
    with monkeypatch.context() as patch, room_for((tmp_path / FILE_NAME).stat().st_size + 10):
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="File too large"):
            journal.reserve(Reservation("lost", "r", 1.5))
    with pytest.raises(OSError, match="half a line"):
        journal.reserve(TWO)
    journal.rewrite([ONE])
    journal.reserve(TWO)
    journal.close()
    assert Journal(str(tmp_path)).read() == [ONE, TWO]


def test_a_line_behind_a_fragment_begins_anew(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    journal.rewrite([ONE])
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"key": "c", "requ')
    journal.reserve(TWO)
    journal.close()
    assert Journal(str(tmp_path)).read() == [ONE, TWO]


async def test_a_key_is_kept_as_long_as_its_process() -> None:
    clock, kept = Clock(), {"running"}
    keys = Keys(clock=clock, is_kept=kept.__contains__)
    await keys.reserve("a", "r")
    keys.started("a", "running")
    for n in range(MAX_KEYS + 5):
        await keys.reserve(str(n), "r")
    clock.now += KEEP_SECONDS + 1
    assert keys.find("0", "r") is None
    assert keys.find("a", "r") == "running"
    kept.clear()
    assert keys.find("a", "r") is None


async def test_where_all_keys_are_needed_a_new_one_is_refused() -> None:
    keys = Keys(is_kept=lambda _: True)
    for n in range(MAX_KEYS):
        await keys.reserve(str(n), "r")
        keys.started(str(n), f"p{n}")
    with pytest.raises(StateUnavailable, match="without a key"):
        await keys.reserve("new", "r")
    assert keys.find("0", "r") == "p0"
    assert keys.find("new", "r") is None


async def test_keys_are_forgotten_after_a_day_on_disk_too(tmp_path: Path) -> None:
    clock = Clock()
    keys = Keys(Journal(str(tmp_path)), clock=clock)
    keys.load()
    await keys.reserve("a", "ra")
    clock.now += KEEP_SECONDS / 2
    await keys.reserve("b", "rb")
    clock.now += KEEP_SECONDS / 2 + 1
    keys.close()
    later = Keys(Journal(str(tmp_path)), clock=clock)
    later.load()
    assert later.find("a", "another") is None
    with pytest.raises(OutcomeUnknown):
        later.find("b", "rb")
    with pytest.raises(IdempotencyKeyReused):
        later.find("b", "another")
    later.close()
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 1


async def test_memory_and_file_are_bounded(tmp_path: Path) -> None:
    clock = Clock()
    journal = Journal(str(tmp_path))
    journal.rewrite(Reservation(str(n), "r", clock.now) for n in range(MAX_KEYS + 100))
    journal.close()
    keys = Keys(Journal(str(tmp_path)), clock=clock)
    keys.load()
    assert keys.find("99", "r") is None
    with pytest.raises(OutcomeUnknown):
        keys.find("100", "r")
    for n in range(MAX_KEYS):
        keys._lines = max(keys._lines, 2 * MAX_KEYS - 5)
        if n > 20:
            break
        await keys.reserve(f"new {n}", "r")
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) <= MAX_KEYS + 50
    keys.close()


async def test_a_key_that_cannot_be_written_down_is_not_taken() -> None:
    class FullDisk(Journal):
        def reserve(self, reservation: Reservation) -> None:
            raise OSError(28, "No space left on device", reservation.key)

    keys = Keys(FullDisk("/nosuch"))
    with pytest.raises(StateUnavailable, match="No space left"):
        await keys.reserve("a", "ra")
    assert keys.find("a", "ra") is None


async def test_the_second_with_a_key_waits_until_the_first_has_started_something(
    tmp_path: Path,
) -> None:
    keys = Keys(Journal(str(tmp_path)))
    keys.load()
    found: list[str | None] = []

    async def ask(process: str) -> None:
        async with keys.turn("k") as key:
            found.append(keys.find(key, "r"))
            if found[-1] is None:
                await keys.reserve(key, "r")
                keys.started(key, process)

    await asyncio.gather(ask("one"), ask("two"), ask("three"))
    assert found == [None, "one", "one"]
    assert keys._turns == {}
    keys.close()
