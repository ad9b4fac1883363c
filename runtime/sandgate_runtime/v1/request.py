"""Read the body of `POST /v1/processes` into a command, or refuse it before anything starts."""

import math
import os
import re
from collections.abc import Mapping
from typing import cast

from sandgate_runtime.errors import BadWorkingDirectory, InvalidRequest, Refusal
from sandgate_runtime.paths import PathRules
from sandgate_runtime.processes.command import Command
from sandgate_runtime.processes.scripts import find_long_script

MEMBERS = frozenset({"argv", "shell", "cwd", "env", "timeout"})

SHELL = "/bin/sh"

GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL at the timeout: enough to remove a lock file, not to hang about."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_command(body: object, rules: PathRules) -> Command:
    """Return the command that a body asks for; raise InvalidRequest, naming the member."""
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    unknown = sorted(body.keys() - MEMBERS)
    if unknown:
        raise InvalidRequest(f"unknown members: {', '.join(map(repr, unknown))}")
    members = cast("dict[str, object]", body)
    argv = _read_argv(members)
    env = _read_env(members.get("env"))
    find_long_script(argv)
    return Command(
        argv=argv,
        cwd=_read_cwd(members.get("cwd"), rules),
        env=env,
        timeout=_read_timeout(members.get("timeout")),
        grace=GRACE_SECONDS,
    )


def _read_argv(members: Mapping[str, object]) -> tuple[str, ...]:
    argv, shell = members.get("argv"), members.get("shell")
    if (argv is None) == (shell is None):
        raise InvalidRequest("exactly one of 'argv' and 'shell' must be given")
    if shell is not None:
        return SHELL, "-c", _check_text(shell, "shell")
    if not isinstance(argv, list) or not argv:
        raise InvalidRequest("'argv' is not a list of at least one string")
    return tuple(_check_text(word, f"argv[{index}]") for index, word in enumerate(argv))


def _read_env(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest("'env' is not an object")
    for name in value:
        if not _ENV_NAME.fullmatch(name):
            raise InvalidRequest(f"'env' has {name!r}, which is no name of a variable")
    return {name: _check_text(text, f"env.{name}") for name, text in value.items()}


def _read_timeout(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequest("'timeout' is not a number of seconds")
    if not 0 < value < math.inf:
        raise InvalidRequest("'timeout' is not a finite number of seconds above 0")
    return float(min(value, 1e9))


def _read_cwd(value: object, rules: PathRules) -> str:
    if value is None:
        return rules.base
    text = _check_text(value, "cwd")
    try:
        path = rules.resolve(text).path
    except Refusal as error:
        raise BadWorkingDirectory(f"'cwd' {text!r}: {error.message}", path=text) from error
    if not os.path.isdir(path) or not os.access(path, os.X_OK):
        raise BadWorkingDirectory(f"'cwd' {text!r} is not a directory to enter", path=text)
    return path


def _check_text(value: object, member: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"'{member}' is not a string")
    if "\0" in value:
        raise InvalidRequest(f"'{member}' has a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"'{member}' has a lone surrogate") from error
    return value
