"""The cost of a task on the terminal: the interval in force, and its disk space."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text

from ..config.quantities import about
from ..operate.disk import DiskUse
from .screen_fit import Col, Fit


def freshness(pipeline: dict[str, Any]) -> list[str]:
    """The interval at which a running pipeline writes, and its limit."""
    said = pipeline.get("freshness")
    if not pipeline.get("running") or not said:
        return []
    slower = sorted(said["tables"].items(), key=lambda one: -one[1]["interval"])
    shown = [f"{table} {_every(one)}" for table, one in slower[:3]]
    shown += [f"{len(slower) - 3:,} more tables"] if len(slower) > 3 else []
    return [f"changes are written every {_every(said)}" + (f"; {', '.join(shown)}" if shown else "")]


def _every(said: dict[str, Any]) -> str:
    """An interval, and its limit."""
    why = f": limited by {said['reason']}" if said["reason"] else ""
    return f"{said['interval']:g} s{why}"


def disk(use: DiskUse) -> Group:
    """A task's disk space by kind, its growth, and when the disk is full."""
    shown = Fit([Col("space"), Col("bytes", right=True), Col("", right=True)])
    for kind, words in DISK_KINDS.items():
        shown.add(words, f"{use.sizes[kind]:,}", about(use.sizes[kind]))
    shown.add("total", f"{use.total:,}", about(use.total))
    grows = "its growth is not known yet (after an hour)"
    if use.growth is not None:
        grows = f"it grows by {about(max(use.growth, 0))} a day"
    full = "" if use.days_left is None else f": the disk is full in {use.days_left:,.0f} days"
    free = "" if use.free is None else f"{about(use.free)} are free; "
    line = f"{use.files:,} files; {free}{grows}{full}"
    return Group(shown, Text(line, overflow="fold"))


DISK_KINDS = {
    "live": "targets, newest version",
    "past": "targets, past versions",
    "changes": "change tables, TRACKING",
    "log": "LOG",
    "keylog": "key log",
    "others": "control tables and others",
}
