"""Kubernetes labels: what a key and a value may be. Pure."""

import re

RESERVED_PREFIXES = ("kubernetes.io", "k8s.io", "agents.x-k8s.io", "sandgate.dev")
"""Label prefixes, with everything below them, that controllers act on: a caller who could set
one might pass for a controller."""

KEY_GRAMMAR = (
    "[PREFIX/]NAME with a NAME of 1 to 63 of A-Z a-z 0-9 - _ ., beginning and ending with a"
    " letter or digit"
)
VALUE_GRAMMAR = (
    "empty or at most 63 of A-Z a-z 0-9 - _ ., beginning and ending with a letter or digit"
)
PREFIX_GRAMMAR = "lower-case DNS name of at most 253"

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_MAX_DNS_NAME = 253


def is_value(text: str) -> bool:
    """Tell whether a label may have this value."""
    return not text or _NAME.fullmatch(text) is not None


def has_name(key: str) -> bool:
    """Tell whether the part of a key behind its prefix is right."""
    return _NAME.fullmatch(key.rpartition("/")[2]) is not None


def has_prefix(key: str) -> bool:
    """Tell whether the part of a key before its name is right, or missing."""
    prefix, slash, _ = key.rpartition("/")
    return not slash or (len(prefix) <= _MAX_DNS_NAME and _DNS_NAME.fullmatch(prefix) is not None)


def is_reserved(key: str) -> bool:
    """Tell whether controllers act on labels with the prefix of this key."""
    prefix = key.rpartition("/")[0]
    return any(prefix == taken or prefix.endswith("." + taken) for taken in RESERVED_PREFIXES)
