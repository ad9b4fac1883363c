"""Validators of a file and the conditions on them (RFC 9110 sections 8.8 and 13).

Pure. The entity tag is made of the inode, its size and the time of its last change (ctime),
which no program can set back: an edit that keeps size and modification time changes it too. So
does chmod, which costs a needless transfer and nothing else.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime

from sandgate_runtime.files.refusals import InvalidParameter, PreconditionFailed

_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*+"'
_TAGS = re.compile(rf"[ \t,]*+{_TAG}(?:[ \t]*+,[ \t,]*+(?:{_TAG})?+)*+[ \t]*+")
_EACH_TAG = re.compile(_TAG)


def build_etag(found: os.stat_result) -> str:
    """Return the strong entity tag of a file."""
    return f'"{found.st_ctime_ns:x}-{found.st_ino:x}-{found.st_size:x}"'


def build_last_modified(found: os.stat_result) -> str:
    """Return the time of the last modification as HTTP writes it."""
    return formatdate(found.st_mtime, usegmt=True)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a request says must hold of the file, or must not."""

    match: tuple[str, ...] | None = None
    """Tags of If-Match; `*` alone for any file; None where it was not sent."""
    none_match: tuple[str, ...] | None = None
    unmodified_since: int | None = None
    """Seconds since 1970."""
    modified_since: int | None = None

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> "Conditions":
        """Read the fields; raise InvalidParameter. A malformed date is ignored, as it must be."""
        return cls(
            match=_parse_tags(fields.get("if-match"), "If-Match"),
            none_match=_parse_tags(fields.get("if-none-match"), "If-None-Match"),
            unmodified_since=_parse_date(fields.get("if-unmodified-since")),
            modified_since=_parse_date(fields.get("if-modified-since")),
        )

    @property
    def only_if_absent(self) -> bool:
        """Whether nothing may be there."""
        return self.none_match == ("*",)

    def check(self, found: os.stat_result | None, *, path: str) -> None:
        """Raise PreconditionFailed unless a change may be made to what was found."""
        if not self.allow_reading(found):
            raise PreconditionFailed(f"{path!r} is not what the request says it is", path=path)
        if self.none_match is not None and _matches(self.none_match, found, weak=True):
            raise PreconditionFailed(f"{path!r} is there already", path=path)

    def allow_reading(self, found: os.stat_result | None) -> bool:
        """Say whether If-Match, or else If-Unmodified-Since, holds."""
        if self.match is not None:
            return _matches(self.match, found, weak=False)
        if self.unmodified_since is not None:
            return found is not None and int(found.st_mtime) <= self.unmodified_since
        return True

    def is_known(self, found: os.stat_result) -> bool:
        """Say whether the reader has this content already: 304."""
        if self.none_match is not None:
            return _matches(self.none_match, found, weak=True)
        return self.modified_since is not None and int(found.st_mtime) <= self.modified_since


def _matches(tags: tuple[str, ...], found: os.stat_result | None, *, weak: bool) -> bool:
    if found is None:
        return False
    if tags == ("*",):
        return True
    return build_etag(found) in ([tag.removeprefix("W/") for tag in tags] if weak else tags)


def _parse_tags(value: str | None, field: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if value.strip() == "*":
        return ("*",)
    if not _TAGS.fullmatch(value):
        raise InvalidParameter(f"{field} {value!r} is neither * nor a list of entity tags")
    return tuple(_EACH_TAG.findall(value))


def _parse_date(value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return int(parsedate_to_datetime(value).timestamp())
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
