"""`python -m loadtest`: every proxy on this machine on the same work, in one run."""

import argparse
import functools
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from loadtest.peers import PEERS, SANDGATE, find_program, serving, serving_sandgate, versions
from loadtest.report import Cell, Table, write_reports
from loadtest.scenarios import (
    Bulk,
    Requests,
    Serving,
    WrongAnswer,
    measure_bulk,
    measure_requests,
    stub_sandboxes,
)

Figures = TypeVar("Figures", Requests, Bulk)

BULK_MEGABYTES = 100


def main() -> None:
    """Measure, print, and write the reports where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 64, 512])
    parser.add_argument("--only", nargs="*", help="names, or beginnings of names, of proxies")
    parser.add_argument("--no-bulk", action="store_true")
    parser.add_argument("--reports", type=Path, help="folder for JSON, Markdown and SVG")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, stub_sandboxes(options.sandboxes):
        proxies = _proxies(options.sandboxes, options.only, Path(folder, "log"))
        tables = []
        for connections in options.connections:
            measure = functools.partial(
                measure_requests,
                connections=connections,
                sandboxes=options.sandboxes,
                seconds=options.seconds,
            )
            title = f"{connections} connections"
            tables.append(_measure_all(title, proxies, options.repeats, measure))
        for direction in () if options.no_bulk else ("download", "upload"):
            bulk = functools.partial(
                measure_bulk, direction=direction, megabytes=BULK_MEGABYTES, times=5
            )
            title = f"{direction} of {BULK_MEGABYTES} MB"
            tables.append(_measure_all(title, proxies, options.repeats, bulk))
    if options.reports:
        write_reports(options.reports, tables, sandboxes=options.sandboxes, versions=versions())


def _proxies(sandboxes: int, only: list[str] | None, log: Path) -> dict[str, Callable[[], Serving]]:
    proxies: dict[str, Callable[[], Serving]] = {SANDGATE: lambda: serving_sandgate(sandboxes, log)}
    for peer in PEERS:
        if find_program(peer) is None:
            print(f"{peer.name}: {peer.program} is not on this machine", file=sys.stderr)
        else:
            proxies[peer.name] = functools.partial(serving, peer, sandboxes, log)
    if only is None:
        return proxies
    return {name: run for name, run in proxies.items() if name.lower().startswith(tuple(only))}


def _measure_all(
    title: str,
    proxies: dict[str, Callable[[], Serving]],
    repeats: int,
    measure: Callable[[Serving], Figures],
) -> Table:
    """Measure in rounds, each proxy once a round, so that a noisy minute hits all alike."""
    runs: dict[str, list[Figures]] = {name: [] for name in proxies}
    for _ in range(repeats):
        for name, serve in proxies.items():
            try:
                runs[name].append(measure(serve()))
            except (WrongAnswer, RuntimeError) as error:
                print(f"{title}: {name} is not timed: {error}", file=sys.stderr)
    rows = {name: _summarize(figures) for name, figures in runs.items() if figures}
    table = Table(title, rows)
    print(table.text(baseline=SANDGATE), flush=True)
    return table


def _summarize(figures: list[Figures]) -> dict[str, Cell]:
    names = figures[0].__dataclass_fields__
    values = {name: [getattr(run, name) for run in figures] for name in names}
    return {name: Cell(statistics.median(row), min(row), max(row)) for name, row in values.items()}


if __name__ == "__main__":
    main()
