"""Did the kernel kill something here because memory ran out?

The kernel sends SIGKILL and tells nobody why; but it counts such kills for each memory control
group. A count that has risen while a command ran is the evidence. Where the group cannot be
seen, as under bubblewrap, there is none, and nothing is claimed.
"""

import os
import re

_ROOT = "/sys/fs/cgroup"
_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


class OomEvidence:
    """Compares the kernel's count now with the one that was last seen."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._seen = self._read()

    def claim(self) -> bool:
        """Say whether there has been a kill that nobody has claimed yet, and claim it."""
        if self._read() <= self._seen:
            return False
        self._seen += 1
        return True

    def _read(self) -> int:
        if self._path is None:
            return 0
        try:
            with open(self._path, "rb") as file:
                found = _COUNT.search(file.read())
        except OSError:
            return 0
        return int(found[1]) if found else 0


def find_count(membership: str | None = None) -> str | None:
    """Return the file that has the count of our own control group; None where there is none.

    `membership` is the content of /proc/self/cgroup (cgroups(7)).
    """
    if membership is None:
        try:
            with open("/proc/self/cgroup") as file:
                membership = file.read()
        except OSError:
            return None
    for line in membership.splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            candidates = [f"{_ROOT}{group}/memory.events", f"{_ROOT}/memory.events"]
        elif "memory" in controllers.split(","):
            # A container sees its own group at the root, but is told of it by the host's name.
            candidates = [
                f"{_ROOT}/memory{group}/memory.oom_control",
                f"{_ROOT}/memory/memory.oom_control",
            ]
        else:
            continue
        for path in candidates:
            if os.access(path, os.R_OK):
                return path
    return None
