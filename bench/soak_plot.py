"""Draws the samples of a soak: memory, files and disk space over time.

python bench/soak_plot.py SAMPLES.json PLOT.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, LEFT, GAP = 720, 130, 70, 48
PANELS = (
    ("memory of all processes, MB", lambda one: one["rss"] / 2**20),
    ("files of home and target", lambda one: one["files"]),
    ("disk space of home and target, MB", lambda one: one["disk"] / 1e6),
)


def svg(samples: Sequence[dict[str, float]]) -> str:
    """The plot as SVG."""
    minutes = [(one["at"] - samples[0]["at"]) / 60 for one in samples]
    panels = [
        _panel(at, title, minutes, [value(one) for one in samples])
        for at, (title, value) in enumerate(PANELS)
    ]
    height = len(PANELS) * (HEIGHT + GAP) + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" '
        'font-family="sans-serif" font-size="12" fill="#666">'
    )
    return "\n".join([head, *panels, "</svg>", ""])


def _panel(at: int, title: str, minutes: Sequence[float], values: Sequence[float]) -> str:
    top, most, end = 24 + at * (HEIGHT + GAP), max(values) * 1.1, minutes[-1]
    points = " ".join(
        f"{LEFT + WIDTH * x / end:.1f},{top + HEIGHT * (1 - y / most):.1f}"
        for x, y in zip(minutes, values, strict=True)
    )
    lines = [f'<text x="{LEFT}" y="{top - 8}">{title}</text>']
    lines += [
        f'<text x="{LEFT - 6}" y="{top + HEIGHT * (1 - share) + 4:.0f}" text-anchor="end">{most * share:,.0f}</text>'
        for share in (0, 0.5, 1)
    ]
    lines += [
        f'<text x="{LEFT + WIDTH * x / end:.0f}" y="{top + HEIGHT + 15}" text-anchor="middle">{x} min</text>'
        for x in range(0, int(end) + 1, 20)
    ]
    lines.append(
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>'
        f'<polyline points="{points}" fill="none" stroke="#2a78b8" stroke-width="1.5"/>'
    )
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(svg(json.loads(Path(sys.argv[1]).read_text())))
