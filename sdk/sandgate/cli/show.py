"""Print values: as JSON for programs, as a table for people."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from sandgate.types import PoolStatus

if TYPE_CHECKING:
    from rich.table import Table

PIPE_WIDTH = 400
"""Columns of a table that goes into a pipe, where nobody can widen the window: no cell of it
is ever cut or wrapped."""

COLUMNS = ["POOL", "READY", "CLAIMED", "WAITING", "WARM", "MAX", "HITS", "ISOLATION", "LAST ERROR"]
"""Of a table of pools."""


def show_json(value: object) -> None:
    """Print one JSON value on one line; times as RFC 3339."""
    click.echo(json.dumps(value, default=_plain, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their headings."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(build_table(columns, rows))


def build_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    """Return a table; its cells are shown as they are."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def pool_rows(pools: Sequence[PoolStatus]) -> list[list[str]]:
    """Return the cells of pools."""
    return [
        [
            f"{pool.namespace}/{pool.name}",
            *(str(n) for n in (pool.ready, pool.claimed, pool.waiting, pool.warm, pool.max)),
            "-" if pool.hit_rate is None else f"{pool.hit_rate:.0%}",
            pool.isolation,
            pool.last_error or "-",
        ]
        for pool in pools
    ]


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    raise TypeError(f"{value!r} has no JSON form")
