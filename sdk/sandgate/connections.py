"""Where the gateway is, and as whom to speak to it: checked when written down.

A wrong URL is told at once, with the line that wrote it, instead of at the first request.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway at a fixed URL, such as `http://127.0.0.1:8080`."""

    url: str
    """`http` or `https`, a host and perhaps a port; nothing behind it."""
    token: str | None = field(default=None, repr=False)
    """A caller's token for the control API; never sent to a sandbox. None sends none."""
    router_token: str | None = field(default=None, repr=False)
    """What the gateway has as ROUTER_AUTH_TOKEN: sent with requests to sandboxes, where it ends
    at the gateway, and with no others. None sends none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", parse_origin(self.url))
        for name, token in (("gateway", self.token), ("router", self.router_token)):
            if token is not None and (not token or _UNPRINTABLE.search(token)):
                # Not quoted: it is a secret, and this text may end in a log.
                raise ValueError(
                    f"the {name} token is empty or holds a space or a control character"
                )


def parse_origin(url: str) -> str:
    """Return `url` without its closing slash; raise ValueError unless it is a plain origin."""
    if _UNPRINTABLE.search(url):
        raise ValueError(f"gateway URL {url!r} holds a space, a control or a non-ASCII character")
    scheme, colons, _ = url.partition("://")
    if not colons or scheme.lower() not in {"http", "https"}:
        raise ValueError(
            f"gateway URL {url!r} does not begin with http:// or https://; "
            "write for example http://127.0.0.1:8080"
        )
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"gateway URL {url!r} has no port between 1 and 65535") from error
    if not parts.hostname or port == 0:
        raise ValueError(f"gateway URL {url!r} names no host and port that could be dialled")
    if parts.username is not None or parts.password is not None:
        # Not quoted: it holds a password.
        raise ValueError("the gateway URL holds a user name; pass the token as token=...")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or url[-1] in "?#":
        raise ValueError(f"gateway URL {url!r} must end after the host and port")
    return f"{parts.scheme}://{parts.netloc}"
