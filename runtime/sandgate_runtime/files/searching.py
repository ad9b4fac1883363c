r"""Search files for a text, line by line, in bounded memory (`?grep=`).

The text is meant literally: an expression from outside could hold the interpreter's lock for
minutes. A file with a NUL byte in its first 8 KiB is taken for a binary one and passed over, as
grep and git do. A line is cut for the answer, and a longer one than a megabyte is searched in
pieces that overlap, so memory depends on no file.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

PIECE_BYTES = 1 << 20

BINARY_BYTES = 8192
"""Looked at for a NUL; git looks at 8,000."""

MAX_TEXT_BYTES = 1000
"""Of a line in an answer. Lines of generated files have megabytes, and nobody reads them."""


class Match(TypedDict):
    """One line that has the text."""

    name: str
    line: int
    """Counted from 1."""
    text: str
    """The line, or its part around the text; bytes that are not UTF-8 become U+FFFD."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a search goes on in a file: at the start of a line."""

    offset: int = 0
    line: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """What one piece of a file brought."""

    matches: tuple[tuple[int, bytes], ...]
    """Line numbers, and the lines cut to what is shown."""
    read: int
    """Bytes."""
    next: Position
    """Where the next step starts: behind the last line that was searched whole."""


def is_binary(descriptor: int) -> bool:
    """Say whether the file looks like no text."""
    return b"\0" in os.pread(descriptor, BINARY_BYTES, 0)


def search(descriptor: int, wanted: bytes, *, start: Position, limit: int) -> Iterator[Step]:
    """Search from a position on, a piece at a time, to the end or `limit` matches.

    Each step is complete, so a search may be left after any and taken up again at its `next`.
    """
    position = start
    reported = 0
    while limit > 0:
        piece = os.pread(descriptor, PIECE_BYTES, position.offset)
        if not piece:
            return
        at_end = len(piece) < PIECE_BYTES
        whole = piece if at_end else piece[: piece.rfind(b"\n") + 1]
        if whole:
            found, position = _search_lines(whole, wanted, position, limit=limit)
        else:
            found, position = _search_long(piece, wanted, position)
        found = [match for match in found if match[0] != reported]
        if found:
            reported = found[-1][0]
        limit -= len(found)
        yield Step(tuple(found), len(piece), position)


def _search_lines(
    lines: bytes, wanted: bytes, start: Position, *, limit: int
) -> tuple[list[tuple[int, bytes]], Position]:
    found: list[tuple[int, bytes]] = []
    number, at = start.line, 0
    while len(found) < limit and (hit := lines.find(wanted, at)) >= 0:
        number += lines.count(b"\n", at, hit)
        begin = lines.rfind(b"\n", 0, hit) + 1
        end = lines.find(b"\n", hit)
        end = len(lines) if end < 0 else end
        found.append((number, _cut(lines[begin:end], hit - begin, len(wanted))))
        at = end
    if len(found) == limit:
        # Behind the line of the last match: the next one is for another answer.
        at = min(at + 1, len(lines))
        return found, Position(start.offset + at, number + 1)
    number += lines.count(b"\n", at)
    return found, Position(start.offset + len(lines), number)


def _search_long(
    piece: bytes, wanted: bytes, start: Position
) -> tuple[list[tuple[int, bytes]], Position]:
    """Search a piece out of the middle of one line."""
    hit = piece.find(wanted)
    found = [(start.line, _cut(piece, hit, len(wanted)))] if hit >= 0 else []
    return found, Position(start.offset + len(piece) - len(wanted) + 1, start.line)


def _cut(line: bytes, hit: int, length: int) -> bytes:
    line = line.removesuffix(b"\r")
    if len(line) <= MAX_TEXT_BYTES:
        return line
    begin = max(0, min(hit - (MAX_TEXT_BYTES - length) // 2, len(line) - MAX_TEXT_BYTES))
    return line[begin : begin + MAX_TEXT_BYTES]
