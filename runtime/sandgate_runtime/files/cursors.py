"""Where a page of a listing or a search starts, as clients hand it back.

Opaque to them, and nothing is kept here in between: it says behind which name to go on. It is
the name itself, in base64 since a name may be any bytes: a path of 4,095 makes 5,460 characters,
and a gateway takes request lines of 8 KiB.
"""

import base64
import binascii
import os
import re
from dataclasses import dataclass

from sandgate_runtime.files.refusals import InvalidParameter
from sandgate_runtime.files.searching import Position
from sandgate_runtime.files.walking import Parts
from sandgate_runtime.paths import MAX_NAME_BYTES, MAX_PATH_BYTES

_SPELLING = re.compile(rb"([^\0]*+)(?:\0([0-9]{1,18})\0([0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Behind what a page starts; the empty one is before everything."""

    parts: Parts = ()
    position: Position | None = None
    """Where a search goes on within the file `parts`; None if it is done with."""

    def encode(self) -> str:
        """Return it as clients see it, safe in a query."""
        content = os.fsencode("/".join(self.parts))
        if self.position is not None:
            content += b"\0%d\0%d" % (self.position.offset, self.position.line)
        return base64.urlsafe_b64encode(content).decode().rstrip("=")


def parse_cursor(text: str) -> Cursor:
    """Read it back; raise InvalidParameter for what no answer has given."""
    try:
        padded = text + "=" * (-len(text) % 4)
        content = base64.b64decode(padded, altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidParameter("cursor is none that an answer has given") from error
    match = _SPELLING.fullmatch(content)
    if match is None or len(match[1]) > MAX_PATH_BYTES + MAX_NAME_BYTES:
        raise InvalidParameter("cursor is none that an answer has given")
    parts = tuple(os.fsdecode(match[1]).split("/")) if match[1] else ()
    if any(part in {"", ".", ".."} for part in parts):
        raise InvalidParameter("cursor is none that an answer has given")
    return Cursor(parts, Position(int(match[2]), int(match[3])) if match[2] else None)
