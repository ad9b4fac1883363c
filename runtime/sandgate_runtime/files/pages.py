"""Directories in pages: each answer is bounded in size and in the work behind it.

A page may have fewer entries than were asked for, or none, and still a cursor: then the request
had looked at as much as one request may.
"""

import os
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from sandgate_runtime.files.cursors import Cursor
from sandgate_runtime.files.entries import Entry, describe
from sandgate_runtime.files.opening import open_directory
from sandgate_runtime.files.patterns import Pattern
from sandgate_runtime.files.walking import Budget, walk
from sandgate_runtime.paths import PathRules, Place

MAX_ENTRIES = 10_000
"""Of one page, and the default: 1.5 MB of JSON, so that plain clients see most folders whole."""

MAX_NAMES = 100_000
"""Looked at for one page: half a second on a quick disk."""

CHARACTERS_PER_NAME = 64
"""Longer paths count as several names, so a page has 6.4 million characters of them at most."""

MAX_SECONDS = 2.0
"""For one page, on a slow disk: others wait for the same few worker threads."""

START = Cursor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What of a directory is asked for."""

    recursive: bool = False
    pattern: Pattern | None = None
    limit: int = MAX_ENTRIES
    cursor: Cursor = START

    @property
    def max_depth(self) -> int | None:
        """How deep a listing goes; None for all the way."""
        if self.pattern is not None:
            return self.pattern.max_depth
        return None if self.recursive else 1


class Listing(TypedDict):
    """One page of a directory."""

    path: str
    entries: list[Entry]
    next_cursor: NotRequired[str]


def list_page(place: Place, rules: PathRules, query: Query) -> Listing:
    """Return a page of a directory; raise OSError where there is none."""
    page: Listing = {"path": rules.spell(place), "entries": []}
    budget = Budget(names=MAX_NAMES, seconds=MAX_SECONDS)
    last = query.cursor.parts
    directory = open_directory(place)
    try:
        for found in walk(directory, after=last, max_depth=query.max_depth, nameable=True):
            # However slow the disk is, each page gets on by one name.
            stuck = last == query.cursor.parts
            if len(page["entries"]) == query.limit or (budget.spent and not stuck):
                page["next_cursor"] = Cursor(last).encode()
                break
            last = found.parts
            budget.take(1 + len(found.name) // CHARACTERS_PER_NAME)
            if query.pattern is None or query.pattern.matches(found.parts):
                entry = describe(found, page["path"], rules)
                page["entries"] += [] if entry is None else [entry]
    finally:
        os.close(directory)
    return page
