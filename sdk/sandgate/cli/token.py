"""`sandgate token mint` and `inspect`: capabilities made by hand, and what one says.

For sandboxes that no claim is made for: those of the registries that only route. The gateway's
package knows the format, and is imported inside the commands only.
"""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sandgate.cli.servers import missing
from sandgate.cli.show import show_json

if TYPE_CHECKING:
    from sandgate_router.capability import KeySet
    from sandgate_router.capability_text import Capability
    from sandgate_router.names import Label

MAX_LIFE_SECONDS = 7 * 24 * 3600
"""Longest life of a token made by hand: that of the longest lease."""

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def token() -> None:
    """Make a token for a sandbox, or see what one says."""


@token.command()
@click.argument("sandbox")
@click.option("--namespace", default="default", show_default=True)
@click.option("--claim", help="Name of the claim; by default that of the sandbox.")
@click.option("--uid", help="The only generation of the sandbox; by default any.")
@click.option(
    "--port", "ports", type=click.IntRange(1, 65535), multiple=True, help="By default every port."
)
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(["http", "ws"]),
    multiple=True,
    help="By default both: requests and WebSockets.",
)
@click.option(
    "--life",
    type=click.IntRange(1, MAX_LIFE_SECONDS),
    default=3600,
    show_default=True,
    metavar="SECONDS",
)
@click.option("--keys", type=_FILE, envvar="SANDGATE_KEYS", show_envvar=True, required=True)
@click.option(
    "--audience",
    envvar="SANDGATE_AUDIENCE",
    show_envvar=True,
    default="sandgate",
    show_default=True,
)
def mint(
    sandbox: str,
    namespace: str,
    claim: str | None,
    uid: str | None,
    ports: tuple[int, ...],
    scopes: tuple[str, ...],
    life: int,
    keys: Path,
    audience: str,
) -> None:
    """Print a token for SANDBOX, signed with the signing key of the file."""
    try:
        from sandgate_router.capability import Capabilities
        from sandgate_router.capability_text import SCOPES, Capability
        from sandgate_router.names import Port
    except ModuleNotFoundError as error:
        raise missing(error) from error
    now = time.time()
    wanted = Capability(
        audience=audience,
        namespace=_label(namespace),
        claim=_label(sandbox if claim is None else claim),
        sandbox=_label(sandbox),
        uid=uid,
        ports=tuple(Port(port) for port in sorted(set(ports))) or None,
        scopes=tuple(scope for scope in SCOPES if not scopes or scope in scopes),
        not_before=int(now),
        expires_at=int(now) + life,
    )
    click.echo(Capabilities(_load(keys), audience=audience, now=time.time).sign(wanted))


@token.command()
@click.argument("text", metavar="[TOKEN]", default="-")
@click.option("--keys", type=_FILE, envvar="SANDGATE_KEYS", show_envvar=True)
@click.option(
    "--audience",
    envvar="SANDGATE_AUDIENCE",
    show_envvar=True,
    default="sandgate",
    show_default=True,
)
def inspect(text: str, keys: Path | None, audience: str) -> int:
    """Print what TOKEN says, as JSON; without one, or for -, it is read from standard input.

    With --keys it is verified, too, and the exit code is 1 where a gateway would refuse it.
    """
    try:
        from sandgate_router.capability import Capabilities, InvalidToken
        from sandgate_router.capability_text import parse_token
    except ModuleNotFoundError as error:
        raise missing(error) from error
    token = (sys.stdin.read() if text == "-" else text).strip().encode("utf-8", "replace")
    try:
        kid, capability = parse_token(token)
    except ValueError as error:
        raise click.ClickException(f"this is no token of a sandbox: {error}") from error
    verdict = "unchecked; give --keys"
    if keys is not None:
        verdict = "valid"
        try:
            Capabilities(_load(keys), audience=audience, now=time.time).verify(token)
        except InvalidToken as error:
            verdict = error.reason
    show_json({"kid": kid, **_members(capability), "verdict": verdict})
    return 0 if keys is None or verdict == "valid" else 1


def _label(text: str) -> "Label":
    from sandgate_router.names import parse_label

    try:
        return parse_label(text.encode("utf-8", "replace"))
    except ValueError as error:
        raise click.UsageError(
            f"{text!r} is not a label (a-z, 0-9 and inner hyphens, at most 63)"
        ) from error


def _members(capability: "Capability") -> dict[str, object]:
    return {
        "audience": capability.audience,
        "namespace": capability.namespace,
        "claim": capability.claim,
        "sandbox": capability.sandbox,
        "uid": capability.uid,
        "ports": capability.ports,
        "scopes": capability.scopes,
        "not_before": datetime.fromtimestamp(capability.not_before, UTC),
        "expires_at": datetime.fromtimestamp(capability.expires_at, UTC),
    }


def _load(path: Path) -> "KeySet":
    try:
        from sandgate_router.config import BadConfig
        from sandgate_router.keys import load_keys
    except ModuleNotFoundError as error:
        raise missing(error) from error
    try:
        return load_keys(path)
    except BadConfig as error:
        raise click.ClickException("; ".join(error.faults)) from error
