"""Read the body of `POST /v1/processes` into a command, or refuse it before anything starts."""

import math
from collections.abc import Mapping
from typing import cast

from sandgate_runtime.errors import InvalidRequest
from sandgate_runtime.paths import PathRules
from sandgate_runtime.processes.command import SHELL, Command, Input, TerminalSize
from sandgate_runtime.processes.members import (
    is_integer,
    parse_members,
    read_content,
    read_cwd,
    read_env,
    read_size,
    read_switch,
    read_text,
)
from sandgate_runtime.processes.runs import GRACE_SECONDS, Wanted
from sandgate_runtime.processes.scripts import find_long_script

MEMBERS = frozenset(
    {
        "argv",
        "cwd",
        "detach",
        "env",
        "linger_seconds",
        "output_limit_bytes",
        "pty",
        "shell",
        "stdin",
        "timeout",
    }
)

MAX_LINGER_SECONDS = 300.0
"""A client that has not come back by then does not; what shall run on says `detach`."""


def parse_wanted(body: object, rules: PathRules, *, output_limit: int | None = None) -> Wanted:
    """Return what a body asks for; raise InvalidRequest, naming the member.

    `output_limit` holds where the body names none.
    """
    members = parse_members(body, MEMBERS)
    argv = _read_argv(members)
    env = read_env(members.get("env"))
    find_long_script(argv)
    terminal = None if members.get("pty") is None else read_size(members["pty"], "pty")
    command = Command(
        argv=argv,
        cwd=read_cwd(members.get("cwd"), rules),
        entry="processes" if terminal is None else "terminal",
        env=env,
        stdin=_read_stdin(members.get("stdin"), terminal=terminal),
        terminal=terminal,
        timeout=_read_timeout(members.get("timeout")),
        grace=GRACE_SECONDS,
        output_limit=_read_output_limit(members.get("output_limit_bytes")) or output_limit,
    )
    return Wanted(
        command=command,
        detach=read_switch(members.get("detach"), "detach"),
        linger=_read_linger(members.get("linger_seconds")),
    )


def _read_argv(members: Mapping[str, object]) -> tuple[str, ...]:
    argv, shell = members.get("argv"), members.get("shell")
    if (argv is None) == (shell is None):
        raise InvalidRequest("exactly one of 'argv' and 'shell' must be given")
    if isinstance(shell, dict):
        if shell.keys() != {"program", "script"}:
            raise InvalidRequest("'shell' is not an object of 'program' and 'script'")
        program = read_text(shell["program"], "shell.program")
        return program, "-c", read_text(shell["script"], "shell.script")
    if shell is not None:
        return SHELL, "-c", read_text(shell, "shell")
    if not isinstance(argv, list) or not argv:
        raise InvalidRequest("'argv' is not a list of at least one string")
    return tuple(read_text(word, f"argv[{index}]") for index, word in enumerate(argv))


def _read_stdin(value: object, *, terminal: TerminalSize | None) -> Input | None:
    """Read a text, or an object of `text` or `base64`, and `open`."""
    if value is None:
        # Whoever wants a terminal wants to type into it.
        return None if terminal is None else Input(more=True)
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict) or not value or value.keys() - {"text", "base64", "open"}:
        raise InvalidRequest("'stdin' is no string and no object of 'text', 'base64' or 'open'")
    more = read_switch(value.get("open", terminal is not None), "stdin.open")
    return Input(content=read_content(value, "stdin."), more=more)


def _read_timeout(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest("'timeout' is not a number of seconds")
    if not 0 < value < math.inf:
        raise InvalidRequest("'timeout' is not a finite number of seconds above 0")
    return float(min(value, 1e9))


def _read_linger(value: object) -> float:
    if value is None:
        return 0.0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= cast("float", value) <= MAX_LINGER_SECONDS:
        raise InvalidRequest(
            f"'linger_seconds' is not a number from 0 to {MAX_LINGER_SECONDS:g}; "
            "a process that shall run on without watchers says 'detach'"
        )
    return float(cast("float", value))


def _read_output_limit(value: object) -> int | None:
    if value is None:
        return None
    if not is_integer(value) or cast("int", value) <= 0:
        raise InvalidRequest("'output_limit_bytes' is not a whole number above 0")
    return cast("int", value)
