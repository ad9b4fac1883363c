"""The connection of a program that names none: the environment, then the config file.

The file is `sandgate/config.toml` in the user's folder of configurations, or what SANDGATE_CONFIG
names, with the members `url`, `token`, `router_token`, `ca` and `client_cert`. A variable wins
over the file. Read when it is asked for, never at import.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from sandgate.connections import Gateway

DEFAULT_URL = "http://127.0.0.1:8080"
"""Where `sandgate up` listens."""

VARIABLES = {
    "url": "SANDGATE_URL",
    "token": "SANDGATE_TOKEN",
    "router_token": "SANDGATE_ROUTER_TOKEN",
    "ca": "SANDGATE_CA",
    "client_cert": "SANDGATE_CLIENT_CERT",
}
"""The variable of each setting; an empty one counts as unset."""


def default_connection(environ: Mapping[str, str] | None = None) -> Gateway:
    """Return the gateway that the settings name; raise ValueError for settings that are wrong."""
    values = read_settings(os.environ if environ is None else environ)
    return Gateway(
        values.get("url", DEFAULT_URL),
        token=values.get("token"),
        router_token=values.get("router_token"),
        ca=values.get("ca"),
        client_cert=values.get("client_cert"),
    )


def read_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are made, a variable's before the file's."""
    values = _read_file(environ)
    for name, variable in VARIABLES.items():
        if environ.get(variable):
            values[name] = environ[variable]
    return values


def find_file(environ: Mapping[str, str]) -> tuple[Path, bool]:
    """Return where the config file is, and whether it must be there."""
    if environ.get("SANDGATE_CONFIG"):
        return Path(environ["SANDGATE_CONFIG"]), True
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", ""), ".config")
    return Path(folder, "sandgate", "config.toml"), False


def _read_file(environ: Mapping[str, str]) -> dict[str, str]:
    path, is_named = find_file(environ)
    try:
        content = path.read_text()
    except OSError as error:
        if is_named:
            raise ValueError(f"SANDGATE_CONFIG {str(path)!r}: {error.strerror}") from error
        return {}
    import tomllib

    try:
        values = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"config file {str(path)!r} is no TOML: {error}") from error
    for name, value in values.items():
        if name not in VARIABLES or not isinstance(value, str):
            # The value is not quoted: it may be a secret.
            raise ValueError(
                f"config file {str(path)!r}: {name!r} is none of {', '.join(VARIABLES)} "
                "with a text as its value"
            )
    return values
