"""The report: one table on the terminal, and `bench/results/latest.json`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from measure import HERE, Row
from tailrace.config.machine import cores, memory_bytes

RESULTS = HERE / "results" / "latest.json"


def machine() -> str:
    """The kind of machine, and how busy it was: figures taken while other work ran say little."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return f"{cores()} cores ({model}), {memory_bytes() / 2**30:.0f} GiB, {platform.system()}"


def load_average() -> float:
    """Processes that wanted a core over the last minute; 0 where it cannot be told."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def show(rows: Sequence[Row], title: str, caption: str) -> None:
    """Prints the table."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("bench", overflow="fold")
    for name in ("tailrace", "unit", "peer's", "ratio", "goal", "peak MB"):
        table.add_column(name, justify="left" if name == "unit" else "right", no_wrap=True)
    table.add_column("peer", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row))
    Console(width=None if os.isatty(1) else 150).print(table)


def _cells(row: Row) -> list[str]:
    goal = "" if row.goal is None else f"{row.goal:g}" + ("x" if row.peer else f" {row.unit}")
    if row.reached is not None:
        goal = f"[{'green' if row.reached else 'red'}]{goal}[/]"
    return [
        row.bench, _number(row.value), row.unit, _number(row.peer_value),
        "" if row.ratio is None else f"{row.ratio:.2f}x", goal, _number(row.peak_rss_mb), row.peer or "",
    ]  # fmt: skip


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def write(rows: Sequence[Row]) -> None:
    """Writes the JSON file: a list of `{bench, value, unit, peer, peer_value, ratio, peak_rss_mb}`."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps([row.as_dict() for row in rows], indent=2) + "\n")
