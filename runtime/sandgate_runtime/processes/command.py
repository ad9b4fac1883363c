"""What is to be run, and the environment it runs in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandgate_runtime.config import PRIVATE_NAMES, PRIVATE_PREFIX

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_ABOUT_ANOTHER_PROCESS = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
"""What the shell that started the runtime said about itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command with every question about it answered."""

    argv: tuple[str, ...]
    cwd: str
    """Absolute path of the working directory."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables on top of the base environment, which they override."""
    timeout: float | None = None
    """Seconds until it is ended; None to let it run."""
    grace: float = 0.0
    """Seconds between SIGTERM and SIGKILL at the timeout; 0 kills at once."""


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
