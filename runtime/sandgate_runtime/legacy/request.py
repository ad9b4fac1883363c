"""Read the body of `POST /execute`.

As the upstream project has it: one command line, split into words, no shell. Four members ask for
more, and one of them is enough to get the exit codes of today (see `commands`). Members that we
do not know are ignored, as they always were.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from sandgate_runtime.errors import InvalidRequest
from sandgate_runtime.paths import PathRules
from sandgate_runtime.processes.command import SHELL, Command, Input
from sandgate_runtime.processes.members import read_base64, read_cwd, read_env, read_switch
from sandgate_runtime.words import split_words

ASKS_FOR_MORE = ("shell", "cwd", "env", "stdin_b64")

INLINE_CHARACTERS = 64 * 1024
"""Longer command lines are split in a thread: 2 MB of alternating quotes take a second."""

_T = TypeVar("_T")


class InvalidBody(Exception):
    """The body is refused with 422 in the form that the upstream runtime's framework gives it."""

    def __init__(self, kind: str, location: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.detail = [{"type": kind, "loc": ["body", *location], "msg": message}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a body asks for, but for the words of the command line."""

    text: str
    shell: bool
    cwd: str
    env: Mapping[str, str]
    stdin: Input | None
    timeout: float
    more: bool
    """Whether a member was there that the upstream project does not know."""


def parse_asked(body: object, rules: PathRules, *, timeout: float) -> Asked:
    """Return what a body asks for, `timeout` being the most; raise InvalidBody."""
    if not isinstance(body, dict):
        raise InvalidBody("model_attributes_type", (), "Input should be a valid dictionary")
    members = cast("dict[str, object]", body)
    if "command" not in members:
        raise InvalidBody("missing", ("command",), "Field required")
    command = members["command"]
    if not isinstance(command, str):
        raise InvalidBody("string_type", ("command",), "Input should be a valid string")
    asked = _read_timeout(members.get("timeout_seconds"))
    return Asked(
        text=command,
        shell=_read(members, "shell", lambda value: read_switch(value, "shell")),
        cwd=_read(members, "cwd", lambda value: read_cwd(value, rules)),
        env=_read(members, "env", read_env),
        stdin=_read(members, "stdin_b64", _read_stdin),
        timeout=timeout if asked is None else min(asked, timeout),
        more=any(members.get(name) is not None for name in ASKS_FOR_MORE),
    )


async def build_command(asked: Asked) -> Command | None:
    """Return the command, None for no words; raise ValueError for an open quote."""
    argv = (SHELL, "-c", asked.text) if asked.shell else tuple(await _split(asked.text))
    if not argv:
        return None
    return Command(
        argv=argv,
        cwd=asked.cwd,
        entry="execute",
        env=asked.env,
        stdin=asked.stdin,
        timeout=asked.timeout,
    )


def _read(members: Mapping[str, object], name: str, read: Callable[[object], _T]) -> _T:
    try:
        return read(members.get(name))
    except InvalidRequest as error:
        raise InvalidBody("value_error", (name,), error.message) from error


def _read_stdin(value: object) -> Input | None:
    return None if value is None else Input(read_base64(value, "stdin_b64"))


def _read_timeout(seconds: object) -> float | None:
    if seconds is None:
        return None
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (number and 0 < cast("float", seconds) < math.inf):
        text = "Input should be a finite number of seconds above 0"
        raise InvalidBody("finite_number", ("timeout_seconds",), text)
    return float(min(cast("float", seconds), 1e9))


async def _split(text: str) -> list[str]:
    if len(text) <= INLINE_CHARACTERS:
        return split_words(text)
    return await asyncio.to_thread(split_words, text)
