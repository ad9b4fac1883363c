"""`GET /v1/metadata`: what whoever made the sandbox wants to be known inside and outside.

Variables of the runtime whose names begin with `SANDBOX_`, less those that sound like secrets.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sandgate_runtime.exchange import json_answer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PREFIX = "SANDBOX_"

SECRET_WORDS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CRED", "KEY", "AUTH", "BEARER", "PRIVATE", "CERT",
)  # fmt: skip
"""Anywhere in a name. The list is that of the upstream project's daemon."""


class Metadata:
    """The route; computed once, from the environment at the start."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._env = {
            name: value
            for name, value in sorted(environ.items())
            if name.startswith(PREFIX) and not any(word in name.upper() for word in SECRET_WORDS)
        }

    async def metadata(self, _request: "Request") -> "Response":
        """Tell them."""
        return json_answer({"env": self._env})
