"""Patterns for paths, as `?glob=` takes them.

`*`, `?` and `[abc]` stand for characters of one name, `**` as a whole name for any number of
directories, none included. A name that starts with a dot is matched only by a name in the
pattern that does too, as in a shell. Pure, and of bounded cost: each name of a path is compared
at most once with each name of the pattern.
"""

import fnmatch
import re

from sandgate_runtime.files.refusals import InvalidParameter

MAX_PATTERN_CHARACTERS = 1024
"""A pattern is written by a person or a model. With this, matching one path takes < 1 ms."""

MAX_WILDCARDS = 32
"""In all of a pattern: more only serve to make matching slow."""


class Pattern:
    """A checked pattern."""

    def __init__(self, text: str) -> None:
        """Raise InvalidParameter for a pattern that is empty, absolute or too long."""
        names = text.split("/")
        if not text or len(text) > MAX_PATTERN_CHARACTERS or "\0" in text:
            raise InvalidParameter(f"glob must have 1 to {MAX_PATTERN_CHARACTERS} characters")
        if sum(map(text.count, "*?[")) > MAX_WILDCARDS:
            raise InvalidParameter(f"glob has more than {MAX_WILDCARDS} wildcards")
        if any(name in {"", ".", ".."} for name in names):
            raise InvalidParameter(f"glob {text!r} has an empty name, '.' or '..' in it")
        self._names = [None if name == "**" else _Name(name) for name in names]

    @property
    def max_depth(self) -> int | None:
        """Below which depth nothing can match; None if it has `**`."""
        return None if None in self._names else len(self._names)

    def matches(self, parts: tuple[str, ...]) -> bool:
        """Say whether a path matches as a whole."""
        reached = self._skip({0})
        for part in parts:
            reached = self._skip({after for at in reached for after in self._step(at, part)})
            if not reached:
                return False
        return len(self._names) in reached

    def matches_anywhere(self, parts: tuple[str, ...]) -> bool:
        """Say the same, where a pattern of one name may match the last name at any depth."""
        return self.matches(parts[-1:] if len(self._names) == 1 else parts)

    def _step(self, at: int, part: str) -> set[int]:
        if at == len(self._names):
            return set()
        name = self._names[at]
        if name is None:
            return set() if part.startswith(".") else {at}
        return {at + 1} if name.matches(part) else set()

    def _skip(self, positions: set[int]) -> set[int]:
        """Add where one gets to as `**` may stand for nothing."""
        reached = set()
        for start in positions:
            at = start
            while at < len(self._names) and self._names[at] is None:
                reached.add(at)
                at += 1
            reached.add(at)
        return reached


class _Name:
    def __init__(self, text: str) -> None:
        self._hidden = text.startswith(".")
        self._expression = re.compile(fnmatch.translate(text))

    def matches(self, name: str) -> bool:
        hidden = name.startswith(".")
        return (self._hidden or not hidden) and self._expression.match(name) is not None
