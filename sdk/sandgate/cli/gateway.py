"""Which gateway a command speaks to: --url and --token, or the environment."""

from collections.abc import Callable
from typing import TypeVar

import click

from sandgate import Gateway, Sandboxes

DEFAULT_URL = "http://127.0.0.1:8080"
"""Where `sandgate up` listens."""

F = TypeVar("F", bound=Callable[..., object])


def gateway_options(command: F) -> F:
    """Add --url and --token; the command gets an opened `sandboxes` by `open_sandboxes`."""
    url = click.option(
        "--url",
        envvar="SANDGATE_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        help="URL of the gateway.",
    )
    token = click.option(
        "--token", envvar="SANDGATE_TOKEN", show_envvar=True, help="Token of the caller."
    )
    return url(token(command))


def json_option(command: F) -> F:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def open_sandboxes(url: str, token: str | None) -> Sandboxes:
    """Return a handle on the gateway; a URL that is none is wrong usage."""
    try:
        return Sandboxes(Gateway(url, token=token or None))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
