"""Draws a plot of a task's lag and throughput, as SVG, from its ledgers, without a plotting package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ..config.task import Task
from ..state import ledger

WIDTH, PANEL, MARGIN = 720, 170, 60
COLOURS = ("#1f77b4", "#d62728")
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """A line of points (seconds since the start, value)."""

    title: str
    points: Points
    steps: bool = False


def plot(task: Task, path: Path) -> Path:
    """Draws a run: seconds from commit to target for each apply batch, changes stored in each second."""
    panels = _panels(task)
    path.write_text(svg(panels), "utf-8")
    return path


def _panels(task: Task) -> list[Panel]:
    applied = [r for r in ledger.read_applied(task.control_path("applied")) if r["table"] is None]
    stored = list(ledger.read_stored(task.control_path("stored")))
    times = [r["committed_at"] for r in applied if r["committed_at"]] + [b.commit_time for b in stored]
    if not times:
        return [Panel("nothing was applied", [])]
    start = min(times)
    lag = [
        ((r["applied_at"] - start).total_seconds(), (r["applied_at"] - r["committed_at"]).total_seconds())
        for r in applied
        if r["committed_at"]
    ]
    rates: dict[int, float] = {}
    for batch in stored:
        second = int((batch.commit_time - start).total_seconds())
        rates[second] = rates.get(second, 0.0) + batch.rows
    every = range(max(rates, default=0) + 2)
    return [
        Panel("seconds from commit to target", lag),
        Panel("rows stored per second", [(float(s), rates.get(s, 0.0)) for s in every], steps=True),
    ]


def svg(panels: Sequence[Panel]) -> str:
    """Returns the panels, one below the other, over the same seconds.

    >>> svg([Panel("a & b", [(0, 1), (2, 3)])]).count("<path")
    1
    """
    end = max([x for one in panels for x, _ in one.points], default=0.0) or 1.0
    height = len(panels) * (PANEL + MARGIN) + MARGIN // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for k, one in enumerate(panels):
        parts += _panel(one, k, end)
    return "\n".join([*parts, "</svg>", ""])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _panel(one: Panel, number: int, end: float) -> list[str]:
    top = number * (PANEL + MARGIN) + MARGIN // 2
    bottom, left, right = top + PANEL, MARGIN, WIDTH - MARGIN // 2
    most = max([y for _, y in one.points], default=0.0) or 1.0

    def at(x: float, y: float) -> str:
        return f"{left + (right - left) * x / end:.1f},{bottom - PANEL * y / most:.1f}"

    parts = [f'<text x="{left}" y="{top - 6}" font-weight="bold">{escape(one.title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - PANEL * share
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(most * share)}</text>')
        x = left + (right - left) * share
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{end * share:.0f} s</text>')
    if one.points:
        path_points = [at(*one.points[0])]
        for (_, old), (x, y) in zip(one.points[:-1], one.points[1:], strict=True):
            path_points += [at(x, old)] * one.steps + [at(x, y)]
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<path d="M{" L".join(path_points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
    return parts
