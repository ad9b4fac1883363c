"""Read the members of a request that say what is to be run; both entries spell them alike.

Everything is checked here, before anything starts. A refusal names the member.
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from typing import cast

from sandgate_runtime.errors import BadWorkingDirectory, InvalidRequest, Refusal
from sandgate_runtime.paths import PathRules
from sandgate_runtime.processes.command import TerminalSize

MAX_CHARACTERS = 65_535
"""Columns or rows of a terminal (struct winsize)."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_members(body: object, known: frozenset[str]) -> Mapping[str, object]:
    """Return the members of a JSON object that has no others than these."""
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    unknown = sorted(body.keys() - known)
    if unknown:
        raise InvalidRequest(f"unknown members: {', '.join(map(repr, unknown))}")
    return cast("dict[str, object]", body)


def read_text(value: object, member: str) -> str:
    """Return a string that can be passed to a program."""
    if not isinstance(value, str):
        raise InvalidRequest(f"'{member}' is not a string")
    if "\0" in value:
        raise InvalidRequest(f"'{member}' has a NUL character")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"'{member}' has a lone surrogate") from error
    return value


def read_env(value: object) -> dict[str, str]:
    """Return the variables of `env`."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest("'env' is not an object")
    for name in value:
        if not _ENV_NAME.fullmatch(name):
            raise InvalidRequest(f"'env' has {name!r}, which is no name of a variable")
    return {name: read_text(text, f"env.{name}") for name, text in value.items()}


def read_cwd(value: object, rules: PathRules) -> str:
    """Return the working directory; raise BadWorkingDirectory."""
    if value is None:
        return rules.base
    text = read_text(value, "cwd")
    try:
        path = rules.resolve(text).path
    except Refusal as error:
        raise BadWorkingDirectory(f"'cwd' {text!r}: {error.message}", path=text) from error
    if not os.path.isdir(path) or not os.access(path, os.X_OK):
        raise BadWorkingDirectory(f"'cwd' {text!r} is not a directory to enter", path=text)
    return path


def read_size(value: object, member: str) -> TerminalSize:
    """Return the size of a terminal from `{cols, rows}`."""
    if not isinstance(value, dict) or value.keys() != {"cols", "rows"}:
        raise InvalidRequest(f"'{member}' is not an object of 'cols' and 'rows'")
    for name, count in value.items():
        if not (is_integer(count) and 0 < count <= MAX_CHARACTERS):
            raise InvalidRequest(f"'{name}' is not a whole number from 1 to {MAX_CHARACTERS}")
    return TerminalSize(value["cols"], value["rows"])


def read_content(members: Mapping[str, object], prefix: str = "") -> bytes:
    """Return the bytes of `text` or `base64`, of which one at most may be there."""
    text, encoded = members.get("text"), members.get("base64")
    if text is not None and encoded is not None:
        raise InvalidRequest(f"only one of '{prefix}text' and '{prefix}base64' may be given")
    if text is None:
        return b"" if encoded is None else read_base64(encoded, f"{prefix}base64")
    if not isinstance(text, str):
        raise InvalidRequest(f"'{prefix}text' is not a string")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"'{prefix}text' has a lone surrogate") from error


def read_base64(value: object, member: str) -> bytes:
    """Return the bytes of a base64 text."""
    if not isinstance(value, str):
        raise InvalidRequest(f"'{member}' is not a string")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"'{member}' is not base64: {error}") from error


def read_switch(value: object, member: str) -> bool:
    """Return true or false; null is false."""
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"'{member}' is neither true nor false")
    return bool(value)


def is_integer(value: object) -> bool:
    """Say whether it is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)
