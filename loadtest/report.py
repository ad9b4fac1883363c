"""Figures as text, JSON, Markdown and a chart. Pure but for `write_reports`."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

HEADINGS = {
    "cpu_ms": "CPU-ms / 1,000",
    "rate": "requests / s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "cpu_seconds_per_gb": "CPU-s / GB",
    "mb_per_second": "MB / s",
    "resident_mb": "resident MB",
}
COST = ("cpu_ms", "cpu_seconds_per_gb")
"""The figures that are compared; the first that a table has stands in its chart."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of several runs."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Table:
    """One scenario: a row for each proxy, a cell for each figure."""

    title: str
    rows: Mapping[str, Mapping[str, Cell]]

    @property
    def cost(self) -> str:
        """The name of the figure that is compared."""
        cells = next(iter(self.rows.values()))
        return next(name for name in COST if name in cells)

    def ratios(self, baseline: str) -> dict[str, float]:
        """Return the baseline's cost as a part of each row's."""
        if baseline not in self.rows:
            return {}
        ours = self.rows[baseline][self.cost].median
        return {name: ours / cells[self.cost].median for name, cells in self.rows.items()}

    def text(self, *, baseline: str) -> str:
        """Return the table for a terminal."""
        lines = [f"\n{self.title}", *self._lines(baseline, "  ")]
        return "\n".join(lines)

    def markdown(self, *, baseline: str) -> str:
        """Return the table in Markdown."""
        header, *rows = self._lines(baseline, " | ")
        rule = "|".join("---" for _ in header.split(" | "))
        body = "\n".join(f"| {row} |" for row in rows)
        return f"### {self.title}\n\n| {header} |\n|{rule}|\n{body}\n"

    def _lines(self, baseline: str, gap: str) -> list[str]:
        figures = list(next(iter(self.rows.values())))
        ratios = self.ratios(baseline)
        header = [f"{'proxy':<26}", f"{HEADINGS[self.cost]:>14}", f"{'spread':>13}"]
        header += [f"{HEADINGS[name]:>12}" for name in figures if name != self.cost]
        header.append(f"{f'{baseline} / it':>13}")
        lines = [gap.join(header)]
        for name, cells in self.rows.items():
            cost = cells[self.cost]
            row = [
                f"{name:<26}",
                f"{cost.median:>14.2f}",
                f"{cost.least:.2f}-{cost.most:.2f}".rjust(13),
            ]
            row += [f"{cells[one].median:>12.2f}" for one in figures if one != self.cost]
            row.append(f"{ratios[name]:>13.2f}" if name in ratios else " " * 13)
            lines.append(gap.join(row))
        return lines


def write_reports(
    folder: Path, tables: Sequence[Table], *, sandboxes: int, versions: Mapping[str, str]
) -> None:
    """Write report.json, report.md and cost.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "sandboxes": sandboxes,
        **versions,
    }
    content = {
        "about": about,
        "tables": [
            {
                "title": table.title,
                "rows": {
                    name: {figure: asdict(cell) for figure, cell in cells.items()}
                    for name, cells in table.rows.items()
                },
            }
            for table in tables
        ],
    }
    (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = ", ".join(f"{key} {value}" for key, value in about.items())
    body = "\n".join(table.markdown(baseline="Sandgate") for table in tables)
    (folder / "report.md").write_text(
        f"# Side by side in one run\n\n{lines}. Medians; the spread is of the cost. One core for"
        f" the proxy, load and stubs on the other.\n\n{body}"
    )
    (folder / "cost.svg").write_text(_chart(tables))


def _chart(tables: Sequence[Table]) -> str:
    """Return horizontal bars of the cost, one group for each scenario."""
    height, label, width = 18, 210, 420
    parts: list[str] = []
    top = 10
    for table in tables:
        costs = {name: cells[table.cost].median for name, cells in table.rows.items()}
        # Bars end where the cheapest ten end: one proxy of 5,000 would flatten all others.
        scale = min(max(costs.values()), 5 * sorted(costs.values())[len(costs) // 2])
        parts.append(
            f'<text x="0" y="{top + 13}" font-weight="bold">{escape(table.title)}:'
            f" {HEADINGS[table.cost]}</text>"
        )
        top += height + 4
        for name, cost in sorted(costs.items(), key=lambda item: item[1]):
            bar = width * min(cost / scale, 1.0)
            colour = "#1f6feb" if name == "Sandgate" else "#9aa4af"
            parts.append(
                f'<text x="{label - 6}" y="{top + 13}" text-anchor="end">{escape(name)}</text>'
                f'<rect x="{label}" y="{top + 2}" width="{bar:.0f}" height="{height - 5}"'
                f' fill="{colour}"/>'
                f'<text x="{label + bar + 6:.0f}" y="{top + 13}">{cost:.2f}</text>'
            )
            top += height
        top += 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{label + width + 80}" height="{top}"'
        f' font-family="sans-serif" font-size="12" fill="#24292f">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )
