"""Horizontal bars as SVG, one group for each scenario."""

from collections.abc import Mapping, Sequence
from html import escape

ROW, LABEL, WIDTH, MARGIN = 18, 210, 420, 80

LONGEST = 5
"""A bar ends at this many times the median: one proxy of 5,000 would flatten all others."""


def draw_bars(groups: Sequence[tuple[str, Mapping[str, float]]], *, marked: str) -> str:
    """Return a picture of titled groups of values, the least first."""
    parts: list[str] = []
    top = 10
    for title, values in groups:
        parts.append(f'<text x="0" y="{top + 13}" font-weight="bold">{escape(title)}</text>')
        top += ROW + 4
        scale = min(max(values.values()), LONGEST * sorted(values.values())[len(values) // 2])
        for name, value in sorted(values.items(), key=lambda item: item[1]):
            part = min(max(value / scale, 0.0), 1.0) if scale > 0 else 0.0
            parts.append(_draw_bar(name, value, WIDTH * part, top, marked=name == marked))
            top += ROW
        top += 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + WIDTH + MARGIN}" height="{top}"'
        f' font-family="sans-serif" font-size="12" fill="#24292f">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _draw_bar(name: str, value: float, length: float, top: int, *, marked: bool) -> str:
    colour = "#1f6feb" if marked else "#9aa4af"
    return (
        f'<text x="{LABEL - 6}" y="{top + 13}" text-anchor="end">{escape(name)}</text>'
        f'<rect x="{LABEL}" y="{top + 2}" width="{length:.0f}" height="{ROW - 5}" fill="{colour}"/>'
        f'<text x="{LABEL + length + 6:.0f}" y="{top + 13}">{value:.2f}</text>'
    )
