"""Lists in pages: what is listed, in which order, and where the next page begins.

Pure. Claims are listed by the time they were made, then by name. A cursor names the claim that
was listed last by these, and not its place in the list, so claims that come and go meanwhile
neither repeat others nor hide them.
"""

import base64
import binascii
import heapq
import json
from collections.abc import Iterable
from datetime import UTC, datetime

from sandgate_router.control.bodies import quoted
from sandgate_router.errors import InvalidRequest
from sandgate_router.registry.base import Claim

DEFAULT_LIMIT = 100
"""Claims in one list, unless the caller says otherwise."""

MAX_LIMIT = 1000
"""Claims in one list at most: 300 KiB of JSON, written in 9 ms."""

Position = tuple[datetime, str, str]
"""When a claim was made, its namespace and its name."""


def take_page(
    claims: Iterable[Claim], *, after: Position | None, limit: int
) -> tuple[list[Claim], str | None]:
    """Return the first `limit` claims behind `after`, and the cursor if there are more."""
    rest = (claim for claim in claims if after is None or position_of(claim) > after)
    page = heapq.nsmallest(limit + 1, rest, key=position_of)
    if len(page) <= limit:
        return page, None
    return page[:limit], build_cursor(position_of(page[limit - 1]))


def position_of(claim: Claim) -> Position:
    """Return where a claim stands among all others."""
    return claim.created_at, claim.namespace, claim.name


def build_cursor(position: Position) -> str:
    """Return the text that `parse_cursor` reads."""
    created_at, namespace, name = position
    text = json.dumps([created_at.astimezone(UTC).isoformat(), namespace, name])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def parse_cursor(text: str) -> Position | None:
    """Return the position that a cursor names, None for an empty one: the start.

    Raises:
        InvalidRequest: it is none of ours.
    """
    if not text:
        return None
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        members = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        created_at, namespace, name = members
        position = (datetime.fromisoformat(created_at), namespace, name)
    except (ValueError, TypeError, RecursionError, binascii.Error) as error:
        raise _no_cursor(text) from error
    whole = all(isinstance(part, str) for part in members) and position[0].tzinfo is not None
    if not whole or not _is_ours(position, text):
        raise _no_cursor(text)
    return position


def _is_ours(position: Position, text: str) -> bool:
    try:
        return build_cursor(position) == text
    except OverflowError:  # a time that in UTC would lie before the year 1 or after 9999
        return False


def parse_limit(text: str | None) -> int:
    """Return how many claims to list; raise InvalidRequest."""
    if text is None:
        return DEFAULT_LIMIT
    plain = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LIMIT))
    if not plain or not 1 <= int(text) <= MAX_LIMIT:
        raise InvalidRequest(f"limit {quoted(text)} is not a number from 1 to {MAX_LIMIT}")
    return int(text)


def _no_cursor(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"cursor {quoted(text)} is no cursor; give the next_cursor of the list before, as it is"
    )
