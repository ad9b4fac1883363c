"""`python -m loadtest`: every proxy on this machine on the same work, in one run."""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from loadtest import credentials
from loadtest.check import check_proxy
from loadtest.figures import Figures
from loadtest.measure import FEW_SANDBOXES, Serve, WrongAnswer, stub_sandboxes
from loadtest.peers import (
    COMPILED,
    COMPILED_PYTHON,
    PEERS,
    SANDGATE,
    find_program,
    serving,
    serving_sandgate,
    versions,
)
from loadtest.processes import raise_descriptor_limit
from loadtest.profiling import profile
from loadtest.report import Cell, Table, describe_machine, write_reports
from loadtest.scenarios import MANY_DESCRIPTORS, NAMES, Scenario, build_scenarios

PROFILE_SECONDS = 6.0
"""Enough for 3,000 samples, of which a function of one percent gets thirty."""


def main() -> None:
    """Measure, print, and write the reports where that is asked for."""
    options = _parse_options()
    began = time.monotonic()
    names = _choose(options)
    with tempfile.TemporaryDirectory() as folder, stub_sandboxes(0, options.sandboxes):
        proxies = _find_proxies(options, Path(folder))
        if options.profile and SANDGATE in proxies:
            _write_profile(proxies[SANDGATE], options)
        scenarios = build_scenarios(
            names,
            connections=options.connections,
            seconds=options.seconds,
            sandboxes=options.sandboxes,
        )
        tables = [_measure_all(one, proxies, options.repeats) for one in scenarios]
    tables = [table for table in tables if table.rows]
    print(f"\n{time.monotonic() - began:.0f} seconds in all")
    if options.reports and tables:
        about = {
            **describe_machine(),
            "sandboxes": options.sandboxes,
            "seconds": options.seconds,
            "repeats": options.repeats,
            "Sandgate": credentials.describe(),
            **versions(),
        }
        write_reports(options.reports, tables, about=about, baseline=SANDGATE)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=FEW_SANDBOXES)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 64, 512])
    parser.add_argument("--only", nargs="*", help="names, or beginnings of names, of proxies")
    parser.add_argument("--scenario", nargs="*", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--no-bulk", action="store_true")
    parser.add_argument("--profile", action="store_true", help="say where our own time goes")
    parser.add_argument("--reports", type=Path, help="folder for JSON, Markdown and SVG")
    return parser.parse_args()


def _choose(options: argparse.Namespace) -> list[str]:
    """Return the names of the scenarios that are wanted and possible."""
    names = list(options.scenario)
    if options.no_bulk:
        names = [name for name in names if name not in ("download", "upload")]
    allowed = raise_descriptor_limit()
    if "many" in names and allowed < MANY_DESCRIPTORS:
        print(f"many: {MANY_DESCRIPTORS} descriptors are needed, not {allowed}", file=sys.stderr)
        names.remove("many")
    return names


def _find_proxies(options: argparse.Namespace, workshop: Path) -> dict[str, Serve]:
    """Return the proxies that are here, are wanted and answer rightly."""
    proxies: dict[str, tuple[Serve, bool]] = {SANDGATE: (partial(serving_sandgate, workshop), True)}
    if COMPILED_PYTHON.exists():
        serve_compiled = partial(serving_sandgate, workshop, python=str(COMPILED_PYTHON))
        proxies[COMPILED] = serve_compiled, True
    else:
        print(f"{COMPILED}: `make compiled` builds it", file=sys.stderr)
    for peer in PEERS:
        if find_program(peer) is None:
            print(f"{peer.name}: {peer.program} is not on this machine", file=sys.stderr)
        else:
            proxies[peer.name] = partial(serving, peer, workshop), peer.routes
    only = None if options.only is None else tuple(name.lower() for name in options.only)
    found = {}
    for name, (serve, routes) in proxies.items():
        if only is not None and not name.lower().startswith(only):
            continue
        fault = check_proxy(serve, sandboxes=options.sandboxes, routes=routes)
        if fault is None:
            found[name] = serve
        else:
            print(f"{name} is not timed: {fault}", file=sys.stderr)
    return found


def _write_profile(serve: Serve, options: argparse.Namespace) -> None:
    try:
        text = profile(serve, sandboxes=options.sandboxes, seconds=PROFILE_SECONDS)
    except RuntimeError as error:  # the figures do not depend on it
        print(error, file=sys.stderr)
        return
    print(text, flush=True)
    if options.reports:
        options.reports.mkdir(parents=True, exist_ok=True)
        (options.reports / "profile.md").write_text(text)


def _measure_all(scenario: Scenario, proxies: Mapping[str, Serve], repeats: int) -> Table:
    """Measure in rounds, each proxy once a round, so that a noisy minute hits all alike."""
    began = time.monotonic()
    takes_part = [name for name in proxies if name not in scenario.without]
    runs: dict[str, list[Figures]] = {name: [] for name in takes_part}
    with scenario.surroundings():
        for _ in range(repeats):
            for name in list(takes_part):
                try:
                    runs[name].append(scenario.measure(proxies[name]))
                except (WrongAnswer, RuntimeError) as error:
                    takes_part.remove(name)
                    print(f"{scenario.title}: {name} is not timed: {error}", file=sys.stderr)
    # One wrong answer spoils the others: a proxy that fails now and then is not measured.
    rows = {name: _summarize(runs[name]) for name in takes_part}
    table = Table(scenario.name, scenario.title, scenario.note, rows)
    if rows:
        print(table.text(baseline=SANDGATE))
    print(f"({time.monotonic() - began:.0f} seconds)", flush=True)
    return table


def _summarize(figures: Sequence[Figures]) -> dict[str, Cell]:
    values = {name: [getattr(run, name) for run in figures] for name in figures[0].names()}
    return {name: Cell(statistics.median(row), min(row), max(row)) for name, row in values.items()}


if __name__ == "__main__":
    main()
