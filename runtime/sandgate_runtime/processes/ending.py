"""How a command ended, and the truth about it.

`status` is what wait(2) said, whatever else is known; `reason` tells who ended the command.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Stream = Literal["stdout", "stderr"]
Reason = Literal["exited", "timeout", "killed", "oom", "output_limit"]

MISSING_PROGRAM, NOT_EXECUTABLE = 127, 126
"""What a shell answers for a program that it cannot start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a command ended."""

    status: int
    """0..255, or -n after a death by signal n."""
    reason: Reason
    duration: float
    """Seconds from the spawn to the end of the command itself."""
    dropped: Mapping[Stream, int] = field(default_factory=dict)
    """Bytes of output beyond its limit."""

    @property
    def signal(self) -> int | None:
        """The signal that it died of."""
        return -self.status if self.status < 0 else None

    @property
    def code(self) -> int:
        """The status as a shell tells it: 128+n after a death by signal n."""
        return 128 - self.status if self.status < 0 else self.status


def judge_failed_start(error: OSError, argv: tuple[str, ...]) -> Exit:
    """Return how a program ended that could not be started, as a shell would tell it."""
    # An empty name is looked for in each directory of PATH and found to be a directory.
    missing = isinstance(error, FileNotFoundError | NotADirectoryError) or not argv[0]
    status = MISSING_PROGRAM if missing else NOT_EXECUTABLE
    return Exit(status=status, reason="exited", duration=0.0)


def describe_failed_start(error: OSError) -> bytes:
    """Return the line on standard error that tells of it."""
    return f"Failed to execute command: {error}\n".encode("utf-8", "replace")
