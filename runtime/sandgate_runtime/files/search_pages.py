"""Searches in pages, through one file or all files below a directory.

Links are not followed, so each file is searched once, and special files are never opened.
"""

import os
import stat
from collections.abc import Iterator
from typing import NotRequired, TypedDict

from sandgate_runtime.errors import AccessDenied
from sandgate_runtime.files.cursors import Cursor
from sandgate_runtime.files.opening import descend, open_directory, open_regular, open_regular_in
from sandgate_runtime.files.pages import MAX_NAMES, MAX_SECONDS, Query
from sandgate_runtime.files.searching import Match, Position, is_binary, search
from sandgate_runtime.files.walking import Budget, Parts, walk
from sandgate_runtime.paths import PathRules, Place

MAX_MATCHES = 1_000
"""Of one page, and the default: with their texts a megabyte of JSON."""

BYTES_PER_NAME = 1024
"""Reading this much counts like looking at one name, so a page reads 100 MB at most."""


class Matches(TypedDict):
    """One page of a search."""

    path: str
    matches: list[Match]
    next_cursor: NotRequired[str]


def search_page(place: Place, rules: PathRules, query: Query, wanted: bytes) -> Matches:
    """Return a page of the lines that have a text; raise OSError where nothing is."""
    page = _Page(query.limit, wanted)
    try:
        directory = open_directory(place)
    except NotADirectoryError:
        cursor = _search_one(place, query, page)
    else:
        try:
            cursor = _search_below(directory, query, page)
        finally:
            os.close(directory)
    answer: Matches = {"path": rules.spell(place), "matches": page.matches}
    if cursor is not None:
        answer["next_cursor"] = cursor.encode()
    return answer


class _Page:
    """Matches so far, and what may still be looked at."""

    def __init__(self, limit: int, wanted: bytes) -> None:
        self.matches: list[Match] = []
        self.budget = Budget(names=MAX_NAMES, seconds=MAX_SECONDS)
        self._limit = limit
        self._wanted = wanted

    @property
    def ended(self) -> bool:
        return self.budget.spent or len(self.matches) >= self._limit

    def search(self, descriptor: int, name: str, start: Position) -> Position | None:
        """Search a file; return where to go on in it if the page ended before the file."""
        left = self._limit - len(self.matches)
        if start == Position() and is_binary(descriptor):
            return None
        for step in search(descriptor, self._wanted, start=start, limit=left):
            self.matches += [
                {"name": name, "line": line, "text": text.decode("utf-8", "replace")}
                for line, text in step.matches
            ]
            self.budget.take(step.read // BYTES_PER_NAME)
            if self.ended:
                return step.next
        return None


def _search_one(place: Place, query: Query, page: _Page) -> Cursor | None:
    descriptor, _ = open_regular(place)
    try:
        start = query.cursor.position or Position()
        position = page.search(descriptor, place.parts[-1], start)
    finally:
        os.close(descriptor)
    return None if position is None else Cursor((), position)


def _search_below(directory: int, query: Query, page: _Page) -> Cursor | None:
    for parts, start in _candidates(directory, query):
        page.budget.take()
        position = None if start is None else _search_file(directory, parts, start, page)
        if page.ended:
            return Cursor(parts, position)
    return None


def _candidates(directory: int, query: Query) -> Iterator[tuple[Parts, Position | None]]:
    """Yield every name, and where its search starts if it is a file to be searched."""
    cursor = query.cursor
    if cursor.parts and cursor.position is not None:
        yield cursor.parts, cursor.position
    max_depth = None if query.recursive else 1
    for found in walk(directory, after=cursor.parts, max_depth=max_depth, nameable=True):
        wanted = stat.S_ISREG(found.status.st_mode) and (
            query.pattern is None or query.pattern.matches_anywhere(found.parts)
        )
        yield found.parts, Position() if wanted else None


def _search_file(directory: int, parts: Parts, start: Position, page: _Page) -> Position | None:
    try:
        parent = descend(directory, parts[:-1])
    except OSError:
        return None  # gone since it was found
    try:
        descriptor, _ = open_regular_in(parent, parts[-1], path="/".join(parts))
    except (OSError, AccessDenied):
        return None
    finally:
        os.close(parent)
    try:
        return page.search(descriptor, "/".join(parts), start)
    finally:
        os.close(descriptor)
