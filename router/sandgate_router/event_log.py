"""How log records are written: one line for each event, with its fields behind it.

    WARNING sandgate_router.registry.local.stock registry.start_failed pool="python" reason="…"

Values are JSON, so whoever reads the log can take them apart again, and nobody whose words get
into one (a program that failed to start, say) can break a line or speak to a terminal. The
lines of a traceback are indented: none of them can pass for an event.
"""

import json
import logging
import re

from sandgate_router.line_writer import LineWriter

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}
"""What every record has; all else was given as `extra`."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""C0, DEL and C1 control characters, Unicode's own line ends, and what has no encoding."""


class EventFormatter(logging.Formatter):
    """Formats a record as `LEVEL logger event key=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of a traceback below it."""
        words = [record.levelname, record.name, _escape(record.getMessage())]
        words += [
            f"{name}={_encode(value)}" for name, value in vars(record).items() if name not in _PLAIN
        ]
        lines = [" ".join(words)]
        if record.exc_info and record.exc_info[0] is not None:
            lines += self.formatException(record.exc_info).split("\n")
        return "\n    ".join([lines[0], *map(_escape, lines[1:])])


class LineHandler(logging.Handler):
    """Hands each event to the thread that writes lines."""

    def __init__(self, lines: LineWriter) -> None:
        super().__init__()
        self._lines = lines
        self.setFormatter(EventFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Have the event written soon."""
        try:
            self._lines.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - a value that cannot be shown must not fail its event
            self.handleError(record)

    def close(self) -> None:
        """Write what waits; `logging` calls it when Python ends."""
        self._lines.close()
        super().close()


def configure_logging() -> LineWriter:
    """Write events to standard error, uvicorn's only from warnings on; return what writes them.

    Whoever calls closes it at the end, so that the last events are seen.
    """
    lines = LineWriter()
    logging.basicConfig(level=logging.INFO, handlers=[LineHandler(lines)])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return lines


def _encode(value: object) -> str:
    """Return a value as JSON in ASCII; what JSON does not have, as the string it prints as."""
    return _escape(json.dumps(value, default=str))


def _escape(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
