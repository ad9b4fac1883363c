"""Print values: as JSON for programs, as a table for people."""

import json
from collections.abc import Sequence
from datetime import datetime

import click
from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 400
"""Columns of a table that goes into a pipe, where nobody can widen the window: no cell of it
is ever cut or wrapped."""


def show_json(value: object) -> None:
    """Print one JSON value on one line; times as RFC 3339."""
    click.echo(json.dumps(value, default=_plain, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(f"{value!r} has no JSON form")
