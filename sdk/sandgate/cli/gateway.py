"""Which gateway a command speaks to: --url and the tokens, or the environment."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import click

from sandgate import Gateway

DEFAULT_URL = "http://127.0.0.1:8080"
"""Where `sandgate up` listens."""

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")


def gateway_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add --url, --token and --router-token; the command gets them as one `gateway`."""

    @wraps(command)
    def with_gateway(
        *, url: str, token: str | None, router_token: str | None, **others: object
    ) -> R:
        try:
            gateway = Gateway(url, token=token or None, router_token=router_token or None)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        return command(gateway=gateway, **others)

    for option in reversed(_OPTIONS):
        with_gateway = option(with_gateway)
    return with_gateway


_OPTIONS = (
    click.option(
        "--url",
        envvar="SANDGATE_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        help="URL of the gateway.",
    ),
    click.option("--token", envvar="SANDGATE_TOKEN", show_envvar=True, help="Token of the caller."),
    click.option(
        "--router-token",
        envvar="SANDGATE_ROUTER_TOKEN",
        show_envvar=True,
        help="Token for all sandboxes: the gateway's ROUTER_AUTH_TOKEN.",
    ),
)


def json_option(command: F) -> F:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
