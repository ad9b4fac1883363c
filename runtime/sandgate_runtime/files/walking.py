"""Walk a tree in order, from any point on, in constant memory and with no link followed.

The order is that of the names in each directory, and what is in a directory follows it. A page
of a listing is a walk that stops; the next one goes on behind the last name, so nothing is kept
between requests, and what is created or removed meanwhile disturbs no other entry.

A directory of a million names is read once for every 4,096 of them, and never held whole. No
descriptor stays open from one step to the next: the depth of a tree costs none.
"""

import contextlib
import heapq
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sandgate_runtime.files.opening import descend, list_below
from sandgate_runtime.paths import MAX_PATH_BYTES

Parts = tuple[str, ...]
"""Names below the start of a walk."""

NAMES_AT_ONCE = 4096
"""Held of one directory: less than a megabyte."""

STATUSES_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Found:
    """One name in a tree."""

    parts: Parts
    status: os.stat_result
    """Of the name itself: a link is a link."""

    @property
    def name(self) -> str:
        """The path from the start of the walk."""
        return "/".join(self.parts)


class Budget:
    """How much one request may look at before it has to answer with what it has.

    So a request for a needle in a huge tree comes back in time with a cursor, and holds its
    worker thread no longer than others wait for one.
    """

    def __init__(
        self, *, names: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._names = names
        self._clock = clock
        self._deadline = clock() + seconds

    @property
    def spent(self) -> bool:
        """Whether it is time to answer."""
        return self._names <= 0 or self._clock() >= self._deadline

    def take(self, names: int = 1) -> None:
        """Count what was looked at."""
        self._names -= names


def walk(
    start: int, *, after: Parts = (), max_depth: int | None = None, nameable: bool = False
) -> Iterator[Found]:
    """Yield what lies behind `after` in the tree of an open directory.

    What cannot be read, or is gone when its turn comes, is passed over. With `nameable` it is not
    gone deeper than a path can be long: nobody could ask for what is there.
    """
    levels: list[tuple[Parts, Iterator[Found]]] = [
        (after[:depth], _entries(start, after[:depth], behind=name))
        for depth, name in enumerate(after)
    ]
    if max_depth is None or len(after) < max_depth:
        levels.append((after, _entries(start, after)))
    while levels:
        found = next(levels[-1][1], None)
        if found is None:
            levels.pop()
            continue
        yield found
        if nameable and len(os.fsencode(found.name)) > MAX_PATH_BYTES:
            continue
        if stat.S_ISDIR(found.status.st_mode) and len(found.parts) != max_depth:
            levels.append((found.parts, _entries(start, found.parts)))


def _entries(start: int, folder: Parts, *, behind: str | None = None) -> Iterator[Found]:
    while True:
        names = _names(start, folder, behind)
        for first in range(0, len(names), STATUSES_AT_ONCE):
            yield from _statuses(start, folder, names[first : first + STATUSES_AT_ONCE])
        if len(names) < NAMES_AT_ONCE:
            return
        behind = names[-1]


def _names(start: int, folder: Parts, behind: str | None) -> list[str]:
    """Return the first names behind one, sorted."""
    try:
        directory = list_below(start, folder)
    except OSError:
        return []
    try:
        with os.scandir(directory) as entries:
            names = (entry.name for entry in entries)
            wanted = names if behind is None else (name for name in names if name > behind)
            return heapq.nsmallest(NAMES_AT_ONCE, wanted)
    finally:
        os.close(directory)


def _statuses(start: int, folder: Parts, names: list[str]) -> list[Found]:
    try:
        directory = descend(start, folder)
    except OSError:
        return []
    found = []
    try:
        for name in names:
            with contextlib.suppress(OSError):  # removed since
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                found.append(Found((*folder, name), status))
    finally:
        os.close(directory)
    return found
