"""How the command line writes things: `NAMESPACE/CLAIM`, `CLAIM:PATH`, `KEY=VALUE`."""

import re
from dataclasses import dataclass

import click

DEFAULT_NAMESPACE = "default"

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_PORTS = re.compile(r"(?:(0|[1-9][0-9]{0,4}):)?([1-9][0-9]{0,4})")
_CLAIM = re.compile(rf"(?:({_LABEL})/)?({_LABEL})")


@dataclass(frozen=True, slots=True)
class ClaimName:
    """A claim in its namespace."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A path in the sandbox of a claim; empty for its working directory."""

    claim: ClaimName
    path: str


class ClaimType(click.ParamType[ClaimName]):
    """An argument that names a claim."""

    name = "claim"

    def convert(
        self, value: str | ClaimName, param: click.Parameter | None, ctx: click.Context | None
    ) -> ClaimName:
        """Return the claim; fail with usage."""
        if isinstance(value, ClaimName):
            return value
        claim = parse_claim_name(value)
        if claim is None:
            self.fail(f"{value!r} is neither CLAIM nor NAMESPACE/CLAIM", param, ctx)
        return claim


class PortsType(click.ParamType[tuple[int, int]]):
    """An argument that names a port here and one in a sandbox."""

    name = "ports"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return both; one number stands for the same here and there."""
        if isinstance(value, tuple):
            return value
        match = _PORTS.fullmatch(value)
        if match is None or int(match[2]) > 65535 or int(match[1] or 0) > 65535:
            self.fail(f"{value!r} is neither PORT nor LOCAL:PORT", param, ctx)
        return int(match[1] or match[2]), int(match[2])


class PairType(click.ParamType[tuple[str, str]]):
    """An option that gives a name a value."""

    name = "pair"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return name and value; fail with usage."""
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, text


def parse_claim_name(text: str) -> ClaimName | None:
    """Return the claim that `text` names, None when it names none."""
    match = _CLAIM.fullmatch(text)
    return None if match is None else ClaimName(match[1] or DEFAULT_NAMESPACE, match[2])


def parse_remote(text: str) -> RemotePath | None:
    """Return the place in a sandbox that `text` names, None for a local path.

    What stands before the first colon must name a claim: `./a:b` and `/tmp/a:b` are local.
    """
    name, colon, path = text.partition(":")
    claim = parse_claim_name(name) if colon else None
    return None if claim is None else RemotePath(claim, path)
