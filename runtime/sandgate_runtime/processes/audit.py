"""One line for each command that was run, wherever it was asked for.

JSON on standard error: time, process id, the arguments' digest, how it ended. Arguments and
output never enter, since they may hold secrets; who has the arguments can compare the digest.

Whoever reads our standard error may be slow or gone, and must not be able to stop the runtime. So
a line is shorter than what a pipe takes at once (PIPE_BUF, 4096), and is written only when the
kernel says that there is room; else it is dropped, and the next line says how many were.
"""

import json
import os
import select
from collections.abc import Callable
from datetime import UTC, datetime

from sandgate_runtime.processes.command import Command, digest_argv
from sandgate_runtime.processes.ending import Exit

Tell = Callable[[bytes], bool]
"""Takes a line; says whether it was written."""

STANDARD_ERROR = 2


class Audit:
    """Tells of each command that has ended."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._dropped = 0

    def ended(
        self, command: Command, how: Exit, *, process: str, pid: int | None, at: datetime
    ) -> None:
        """Write the line of a command; `pid` is None if its program could not be started."""
        members: dict[str, object] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": "process.exit",
            "entry": command.entry,
            "process": process,
            "pid": pid,
            "argv_sha256": digest_argv(command.argv),
            "started": at.isoformat(timespec="milliseconds"),
            "duration": round(how.duration, 6),
            "exit_code": how.code,
            "signal": how.signal,
            "reason": how.reason,
        }
        if self._dropped:
            members["lines_dropped"] = self._dropped
        if self._tell(json.dumps(members).encode() + b"\n"):
            self._dropped = 0
        else:
            self._dropped += 1


def write_if_room(line: bytes, *, descriptor: int = STANDARD_ERROR) -> bool:
    """Write a line if that cannot block; say whether it was written."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    try:
        if not any(events & select.POLLOUT for _, events in poll.poll(0)):
            return False
        return os.write(descriptor, line) == len(line)
    except OSError:
        return False  # closed, or nobody reads it any more
