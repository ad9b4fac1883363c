"""`sandgate events` and `top`: what happens, and how everything stands."""

import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sandgate import Gateway, Sandboxes
from sandgate.cli.gateway import gateway_options, json_option
from sandgate.cli.show import COLUMNS, build_table, pool_rows, show_json, show_table
from sandgate.types import Claim, GatewayEvent, PoolStatus

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@json_option
@gateway_options
def events(as_json: bool, gateway: Gateway) -> None:
    """Print what happens to claims and pools, until Ctrl-C."""
    with Sandboxes(gateway) as sandboxes, closing(sandboxes.events()) as happening:
        for event in happening:
            if as_json:
                show_json(asdict(event))
            else:
                click.echo(_describe(event))
            sys.stdout.flush()


@click.command()
@click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, metavar="SECONDS")
@json_option
@gateway_options
def top(interval: float, as_json: bool, gateway: Gateway) -> None:
    """Show the pools and their claims, anew each second, until Ctrl-C.

    Into a pipe, and as JSON, it is printed once.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Sandboxes(gateway) as sandboxes:
        pools, claims = sandboxes.pools(), sandboxes.list()
        if as_json:
            show_json(
                {
                    "pools": [asdict(pool) for pool in pools],
                    "claims": [asdict(claim) for claim in claims],
                }
            )
            return
        if not console.is_terminal:
            show_table([*COLUMNS, "STATES"], _rows(pools, claims))
            return
        with Live(_table(pools, claims), console=console, screen=True) as live:
            while True:
                time.sleep(interval)
                live.update(_table(sandboxes.pools(), sandboxes.list()))


def _table(pools: list[PoolStatus], claims: list[Claim]) -> "Table":
    return build_table([*COLUMNS, "STATES"], _rows(pools, claims))


def _rows(pools: list[PoolStatus], claims: list[Claim]) -> list[list[str]]:
    states: dict[tuple[str, str], Counter[str]] = {}
    for claim in claims:
        states.setdefault((claim.namespace, claim.pool), Counter())[claim.state] += 1
    return [
        [*row, _count(states.get((pool.namespace, pool.name)))]
        for pool, row in zip(pools, pool_rows(pools), strict=True)
    ]


def _count(states: Counter[str] | None) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted((states or {}).items())) or "-"


def _describe(event: GatewayEvent) -> str:
    at = "-" if event.at is None else f"{event.at:%H:%M:%S}"
    what = "" if event.claim is None else f"{event.namespace}/{event.claim.name}"
    if event.status is not None:
        status = event.status
        what = f"ready {status.ready}, claimed {status.claimed}, waiting {status.waiting}"
    parts = [at, event.kind, f"{event.namespace}/{event.pool}".strip("/"), what, event.reason or ""]
    return "  ".join(part for part in parts if part)
