"""Which part of a file a request asks for (RFC 9110 section 14).

Pure. Only a single range is served as one; several are answered with the whole file, as the
RFC allows, so that no request can make us assemble a thousand overlapping pieces.
"""

import re

_SINGLE_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,19})-([0-9]{0,19})[ \t]*", re.IGNORECASE)


class RangeNotSatisfiable(Exception):
    """The range lies behind the end of the file: 416."""


def parse_range(value: str, size: int) -> tuple[int, int] | None:
    """Return (first, end) with `end` excluded, or None where the whole file is the answer."""
    match = _SINGLE_RANGE.fullmatch(value)
    if match is None or match.group(1, 2) == ("", ""):
        return None
    first_text, last_text = match.group(1, 2)
    if not first_text:
        suffix = int(last_text)
        if suffix == 0 or size == 0:
            raise RangeNotSatisfiable
        return max(0, size - suffix), size
    first = int(first_text)
    last = int(last_text) if last_text else size - 1
    if last_text and last < first:
        return None  # an invalid range is ignored
    if first >= size:
        raise RangeNotSatisfiable
    return first, min(last, size - 1) + 1
