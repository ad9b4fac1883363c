"""What is to be run, and the environment it runs in."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sandgate_runtime.config import PRIVATE_NAMES, PRIVATE_PREFIX

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SHELL = "/bin/sh"

Entry = Literal["execute", "processes", "terminal"]
"""Where a command was asked for."""

_ABOUT_ANOTHER_PROCESS = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
"""What the shell that started the runtime said about itself."""


class TerminalSize(NamedTuple):
    """Characters of a terminal."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True)
class Input:
    """What a command reads from its standard input."""

    content: bytes = b""
    """Written at once."""
    more: bool = False
    """Whether more may follow; else the end of file comes after the content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command with every question about it answered."""

    argv: tuple[str, ...]
    cwd: str
    """Absolute path of the working directory."""
    entry: Entry
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables on top of the base environment, which they override."""
    stdin: Input | None = None
    """None for no input at all: /dev/null."""
    terminal: TerminalSize | None = None
    """The size of the terminal that it runs in; None for pipes."""
    timeout: float | None = None
    """Seconds until it is ended; None to let it run."""
    grace: float = 0.0
    """Seconds between SIGTERM and SIGKILL at the timeout; 0 kills at once."""
    output_limit: int | None = None
    """Bytes of output after which it is killed; None for no limit."""


def build_base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every command gets: the runtime's own, less what is private."""
    base = {
        name: value
        for name, value in environ.items()
        if not name.startswith(PRIVATE_PREFIX)
        and name not in PRIVATE_NAMES
        and name not in _ABOUT_ANOTHER_PROCESS
    }
    base.setdefault("PATH", DEFAULT_PATH)
    return base


def digest_argv(argv: tuple[str, ...]) -> str:
    """Return the SHA-256 of the arguments, each ended by NUL, as /proc/<pid>/cmdline has them."""
    digest = hashlib.sha256()
    for word in argv:
        digest.update(os.fsencode(word))
        digest.update(b"\0")
    return digest.hexdigest()
