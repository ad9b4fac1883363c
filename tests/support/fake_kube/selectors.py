"""Label and field selectors, as lists and watches take them."""

import re
from collections.abc import Callable
from typing import Any

from support.fake_kube.errors import bad_request

Matches = Callable[[dict[str, Any]], bool]

_SET = re.compile(r"(?P<key>\S+)\s+(?P<op>in|notin)\s+\((?P<values>[^)]*)\)")


def parse_selectors(labels: str, fields: str) -> Matches:
    """Return what tells whether an object is selected."""
    tests = [_parse_label(part) for part in _split(labels)]
    tests += [_parse_field(part) for part in fields.split(",") if part]
    return lambda item: all(test(item) for test in tests)


def _split(text: str) -> list[str]:
    parts = re.split(r",(?![^(]*\))", text)
    return [part.strip() for part in parts if part.strip()]


def _labels(item: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = item["metadata"].get("labels") or {}
    return labels


def _parse_label(part: str) -> Matches:
    if (match := _SET.fullmatch(part)) is not None:
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda item: _labels(item).get(key) in values
        return lambda item: _labels(item).get(key) not in values
    if "!=" in part:
        key, value = part.split("!=", 1)
        return lambda item: _labels(item).get(key) != value
    if "=" in part:
        key, value = re.split("==?", part, maxsplit=1)
        return lambda item: _labels(item).get(key) == value
    if part.startswith("!"):
        return lambda item: part[1:] not in _labels(item)
    if " " in part:
        raise bad_request(f"unable to parse requirement: {part}")
    return lambda item: part in _labels(item)


def _parse_field(part: str) -> Matches:
    negated = "!=" in part
    path, value = re.split("!=|==?", part, maxsplit=1)
    if path not in {"metadata.name", "metadata.namespace", "status.podIP", "status.phase"}:
        raise bad_request(f'field label not supported: "{path}"')

    def test(item: dict[str, Any]) -> bool:
        found: Any = item
        for step in path.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        return ((found or "") == value) != negated

    return test
