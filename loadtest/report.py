"""Figures as text, JSON and Markdown. Pure but for `write_reports` and `describe_machine`."""

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from loadtest.chart import draw_bars
from loadtest.figures import HEADINGS

PRIMARY = "requests"

COMPARED = ("Envoy", "Go ReverseProxy", "HAProxy, tuned", "nginx, static upstreams")
"""The columns of the short table, which the README shows as well."""

SHORT = (PRIMARY, "download", "upload")
"""The scenarios whose tables are its lines."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of several runs."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Table:
    """One scenario: a row for each proxy, a cell for each figure; the first is the cost."""

    name: str
    title: str
    note: str
    rows: Mapping[str, Mapping[str, Cell]]

    @property
    def cost(self) -> str:
        """The name of the figure that is compared."""
        return next(iter(next(iter(self.rows.values()))))

    def ratios(self, baseline: str) -> dict[str, float]:
        """Return the baseline's cost as a part of each row's."""
        if baseline not in self.rows:
            return {}
        ours = self.rows[baseline][self.cost].median
        costs = {name: cells[self.cost].median for name, cells in self.rows.items()}
        return {name: ours / cost if cost > 0 else math.nan for name, cost in costs.items()}

    def text(self, *, baseline: str) -> str:
        """Return the table for a terminal."""
        lines = [f"\n{self.title}", *self._lines(baseline, "  ")]
        return "\n".join(lines)

    def markdown(self, *, baseline: str) -> str:
        """Return the table in Markdown."""
        header, *rows = self._lines(baseline, " | ")
        rule = "|".join("---" for _ in header.split(" | "))
        body = "\n".join(f"| {row} |" for row in rows)
        return f"## {self.title}\n\n{self.note}\n\n| {header} |\n|{rule}|\n{body}\n"

    def _lines(self, baseline: str, gap: str) -> list[str]:
        figures = list(next(iter(self.rows.values())))
        ratios = self.ratios(baseline)
        header = [f"{'proxy':<26}", f"{HEADINGS[self.cost]:>14}", f"{'spread':>15}"]
        header += [f"{HEADINGS[name]:>12}" for name in figures if name != self.cost]
        header.append(f"{f'{baseline} / it':>13}")
        lines = [gap.join(header)]
        for name, cells in self.rows.items():
            cost = cells[self.cost]
            row = [
                f"{name:<26}",
                f"{cost.median:>14.2f}",
                f"{cost.least:.2f}-{cost.most:.2f}".rjust(15),
            ]
            row += [f"{cells[one].median:>12.2f}" for one in figures if one != self.cost]
            row.append(f"{ratios[name]:>13.2f}" if name in ratios else " " * 13)
            lines.append(gap.join(row))
        return lines


def build_short_table(tables: Sequence[Table], *, baseline: str) -> str:
    """Return the ratios of the most common work in Markdown: one line for each."""
    lines = [f"| work | {' | '.join(COMPARED)} |", "|---" * (len(COMPARED) + 1) + "|"]
    for table in tables:
        if table.name in SHORT:
            ratios = table.ratios(baseline)
            cells = [f"{ratios[name]:.2f}" if name in ratios else "–" for name in COMPARED]
            work = f"small requests, {table.title}" if table.name == PRIMARY else table.title
            lines.append(f"| {work} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def describe_machine() -> dict[str, str]:
    """Say when and on what was measured."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {memory:.0f} GiB",
        "processor": models[0] if models else "unknown",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def write_reports(
    folder: Path, tables: Sequence[Table], *, about: Mapping[str, object], baseline: str
) -> None:
    """Write report.json, report.md and cost.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"about": dict(about), "tables": [asdict(table) for table in tables]}
    (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "report.md").write_text(build_report(tables, about=about, baseline=baseline))
    (folder / "cost.svg").write_text(
        draw_bars(
            [
                (
                    f"{table.title}: {HEADINGS[table.cost]}",
                    {name: cells[table.cost].median for name, cells in table.rows.items()},
                )
                for table in tables
            ],
            marked=baseline,
        )
    )


def build_report(tables: Sequence[Table], *, about: Mapping[str, object], baseline: str) -> str:
    """Return the whole report in Markdown."""
    facts = "\n".join(f"| {name} | {value} |" for name, value in about.items())
    body = "\n".join(table.markdown(baseline=baseline) for table in tables)
    return (
        "# Side by side in one run\n\n"
        "One core for the proxy, load and stub sandboxes on the other. Figures are medians of the"
        " repeats; the spread, of the first figure, is its least and its most. The last column is"
        f" the first figure of {baseline} divided by that of the row: below 1 {baseline} takes"
        f" less.\n\n| what | |\n|---|---|\n{facts}\n\n## {baseline}'s cost as a part of"
        f" theirs\n\n{build_short_table(tables, baseline=baseline)}\n{body}"
    )
