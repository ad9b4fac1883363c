"""A process and its descendants, held by descriptors so that a recycled number is never hit.

The runtime ends its own descendants; this is for when it is hung, killed or gone.
"""

import asyncio
import contextlib
import os
import select
import signal
from pathlib import Path

_POLL_SECONDS = 0.005


class ProcessTree:
    """The processes below one, as far as they were seen; to be closed."""

    def __init__(self, *roots: int) -> None:
        self._held: dict[int, int] = {}
        for pid in roots:
            self._hold(pid)
        self.look()

    def look(self) -> None:
        """Take in the descendants that have come since."""
        todo, seen = list(self._held), set[int]()
        while todo:
            pid = todo.pop()
            if pid in seen:
                continue
            seen.add(pid)
            todo.extend(_children(pid))
        for pid in seen:
            self._hold(pid)

    def add(self, pid: int) -> None:
        """Take in a process that is no descendant any more."""
        self._hold(pid)

    def kill(self) -> None:
        """Send SIGKILL to all that still live."""
        for held in self._held.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(held, signal.SIGKILL)

    def kill_below(self, pid: int) -> bool:
        """Send SIGKILL to all but this one; tell whether there was another."""
        others = [held for number, held in self._held.items() if number != pid]
        for held in others:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(held, signal.SIGKILL)
        return bool(others)

    @property
    def alive(self) -> bool:
        """Whether one of them still runs; a zombie does not."""
        poll = select.poll()
        for held in self._held.values():
            poll.register(held, select.POLLIN)
        return len(poll.poll(0)) < len(self._held)

    async def gone(self, timeout: float) -> bool:
        """Wait until none runs; tell whether that came in time."""
        # Other processes' ends come as no signal to us, and this is no hot path.
        deadline = asyncio.get_running_loop().time() + timeout
        while self.alive:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def close(self) -> None:
        """Let go of all."""
        for held in self._held.values():
            os.close(held)
        self._held.clear()

    def _hold(self, pid: int) -> None:
        if pid not in self._held:
            with contextlib.suppress(ProcessLookupError):
                self._held[pid] = os.pidfd_open(pid)


def find_strays(*, home: str, uid: int | None) -> list[int]:
    """Return the processes started with this HOME, or, where given, run by this user.

    A child whose parents are gone is nobody's descendant; these two marks stay with it.
    """
    mark = f"HOME={home}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (uid is not None and entry.stat().st_uid == uid) or (
                mark in (entry / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return found


def count_tasks(uid: int) -> int:
    """Return how many processes and threads this user has, as RLIMIT_NPROC counts them."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                count += len(os.listdir(entry / "task"))
        except OSError:
            continue
    return count


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.extend(map(int, (task / "children").read_text().split()))
    except OSError:
        return found
    return found
