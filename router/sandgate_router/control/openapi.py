"""The description of this API, as `/openapi.json` serves it."""

import functools
import json
from pathlib import Path

import yaml

import sandgate_router

_PACKAGE = Path(sandgate_router.__file__).parent
_PLACES = (_PACKAGE / "openapi.yaml", _PACKAGE.parent / "openapi.yaml")
"""Inside the package in a wheel, beside it in a checkout."""


@functools.cache
def load_openapi() -> bytes:
    """Return openapi.yaml as JSON; read at the first call (28 ms)."""
    place = next(place for place in _PLACES if place.is_file())
    return json.dumps(yaml.safe_load(place.read_text(encoding="utf-8"))).encode()
