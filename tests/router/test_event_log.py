"""Log records as lines: every field is there, and no value can break a line."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandgate_router.event_log import EventFormatter, LineHandler
from sandgate_router.line_writer import LineWriter


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Return what the logger `sandgate.test` writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(EventFormatter())
    log = logging.getLogger("sandgate.test")
    log.addHandler(handler)
    log.propagate = False
    yield stream
    log.removeHandler(handler)
    log.propagate = True


log = logging.getLogger("sandgate.test")


def test_an_event_is_a_line_with_its_fields(written: io.StringIO) -> None:
    log.warning("registry.died", extra={"sandbox": "python-a1", "attempts": 3, "last": None})
    assert written.getvalue() == (
        'WARNING sandgate.test registry.died sandbox="python-a1" attempts=3 last=null\n'
    )


def test_an_event_without_fields_is_its_name(written: io.StringIO) -> None:
    log.warning("%d of %s", 2, "three")
    assert written.getvalue() == "WARNING sandgate.test 2 of three\n"


@pytest.mark.parametrize(
    "value",
    [
        "a\nWARNING sandgate.test forged",
        "\r\n\t\0",
        "\x1b[2J\x1b]0;title\x07",
        "\x7f\x9b\x85",
        "\u2028\u2029",
        "\ud800",
        'a" b="c',
        "Zürich 世界",
    ],
)
def test_no_value_breaks_its_line_or_its_quotes(written: io.StringIO, value: str) -> None:
    log.warning("event", extra={"reason": value, "after": 1})
    line = written.getvalue()
    assert line.isascii()
    assert line.endswith(" after=1\n")
    assert line[:-1].isprintable()
    text = line.removeprefix("WARNING sandgate.test event reason=").removesuffix(" after=1\n")
    assert json.loads(text) == value


def test_a_message_cannot_break_its_line_either(written: io.StringIO) -> None:
    log.warning("said %s", "a\nb\x1b\x7f")
    assert written.getvalue() == "WARNING sandgate.test said a\\u000ab\\u001b\\u007f\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, "0.5"),
        (True, "true"),
        (["a", 1], '["a", 1]'),
        (Path("/a b"), '"/a b"'),
        (b"\xff\n", r'''"b'\\xff\\n'"'''),
        (ValueError("x\ny"), r'"x\ny"'),
    ],
)
def test_a_value_that_is_no_text_is_json_or_what_it_prints_as(
    written: io.StringIO, value: object, shown: str
) -> None:
    log.warning("event", extra={"value": value})
    assert written.getvalue() == f"WARNING sandgate.test event value={shown}\n"


def test_no_line_of_a_traceback_passes_for_an_event(written: io.StringIO) -> None:
    def fail() -> None:
        raise ValueError("a\nWARNING sandgate.test forged\x1b")

    try:
        fail()
    except ValueError:
        log.exception("sweep.failed", extra={"number": 7})
    first, *others = written.getvalue().splitlines()
    assert first == "ERROR sandgate.test sweep.failed number=7"
    assert others[0] == "    Traceback (most recent call last):"
    assert "    WARNING sandgate.test forged\\u001b" in others
    assert all(line.startswith("    ") for line in others)


def test_a_value_that_cannot_be_shown_fails_no_event(capsys: pytest.CaptureFixture[str]) -> None:
    class Unshown:
        def __str__(self) -> str:
            raise RuntimeError("no")

    lines = LineWriter(io.BytesIO())
    handler = LineHandler(lines)
    record = logging.makeLogRecord({"msg": "a", "value": Unshown()})
    handler.handle(record)
    handler.close()
    assert "Logging error" in capsys.readouterr().err


def test_a_gateway_that_starts_writes_what_failed_and_why(tmp_path: Path) -> None:
    # In a child, since it is the root logger of a whole process that is set up.
    code = (
        "import logging\n"
        "from sandgate_router.event_log import configure_logging\n"
        "configure_logging()\n"
        "logging.getLogger('sandgate.x').info('a', extra={'b': 'c'})\n"
        "logging.getLogger('uvicorn.error').info('chatter')\n"
        "logging.getLogger('uvicorn.error').warning('loud')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.stdout == ""
    assert done.stderr == 'INFO sandgate.x a b="c"\nWARNING uvicorn.error loud\n'


def test_a_log_that_nobody_reads_does_not_keep_a_process_from_ending(tmp_path: Path) -> None:
    code = (
        "import logging\n"
        "from sandgate_router.event_log import configure_logging\n"
        "configure_logging()\n"
        "for number in range(20_000):\n"
        "    logging.getLogger('sandgate.x').info('a' * 100)\n"
        "print('logged', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    ) as process:
        try:
            assert process.wait(60) == 0
            assert process.stdout is not None
            assert process.stdout.read() == b"logged\n"
        finally:
            process.kill()
