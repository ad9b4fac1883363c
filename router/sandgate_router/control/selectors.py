"""Label selectors: which claims a list shows, in Kubernetes' own words.

Pure. `app=web,tier!=db`, `env in (dev, test)`, `env notin (prod)`, `team`, `!legacy`: all
requirements must hold. As in Kubernetes, `!=` and `notin` hold as well where the label is
missing, and an empty selector holds for everything.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sandgate_router.control.bodies import quoted
from sandgate_router.control.labels import has_name, has_prefix, is_value
from sandgate_router.errors import InvalidRequest

MAX_REQUIREMENTS = 32
"""Requirements of one selector: each is looked at for every claim there is."""

MAX_SELECTOR = 4096
"""Characters of a selector: 128 for each requirement. Kubernetes takes what fits into a request."""

# Possessive throughout: whatever was matched is never given back, so time grows with the length
# alone. `a==` and 8,000 spaces took 0.6 s before.
_PART = re.compile(r"(?:[^,()]++|\([^()]*+\))*+")
"""Up to a comma that is in no parentheses."""

_WORD = r"[^\s,()=!<>]++"
_REQUIREMENT = re.compile(
    rf"(?P<key>{_WORD})\s*+(?P<sign>==|=|!=)\s*+(?P<value>{_WORD}|)"
    rf"|(?P<set_key>{_WORD})\s++(?P<word>in|notin)\s*+\((?P<values>[^()]*+)\)"
    rf"|(?P<not>!?)\s*+(?P<only_key>{_WORD})"
)
"""Without the white space around it."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one label must be."""

    key: str
    kind: Literal["in", "notin", "exists", "missing"]
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tell whether these labels meet it."""
        if self.kind == "exists":
            return self.key in labels
        if self.kind == "missing":
            return self.key not in labels
        return (labels.get(self.key) in self.values) == (self.kind == "in")


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether these labels are selected."""
        return all(requirement.holds(labels) for requirement in self.requirements)


def parse_selector(text: str) -> Selector:
    """Return what `label_selector` says; raise InvalidRequest with the part that is wrong."""
    if len(text) > MAX_SELECTOR:
        raise InvalidRequest(
            f"label_selector has {len(text)} characters, at most {MAX_SELECTOR} are allowed"
        )
    if not text.strip():
        return Selector()
    parts = list(_split(text))
    if len(parts) > MAX_REQUIREMENTS:
        raise InvalidRequest(
            f"label_selector has {len(parts)} requirements, at most {MAX_REQUIREMENTS} are allowed"
        )
    return Selector(tuple(_parse_requirement(part) for part in parts))


def _split(text: str) -> Iterator[str]:
    start = 0
    while True:
        match = _PART.match(text, start)
        assert match is not None  # it matches nothing, too
        yield match[0]
        if match.end() == len(text):
            return
        if text[match.end()] != ",":
            raise InvalidRequest(
                f"label_selector {quoted(text)} has a parenthesis without its pair"
            )
        start = match.end() + 1


def _parse_requirement(part: str) -> Requirement:
    match = _REQUIREMENT.fullmatch(part.strip())
    if match is None:
        raise InvalidRequest(
            f"label_selector part {quoted(part)} is none of key=value, key==value, key!=value,"
            " key in (a,b), key notin (a,b), key, !key"
        )
    key = match["key"] or match["set_key"] or match["only_key"]
    if not has_name(key) or not has_prefix(key):
        raise InvalidRequest(f"label_selector key {quoted(key)} is no label key")
    if match["only_key"]:
        return Requirement(key, "missing" if match["not"] else "exists")
    if match["key"]:
        kind: Literal["in", "notin"] = "notin" if match["sign"] == "!=" else "in"
        return Requirement(key, kind, _values(match["value"]))
    return Requirement(key, "in" if match["word"] == "in" else "notin", _values(match["values"]))


def _values(text: str) -> frozenset[str]:
    values = frozenset(value.strip() for value in text.split(","))
    for value in values:
        if not is_value(value):
            raise InvalidRequest(f"label_selector value {quoted(value)} is no label value")
    return values
