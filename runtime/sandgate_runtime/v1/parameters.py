"""Read the query of a request strictly: what is unknown, repeated or malformed is refused.

A parameter that is passed over in silence turns a small error into a wrong deletion.
"""

import re
from typing import TYPE_CHECKING

from sandgate_runtime.files.refusals import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

_MODE = re.compile(r"0[0-7]{3}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_SWITCH = {"": True, "true": True, "1": True, "false": False, "0": False}


def read_parameters(request: "Request", *known: str) -> dict[str, str]:
    """Return the parameters; raise InvalidParameter for one that is not known or sent twice."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            wanted = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InvalidParameter(f"{name!r} is no parameter of this request; {wanted}")
        if name in found:
            raise InvalidParameter(f"{name!r} is given twice")
        found[name] = value
    return found


def read_switch(parameters: "Mapping[str, str]", name: str, *, default: bool = False) -> bool:
    """Return whether a parameter is set; alone, without a value, it is."""
    value = parameters.get(name)
    if value is None:
        return default
    if value not in _SWITCH:
        raise InvalidParameter(f"{name} {value!r} is neither true nor false")
    return _SWITCH[value]


def read_mode(parameters: "Mapping[str, str]") -> int | None:
    """Return the permissions that a parameter gives, as in 0644."""
    value = parameters.get("mode")
    if value is None:
        return None
    if not _MODE.fullmatch(value):
        raise InvalidParameter(f"mode {value!r} is not a 0 and three octal digits, as in 0644")
    return int(value, 8)


def read_limit(parameters: "Mapping[str, str]", *, maximum: int) -> int:
    """Return how many entries are wanted at most."""
    value = parameters.get("limit")
    if value is None:
        return maximum
    if not _NUMBER.fullmatch(value) or int(value) > maximum:
        raise InvalidParameter(f"limit {value!r} is not a number from 1 to {maximum}")
    return int(value)
