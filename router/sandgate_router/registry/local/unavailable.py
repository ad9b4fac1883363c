"""The error that says why sandboxes cannot be isolated here, and what would help.

bubblewrap's own words come first; the kernel settings that are known to forbid it are read
and named, because its message seldom says which one it was.
"""

from collections.abc import Mapping
from pathlib import Path

INSTALL = "install it with `sudo apt-get install bubblewrap`"
WAY_ROUND = "To run sandboxes without isolation, for code that you trust, pass --isolation none."

FORBIDDING_SETTINGS: Mapping[str, str] = {
    "kernel.unprivileged_userns_clone": "0",
    "user.max_user_namespaces": "0",
    "kernel.apparmor_restrict_unprivileged_userns": "1",
}
"""Kernel settings and the value with which they forbid user namespaces (Debian's own patch,
every kernel, Ubuntu 23.10 and later)."""


class IsolationUnavailable(Exception):
    """Sandboxes cannot be isolated on this machine; the message says what would help."""


def explain(words: str, *, settings: Mapping[str, str]) -> str:
    """Return the message for what bubblewrap said, given the kernel settings as they are."""
    if "Unknown option" in words:
        hint = f"This bubblewrap is older than 0.8, {INSTALL} or a newer release."
    elif forbidding := [
        f"{name}={value}"
        for name, value in FORBIDDING_SETTINGS.items()
        if settings.get(name) == value
    ]:
        hint = f"The kernel setting {' and '.join(forbidding)} forbids it; change it with sysctl."
    else:
        hint = "In a container, the container itself must allow user namespaces and mounting /proc."
    return (
        f"Sandboxes cannot be isolated: {words.strip() or 'bubblewrap failed'}. {hint} {WAY_ROUND}"
    )


def read_settings() -> dict[str, str]:
    """Return the kernel settings that may forbid isolation, as they are now."""
    found = {}
    for name in FORBIDDING_SETTINGS:
        try:
            found[name] = Path("/proc/sys", *name.split(".")).read_text().strip()
        except OSError:
            continue
    return found
