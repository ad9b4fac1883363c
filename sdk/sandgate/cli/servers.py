"""`sandgate up`, `router` and `runtime`: start what the other two packages serve.

They are imported inside their command only, so that the handle and the other commands work
where they are not installed. What a setting may be is the gateway's to say.
"""

from collections.abc import Callable
from typing import Literal

import click

_FLAGS = {
    "listen": ("SANDGATE_LISTEN", "HOST:PORT", "Where to listen; port 0 takes any."),
    "metrics_listen": ("SANDGATE_METRICS_LISTEN", "HOST:PORT", "Where to serve metrics."),
    "registry": ("SANDGATE_REGISTRY", "KIND", "local, static:FILE or dns."),
    "pools": ("SANDGATE_POOLS", "FILE", "The warm pools, as YAML."),
    "isolation": ("SANDGATE_ISOLATION", "KIND", "bubblewrap, or none for code that you trust."),
    "auth": ("SANDGATE_AUTH", "MODE", "capability, shared or none."),
}
"""Each flag's setting, the shape of its value, and what it is for."""

_GATEWAY_MODULES = frozenset(
    {
        "h2",
        "httptools",
        "msgspec",
        "multipart",
        "prometheus_client",
        "python_multipart",
        "starlette",
        "uvicorn",
        "uvloop",
        "yaml",
    }
)
"""What the extra `gateway` brings; any other missing module is a fault of this program."""


def _setting_options(command: Callable[..., int]) -> Callable[..., int]:
    for name, (setting, shape, purpose) in reversed(_FLAGS.items()):
        option = f"--{name.replace('_', '-')}"
        add = click.option(option, name, metavar=shape, help=f"{purpose} [env: {setting}]")
        command = add(command)
    return command


@click.command()
@_setting_options
def up(**flags: str | None) -> int:
    """Run a gateway with local sandboxes on this machine."""
    return _serve("up", flags)


@click.command()
@_setting_options
def router(**flags: str | None) -> int:
    """Run the gateway alone, for sandboxes that others keep."""
    return _serve("router", flags)


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def runtime(arguments: tuple[str, ...]) -> int:
    """Run the server inside a sandbox; see `sandgate runtime --help`."""
    try:
        from sandgate_runtime.__main__ import main
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return main(arguments)


def _serve(command: Literal["up", "router"], flags: dict[str, str | None]) -> int:
    try:
        from sandgate_router.server import main
    except ModuleNotFoundError as error:
        raise missing(error) from error
    given = {_FLAGS[name][0]: text for name, text in flags.items() if text is not None}
    return main(command, given)


def missing(error: ModuleNotFoundError) -> Exception:
    """Return what to raise where a command needs more than is installed."""
    name = (error.name or "").partition(".")[0]
    if name not in _GATEWAY_MODULES:
        return error
    return click.ClickException(f"this needs {name}; run: pip install 'sandgate[gateway]'")
