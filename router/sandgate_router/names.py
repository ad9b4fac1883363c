"""Checked values: what a sandbox, a namespace and a port may be called.

Grammar on raw bytes, always by `fullmatch`: `int()` takes `8_0` and Arabic digits, and `$`
lets a trailing newline through. Nothing is trimmed, folded or lower-cased here, because
authorization compares the same bytes.
"""

import re
from typing import NewType

Label = NewType("Label", str)
"""An RFC 1123 label: 1 to 63 lower-case letters, digits and inner hyphens."""

Port = NewType("Port", int)
"""A TCP port, 1 to 65535."""

DEFAULT_NAMESPACE = Label("default")
DEFAULT_PORT = Port(8888)
"""Where the server inside a sandbox listens, unless the request says otherwise."""

_LABEL = re.compile(rb"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PORT = re.compile(rb"[1-9][0-9]{0,4}")
_MAX_PORT = 65535


def parse_label(value: bytes) -> Label:
    """Return `value` as a label; raise ValueError when it is none (RFC 1123 section 2.1)."""
    if _LABEL.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not a label (a-z, 0-9 and inner hyphens, at most 63)")
    return Label(value.decode("ascii"))


def parse_port(value: bytes) -> Port:
    """Return `value` as a port; raise ValueError unless it is 1 to 65535 in plain digits."""
    if _PORT.fullmatch(value) is None or (port := int(value)) > _MAX_PORT:
        raise ValueError(f"{value!r} is not a port (1-65535)")
    return Port(port)
