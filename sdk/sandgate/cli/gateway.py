"""Which gateway a command speaks to: options, else the environment, else the config file."""

import os
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import click

from sandgate import Gateway
from sandgate._settings import DEFAULT_URL, VARIABLES, read_settings

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")

_OPTIONS = {
    "url": f"URL of the gateway; by default {DEFAULT_URL}.",
    "token": "Token of the caller.",
    "router_token": "Token for all sandboxes: the gateway's ROUTER_AUTH_TOKEN.",
}


def gateway_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add --url, --token and --router-token; the command gets them as one `gateway`."""

    @wraps(command)
    def with_gateway(
        *, url: str | None, token: str | None, router_token: str | None, **others: object
    ) -> R:
        given = {"url": url, "token": token, "router_token": router_token}
        try:
            gateway = _read_gateway({name: text for name, text in given.items() if text})
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        return command(gateway=gateway, **others)

    for name, purpose in reversed(_OPTIONS.items()):
        option = f"--{name.replace('_', '-')}"
        help_ = f"{purpose} [env: {VARIABLES[name]}]"
        with_gateway = click.option(option, name, metavar="TEXT", help=help_)(with_gateway)
    return with_gateway


def json_option(command: F) -> F:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def _read_gateway(given: dict[str, str]) -> Gateway:
    values = {**read_settings(os.environ), **given}
    return Gateway(
        values.get("url", DEFAULT_URL),
        token=values.get("token"),
        router_token=values.get("router_token"),
        ca=values.get("ca"),
        client_cert=values.get("client_cert"),
    )
