"""Lines of the log: whoever does not read them holds nothing up, and lines stay whole."""

import fcntl
import io
import os
import threading
import time

import pytest

from sandgate_router.line_writer import CLOSE_SECONDS, MAX_WAITING_LINES, LineWriter


def test_lines_are_written_in_order_and_whole() -> None:
    sink = io.BytesIO()
    sink.fileno = lambda: -1  # type: ignore[method-assign]
    writer = LineWriter(sink)
    lines = [f"{number} é\ud800\n" for number in range(1000)]
    for line in lines:
        writer.write(line)
    writer.close()
    assert sink.getvalue().decode() == "".join(f"{number} é\\ud800\n" for number in range(1000))
    assert (writer.dropped, repr(writer)) == (0, "<LineWriter 0 waiting, 0 dropped>")


def test_a_log_that_nobody_reads_loses_lines_and_stalls_nothing() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader:
        with io.FileIO(writing, "w") as sink:
            writer = LineWriter(sink)
            sent = MAX_WAITING_LINES * 2
            for _ in range(sent):
                writer.write("x" * 200 + "\n")
            assert writer.dropped > 0
            lines: list[bytes] = []
            drain = threading.Thread(target=lambda: lines.extend(reader))
            drain.start()
            thread = next(each for each in threading.enumerate() if each.name == "log-lines")
            writer.close()
            thread.join(10)
        drain.join(10)
        assert set(lines) == {b"x" * 200 + b"\n"}
        assert len(lines) == sent - writer.dropped


def test_the_end_waits_a_second_for_a_log_that_nobody_reads_and_no_longer() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, io.FileIO(writing, "w") as sink:
        writer = LineWriter(sink)
        writer.write("x" * 200_000 + "\n")  # more than a pipe holds
        thread = next(each for each in threading.enumerate() if each.name == "log-lines")
        begun = time.monotonic()
        writer.close()
        writer.close()
        assert time.monotonic() - begun < 10 * CLOSE_SECONDS
        assert thread.is_alive()
        assert len(reader.readline()) == 200_001
        thread.join(10)
        assert not thread.is_alive()
        writer.write("more\n")
        writer.close()
        assert reader.readline() == b"more\n"


def test_a_pipe_that_somebody_made_non_blocking_is_waited_for() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
    with os.fdopen(reading, "rb") as reader, io.FileIO(writing, "w") as sink:
        writer = LineWriter(sink)
        for _ in range(1000):
            writer.write("x" * 999 + "\n")
        assert [len(reader.readline()) for _ in range(1000)] == [1000] * 1000
        writer.close()
    assert writer.dropped == 0


@pytest.mark.parametrize("closed", ["reader", "sink"])
def test_a_reader_that_is_gone_is_no_fault(closed: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = io.FileIO(writing, "w")
    if closed == "sink":
        sink.close()
    writer = LineWriter(sink)
    writer.write("a\n")
    writer.write("b\n")
    writer.close()
    sink.close()
    assert writer.dropped == 2


def test_nothing_is_started_for_no_line() -> None:
    before = threading.active_count()
    LineWriter().close()
    assert threading.active_count() == before
