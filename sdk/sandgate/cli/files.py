"""`sandgate ls` and `cp`."""

import os
from dataclasses import asdict
from pathlib import Path, PurePosixPath

import click

from sandgate import Gateway, Sandbox, Sandboxes
from sandgate.cli.gateway import gateway_options, json_option
from sandgate.cli.names import ClaimName, RemotePath, parse_claim_name, parse_remote
from sandgate.cli.show import show_json, show_table


@click.command()
@click.argument("place", metavar="CLAIM[:PATH]")
@json_option
@gateway_options
def ls(place: str, as_json: bool, gateway: Gateway) -> None:
    """List a directory of the sandbox of CLAIM, by default its working directory."""
    claim = parse_claim_name(place)
    remote = parse_remote(place) if claim is None else RemotePath(claim, "")
    if remote is None:
        raise click.UsageError(f"{place!r} is neither CLAIM nor CLAIM:PATH")
    with Sandboxes(gateway) as sandboxes:
        name = remote.claim
        entries = sandboxes.get(name.name, namespace=name.namespace).files.list(remote.path)
    if as_json:
        show_json([asdict(entry) for entry in entries])
        return
    show_table(
        ["SIZE", "MODIFIED", "NAME"],
        [
            [
                "-" if entry.is_dir else str(entry.size),
                f"{entry.modified:%Y-%m-%d %H:%M:%S}Z",
                f"{entry.name}/" if entry.is_dir else entry.name,
            ]
            for entry in entries
        ],
    )


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("destination", metavar="DESTINATION")
@json_option
@gateway_options
def cp(source: str, destination: str, as_json: bool, gateway: Gateway) -> None:
    """Copy a file into a sandbox or out of it: one side is CLAIM:PATH, the other is local.

    A local path whose beginning looks like `CLAIM:` is written with ./ in front.
    """
    from_remote, to_remote = parse_remote(source), parse_remote(destination)
    if (from_remote is None) == (to_remote is None):
        raise click.UsageError("One of SOURCE and DESTINATION must be CLAIM:PATH.")
    with Sandboxes(gateway) as sandboxes:
        if to_remote is not None:
            size = _upload(sandboxes, Path(source), to_remote)
        elif from_remote is not None:
            size = _download(sandboxes, from_remote, Path(destination))
    if as_json:
        show_json({"source": source, "destination": destination, "bytes": size})


def _upload(sandboxes: Sandboxes, source: Path, remote: RemotePath) -> int:
    path = remote.path
    if not path or path.endswith("/"):
        path += source.name
    with source.open("rb") as content:
        _get(sandboxes, remote.claim).files.write(path, content)
        return content.tell()


def _download(sandboxes: Sandboxes, remote: RemotePath, destination: Path) -> int:
    if not (name := PurePosixPath(remote.path).name):
        raise click.UsageError(f"{remote.path!r} names no file in the sandbox")
    target = destination / name if destination.is_dir() else destination
    # Beside the target and renamed at the end: what was there stays until all has come.
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    sandbox = _get(sandboxes, remote.claim)
    try:
        with part.open("xb") as content:
            size = sandbox.files.download(remote.path, to=content)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return size


def _get(sandboxes: Sandboxes, claim: ClaimName) -> Sandbox:
    return sandboxes.get(claim.name, namespace=claim.namespace)
