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
    """The last part of the path; below a directory that was listed deeply, the path in it."""
    is_dir: bool
    size: int
    """Bytes."""
    modified: datetime | None
    """Aware, in UTC; None where the sandbox does not tell."""
    mode: str | None = None
    """Permissions as four octal digits; None where the sandbox does not tell."""


@dataclass(frozen=True, slots=True)
class Match:
    """A line of a file in which a text was found."""

    name: str
    """The file, from the directory that was searched."""
    line: int
    """Counted from 1."""
    text: str


@dataclass(frozen=True, slots=True)
class FileChange:
    """What happened below a watched directory."""

    kind: Literal["created", "modified", "deleted", "overflow"]
    """`overflow`: changes were lost, and what is there has to be listed anew."""
    name: str
    """The path, from the watched directory; empty for `overflow`."""


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """How much a terminal shows."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process in a sandbox as it stands."""

    id: str
    pid: int | None
    running: bool
    argv: tuple[str, ...]
    """Long ones are cut."""
    started_at: datetime | None
    exit: Exit | None
    """How it ended; None while it runs."""


@dataclass(frozen=True, slots=True)
class Written:
    """What became of input that was written to a process."""

    written: int
    """Bytes taken; fewer than sent where the process closed its input."""
    open: bool
    """Whether more may follow."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A warm pool as it stands."""

    name: str
    namespace: str
    warm: int
    """Members that are to stand ready."""
    max: int | None
    """Members at most, claimed ones included; None where the gateway does not limit them."""
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
    """When the lease ends; a handle has it renewed before."""
    token: str | None = field(default=None, repr=False)
    """Proves the claim to the gateway; None where it asks for none."""
    token_expires_at: datetime | None = None
    created_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds of each stage of the claim."""


@dataclass(frozen=True, slots=True)
class GatewayEvent:
    """What happened to a claim or a pool, and how it stands afterwards."""

    kind: str
    """`claim.created`, `.renewed`, `.released`, `.expired`, `.failed`, `pool.changed`; or
    `stream.reset`: events were lost, and claims and pools have to be listed anew."""
    at: datetime | None = None
    namespace: str = ""
    pool: str = ""
    reason: str | None = None
    claim: Claim | None = None
    status: PoolStatus | None = None
