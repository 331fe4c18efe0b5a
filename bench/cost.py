"""What a running task costs, by `freshness`: processor time, files, bytes, disk space, and how fresh targets are."""

from __future__ import annotations

from pathlib import Path

import steady
from measure import Row, say
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

SETTINGS = ("auto", "1s", "1m")
WARM_S, MEASURE_S = 120.0, 600.0


def rows(running: EmbeddedPostgres, folder: Path, *, quick: bool) -> list[Row]:
    """The bench `cost`: each setting for ten minutes, and 500 tables with the default."""
    found = []
    for setting in SETTINGS:
        found += _rows(running, folder, setting, quick=quick)
    return found + _rows(running, folder, "auto", quick=quick, small=60 if quick else 496)


def _rows(
    running: EmbeddedPostgres, folder: Path, setting: str, *, quick: bool, small: int = steady.SMALL
) -> list[Row]:
    warm, seconds = (20.0, 30.0) if quick else (WARM_S, MEASURE_S)
    name = f"cost_{setting}_{small}"
    title = f"freshness {setting}" + (f", {small + 4} tables" if small != steady.SMALL else "")
    with steady.database(running, name, folder, small=small) as url:
        say(f"{title}: {warm:.0f} s to settle, then {seconds:.0f} s")
        with steady.running(folder, name, url, freshness=setting) as task:
            load = steady.Load(url, folder / f"{name}.sql")
            try:
                steady.settle(task, warm)
                first, made, wrote = task.sample(), len(task.seen), dict(task.sizes)
                steady.settle(task, seconds)
                last = task.sample()
            finally:
                load.stop()
            steady.settle(task, 20)
            took = last.at - first.at
            written = {k: at for k, at in load.written.items() if first.at < at < last.at}
            late = steady.latencies(task.task, written)
    return [
        Row(f"{title}: processor", (last.cpu - first.cpu) / took, "cores"),
        Row(f"{title}: files", (len(task.seen) - made) / took, "a second"),
        Row(f"{title}: targets", (task.sizes["target"] - wrote["target"]) / took / 1e6, "MB a second"),
        Row(f"{title}: home", (task.sizes["home"] - wrote["home"]) / took / 1e6, "MB a second"),
        Row(f"{title}: memory", last.rss / 2**20, "MB"),
        Row(f"{title}: files on disk", float(last.files), "files"),
        Row(f"{title}: disk", last.disk / 1e6, "MB"),
        Row(f"{title}: visible after, median", steady.percentile(late, 50), "s"),
        Row(f"{title}: visible after, 99 %", steady.percentile(late, 99), "s"),
    ]
