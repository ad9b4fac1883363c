"""The runtime's settings: read once, checked at once, never changed.

Nothing here looks at the process environment by itself, so that nothing happens at import.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import overload

DEFAULT_BASE_DIRECTORY = "/app"
"""Where the upstream project's images keep the workspace."""

DEFAULT_COMMAND_TIMEOUT = 300.0
"""Seconds. What the upstream project's runtime gives a command."""

DEFAULT_MAX_COMMANDS = 256
DEFAULT_MAX_REQUESTS = 1024
DEFAULT_MAX_JSON_BYTES = 32 * 1024 * 1024
DEFAULT_OUTPUT_BUFFER_BYTES = 1024 * 1024
DEFAULT_KEEP_FINISHED = 64
DEFAULT_KEEP_FINISHED_SECONDS = 300.0

PRIVATE_PREFIX = "SANDGATE_"
PRIVATE_NAMES = frozenset({"SANDBOX_BASE_DIR", "SANDBOX_EXEC_TIMEOUT_SECONDS"})
"""Variables that configure the runtime; commands never see them."""


class BadSettings(Exception):
    """One or more settings are wrong; `faults` lists them all."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set from outside."""

    base_directory: str
    """Absolute. Where relative paths start, and the working directory of commands."""
    isolated: bool = False
    """True when the whole file system belongs to this sandbox: absolute paths mean themselves."""
    command_timeout: float = DEFAULT_COMMAND_TIMEOUT
    """Seconds that a command of `/execute` may take; a request may ask for less, not more."""
    sandbox_name: str | None = None
    """`namespace/id` of this sandbox; None when the runtime was not told."""
    sandbox_uid: str | None = None
    """Which generation of that name this is; None when the runtime was not told."""
    command_cpu_seconds: int | None = None
    """CPU time of each process of a command; None for no limit."""
    command_memory_bytes: int | None = None
    """Data memory of each process of a command; None for no limit."""
    command_open_files: int | None = None
    """Descriptors of each process of a command; None for what the runtime was started with."""
    max_processes: int | None = None
    """Processes and threads of the runtime's user; None for no limit."""
    max_commands: int = DEFAULT_MAX_COMMANDS
    """Commands that run at once. Each takes three descriptors and, unread, its output buffer."""
    max_requests: int = DEFAULT_MAX_REQUESTS
    """Requests and terminals that are served at once; health answers beyond it. A request costs
    about 30 KiB, so a flood of them stays below what the sandbox has."""
    max_json_bytes: int = DEFAULT_MAX_JSON_BYTES
    """Longest JSON body. Clients upload whole files inside a command: base64 of 20 MB fits."""
    output_buffer_bytes: int = DEFAULT_OUTPUT_BUFFER_BYTES
    """Output of each process of `/v1/processes` that is kept for whoever comes later: twelve
    screens of a build's log, or a second's absence from a fast one."""
    output_limit_bytes: int | None = None
    """Output after which such a process is killed where its request names no limit; None for
    none: whoever watches decides."""
    keep_finished: int = DEFAULT_KEEP_FINISHED
    """Ended processes that are kept with their output, the oldest forgotten first."""
    keep_finished_seconds: float = DEFAULT_KEEP_FINISHED_SECONDS
    """How long they are kept: a client that lost its connection is back by then, or gone."""
    state_directory: str | None = None
    """Absolute, outside the base directory. Where idempotency keys outlive the runtime; None to
    keep them in memory only."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], *, root: str | None = None) -> "Config":
        """Read the settings, `root` winning over the environment; raise BadSettings."""
        faults: list[str] = []
        base = root if root is not None else environ.get("SANDBOX_BASE_DIR", "").strip()
        base = base or DEFAULT_BASE_DIRECTORY
        if not os.path.isabs(base) or not os.path.isdir(base):
            source = "SANDBOX_BASE_DIR" if root is None else "--root"
            faults.append(f"{source} {base!r} is not the absolute path of a directory")
        config = cls(
            base_directory=base,
            isolated=_read_switch(environ, "SANDGATE_ISOLATED", faults),
            command_timeout=_read_seconds(
                environ, "SANDBOX_EXEC_TIMEOUT_SECONDS", faults, DEFAULT_COMMAND_TIMEOUT
            ),
            sandbox_name=environ.get("SANDGATE_SANDBOX_NAME") or None,
            sandbox_uid=environ.get("SANDGATE_SANDBOX_UID") or None,
            command_cpu_seconds=_read_count(environ, "SANDGATE_COMMAND_CPU_SECONDS", faults),
            command_memory_bytes=_read_count(environ, "SANDGATE_COMMAND_MEMORY_BYTES", faults),
            command_open_files=_read_count(environ, "SANDGATE_COMMAND_OPEN_FILES", faults),
            max_processes=_read_count(environ, "SANDGATE_MAX_PROCESSES", faults),
            max_commands=_read_count(
                environ, "SANDGATE_MAX_COMMANDS", faults, DEFAULT_MAX_COMMANDS
            ),
            max_requests=_read_count(
                environ, "SANDGATE_MAX_REQUESTS", faults, DEFAULT_MAX_REQUESTS
            ),
            max_json_bytes=_read_count(
                environ, "SANDGATE_MAX_JSON_BYTES", faults, DEFAULT_MAX_JSON_BYTES
            ),
            output_buffer_bytes=_read_count(
                environ, "SANDGATE_OUTPUT_BUFFER_BYTES", faults, DEFAULT_OUTPUT_BUFFER_BYTES
            ),
            output_limit_bytes=_read_count(environ, "SANDGATE_OUTPUT_LIMIT_BYTES", faults),
            keep_finished=_read_count(
                environ, "SANDGATE_KEEP_FINISHED", faults, DEFAULT_KEEP_FINISHED
            ),
            keep_finished_seconds=_read_seconds(
                environ, "SANDGATE_KEEP_FINISHED_SECONDS", faults, DEFAULT_KEEP_FINISHED_SECONDS
            ),
            state_directory=_read_state_directory(environ, base, faults),
        )
        name = config.sandbox_name
        if name is not None and (name.count("/") != 1 or "" in name.split("/")):
            faults.append(f"SANDGATE_SANDBOX_NAME {name!r} is not of the form namespace/id")
        if faults:
            raise BadSettings(faults)
        return config


def _read_switch(environ: Mapping[str, str], name: str, faults: list[str]) -> bool:
    value = environ.get(name, "").strip()
    if value not in {"", "0", "1"}:
        faults.append(f"{name} {value!r} is neither 0 nor 1")
    return value == "1"


def _read_state_directory(environ: Mapping[str, str], base: str, faults: list[str]) -> str | None:
    text = environ.get("SANDGATE_STATE_DIR", "").strip()
    if not text:
        return None
    real, root = os.path.realpath(text), os.path.realpath(base)
    if not os.path.isabs(text) or not os.path.isdir(text):
        faults.append(f"SANDGATE_STATE_DIR {text!r} is not the absolute path of a directory")
    elif os.path.commonpath([real, root]) == root:
        faults.append(f"SANDGATE_STATE_DIR {text!r} lies in the base directory {base!r}")
    return real


def _read_seconds(
    environ: Mapping[str, str], name: str, faults: list[str], default: float
) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        faults.append(f"{name} {text!r} is not a finite number of seconds above 0")
    return value


@overload
def _read_count(environ: Mapping[str, str], name: str, faults: list[str]) -> int | None: ...


@overload
def _read_count(environ: Mapping[str, str], name: str, faults: list[str], default: int) -> int: ...


def _read_count(
    environ: Mapping[str, str], name: str, faults: list[str], default: int | None = None
) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0):
        faults.append(f"{name} {text!r} is not a whole number above 0")
        return default
    return int(text)
