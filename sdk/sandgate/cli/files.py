"""`sandgate ls`, `cat` and `cp`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from sandgate import Gateway, Sandbox, Sandboxes
from sandgate.cli.gateway import gateway_options, json_option
from sandgate.cli.names import ClaimName, RemotePath, parse_claim_name, parse_remote
from sandgate.cli.show import show_json, show_table

if TYPE_CHECKING:
    from rich.progress import Progress


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
        entries = _get(sandboxes, remote.claim).files.list(remote.path)
    if as_json:
        show_json([asdict(entry) for entry in entries])
        return
    show_table(
        ["SIZE", "MODIFIED", "NAME"],
        [
            [
                "-" if entry.is_dir else str(entry.size),
                "-" if entry.modified is None else f"{entry.modified:%Y-%m-%d %H:%M:%S}Z",
                f"{entry.name}/" if entry.is_dir else entry.name,
            ]
            for entry in entries
        ],
    )


@click.command()
@click.argument("place", metavar="CLAIM:PATH")
@json_option
@gateway_options
def cat(place: str, as_json: bool, gateway: Gateway) -> None:
    """Print a file of the sandbox of CLAIM."""
    remote = parse_remote(place)
    if remote is None or not remote.path:
        raise click.UsageError(f"{place!r} is not CLAIM:PATH")
    with Sandboxes(gateway) as sandboxes:
        files = _get(sandboxes, remote.claim).files
        if as_json:
            content = files.read(remote.path).decode(errors="replace")
            show_json({"path": remote.path, "content": content})
            return
        files.download(remote.path, to=sys.stdout.buffer)
        sys.stdout.flush()


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("destination", metavar="DESTINATION")
@json_option
@gateway_options
def cp(source: str, destination: str, as_json: bool, gateway: Gateway) -> None:
    """Copy a file or a folder into a sandbox or out of it: one side is CLAIM:PATH.

    A file goes into a folder that is there under its own name; what is in a folder goes into
    the folder that is named. A local path that looks like `CLAIM:` is written with ./ in front.
    """
    from_remote, to_remote = parse_remote(source), parse_remote(destination)
    if (from_remote is None) == (to_remote is None):
        raise click.UsageError("One of SOURCE and DESTINATION must be CLAIM:PATH.")
    with Sandboxes(gateway) as sandboxes, _bar() as bar:
        if to_remote is not None:
            _upload(sandboxes, Path(source), to_remote, bar)
        elif from_remote is not None:
            _download(sandboxes, from_remote, Path(destination), bar)
    if as_json:
        show_json({"source": source, "destination": destination, "bytes": bar.done})


def _upload(sandboxes: Sandboxes, source: Path, remote: RemotePath, bar: "_Bar") -> None:
    path = remote.path
    if source.is_dir():
        _get(sandboxes, remote.claim).files.upload_folder(source, path, progress=bar.show)
        return
    if not path or path.endswith("/"):
        path += source.name
    with source.open("rb") as content:
        _get(sandboxes, remote.claim).files.upload(content, path, progress=bar.show)


def _download(sandboxes: Sandboxes, remote: RemotePath, destination: Path, bar: "_Bar") -> None:
    sandbox = _get(sandboxes, remote.claim)
    name = PurePosixPath(remote.path).name
    if not name or sandbox.files.stat(remote.path).is_dir:
        sandbox.files.download_folder(remote.path, to=destination, progress=bar.show)
        return
    target = destination / name if destination.is_dir() else destination
    sandbox.files.download(remote.path, to=target, progress=bar.show)


def _get(sandboxes: Sandboxes, claim: ClaimName) -> Sandbox:
    return sandboxes.get(claim.name, namespace=claim.namespace)


class _Bar:
    """Counts the bytes that have passed, and shows them where somebody looks."""

    def __init__(self, progress: "Progress") -> None:
        self.done = 0
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def show(self, done: int, total: int | None) -> None:
        self.done = done
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def _bar() -> Iterator[_Bar]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn(""), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield _Bar(progress)
