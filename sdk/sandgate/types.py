"""What calls give back: plain values, frozen, without a way back to the network."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Reason = Literal["exited", "timeout", "killed", "oom", "output_limit"]
"""Why a command ended: by itself, or what ended it."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that ended, whatever its exit code."""

    stdout: str
    """Text; bytes that are not UTF-8 became U+FFFD (see `stdout_bytes`)."""
    stderr: str
    exit_code: int
    """0 to 255; 128+n after signal n, 127 when there is no such program."""
    reason: Reason
    duration: float
    """Seconds from the start of the command to its end."""
    truncated: bool = False
    """Whether the sandbox dropped a part of the output."""
    signal: int | None = None
    """The signal that ended the command; None when it exited by itself."""
    stdout_bytes: bytes = field(default=b"", repr=False)
    stderr_bytes: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of a command."""

    id: str | None
    """The process's id in the sandbox's API; None where the program could not be started."""
    pid: int | None


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output, in the order in which it came."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Exit:
    """The last event of a command."""

    exit_code: int
    signal: int | None
    reason: Reason
    duration: float
    """Seconds from the start of the command to its end."""
    truncated: bool


CommandEvent = Started | Output | Exit


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of a directory in the sandbox."""

    name: str
    is_dir: bool
    size: int
    """Bytes."""
    modified: datetime
    """Aware, in UTC."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A warm pool as it stands."""

    name: str
    namespace: str
    warm: int
    """Members that are to stand ready."""
    max: int
    """Members at most, claimed ones included."""
    ready: int
    claimed: int
    waiting: int
    """Claims that wait for a member."""
    hit_rate: float | None
    """Share of claims that a ready member served at once; None before the first."""
    isolation: str
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease on a sandbox, as the gateway described it."""

    name: str
    namespace: str
    sandbox: str
    """The sandbox's id, as sent in X-Sandbox-ID."""
    port: int
    isolation: str
    """`bubblewrap`, `none` or `unknown`: what stands between the sandbox and its host."""
    state: str = "ready"
    reason: str | None = None
    """Why the sandbox failed; None while it has not."""
    pool: str = ""
    uid: str | None = None
    launch: str = ""
    """`warm` when a ready member was taken, `cold` when one had to be started."""
    expires_at: datetime | None = None
    token: str | None = field(default=None, repr=False)
    """Proves the claim to the gateway; None where it asks for none."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of each stage of the claim."""
