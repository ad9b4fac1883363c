"""The golden messages: what the three packages agree on, as files.

`.http` files are whole messages, byte for byte. Values that differ each time (ports, dates,
random ids) stand in them as one example: a test that looks at real bytes first puts the
example's value in place of the real one, by name.
"""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"
DOCUMENT = Path(__file__).parents[2] / "docs" / "wire.md"

NAME, UID = "default/python-3lrgi36moicmsgeo", "cab4c5c3-d0ea-4672-9447-a73e170d51ad"
"""The sandbox of all examples."""


def read(name: str) -> bytes:
    """Return a golden message as it is on the wire."""
    return (FOLDER / name).read_bytes()


def read_json(name: str) -> Any:
    """Return a golden JSON body."""
    return json.loads(read(name))


def body_of(name: str) -> bytes:
    """Return the content of a golden HTTP message."""
    return read(name).partition(b"\r\n\r\n")[2]


def field_of(name: str, field: str) -> bytes:
    """Return the value of a field in a golden HTTP message."""
    found = re.search(_line(field), read(name))
    assert found is not None, f"{name} has no field {field}"
    return found[2]


def with_field(message: bytes, field: str, value: bytes) -> bytes:
    """Return an HTTP message with another value of one field, which must be there."""
    changed, count = re.subn(_line(field), lambda found: found[1] + value, message, count=1)
    assert count == 1, f"{message!r} has no field {field}"
    return changed


def _line(field: str) -> bytes:
    return rb"(?im)^(" + re.escape(field.encode()) + rb": ?)([^\r\n]*)"
