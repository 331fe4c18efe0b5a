"""From a commit at the source until its row can be read in the target, with `freshness: 1s`; and what an idle
task costs.

A writer commits 20 transactions a second, an insert and an update each. The insert's row can be read from the time
of the first target version on that has it. Both clocks are this machine's.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import psycopg
from deltalake import DeltaTable

import load
import tasks
from measure import Row, say
from tailrace.config.task import Task
from tailrace.lake import delta as lake
from tailrace.lake.log_retention import committed_at
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres

TABLE = "public.fresh"
A_SECOND = 20
WARM_S, IDLE_S = 20.0, 20.0


def rows(running: EmbeddedPostgres, folder: Path, *, quick: bool) -> list[Row]:
    """The bench `fresh`."""
    session = load.database(running, "fresh")
    session.execute("create table public.fresh (id bigint primary key, note text, n int)")
    session.execute("insert into public.fresh select -i, 'old', 0 from generate_series(1, 10000) i")
    file = tasks.write(folder, "fresh", running.tcp_url("fresh"), (TABLE,), freshness="1s")
    task = tasks.load(file)
    with (folder / "fresh.log").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", "run", str(file)], stdout=said, stderr=said
        )
        try:
            _until_it_follows(session, task)
            seconds = 20.0 if quick else 120.0
            say(f"{A_SECOND} transactions a second for {seconds:.0f} s")
            _write(session, WARM_S, 10**9)
            written = _write(session, seconds, 0)
            _until(task, max(written))
            late = _latencies(task.target_path(TABLE), written)
            stored = _latencies(task.changes_path(TABLE), written)
            say(f"nothing for {IDLE_S:.0f} s")
            idle = _idle(process)
        finally:
            process.terminate()
            process.wait(60)
    return [
        Row("commit to target, median", float(np.percentile(late, 50)), "s", goal=1.5),
        Row("commit to target, 99 %", float(np.percentile(late, 99)), "s", goal=3.0),
        Row("commit to `current`, median", float(np.percentile(stored, 50)), "s"),
        Row("commit to `current`, 99 %", float(np.percentile(stored, 99)), "s"),
        Row("an idle task, both halves", 100 * idle, "% of a core", goal=5.0),
    ]


def _until_it_follows(session: psycopg.Connection[object], task: Task) -> None:
    session.execute("insert into public.fresh values (0, 'first', 0)")
    _until(task, 0)


def _until(task: Task, key: int) -> None:
    end = time.monotonic() + 180
    while key not in _ids(task.target_path(TABLE), None):
        if time.monotonic() > end:
            raise TimeoutError(f"row {key} did not come")
        time.sleep(0.5)


def _ids(path: str, version: int | None) -> set[int]:
    if not lake.exists(path):
        return set()
    return set(DeltaTable(path, version=version).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def _write(session: psycopg.Connection[object], seconds: float, first: int) -> dict[int, float]:
    """Commits for so long; gives key -> when its commit had returned."""
    written: dict[int, float] = {}
    began = time.monotonic()
    for k in range(int(seconds * A_SECOND)):
        threading.Event().wait(max(began + k / A_SECOND - time.monotonic(), 0.0))
        with session.transaction():
            session.execute("insert into public.fresh values (%s, 'new', %s)", (first + k + 1, k))
            session.execute("update public.fresh set n = %s where id = %s", (k, -(k % 10000) - 1))
        written[first + k + 1] = time.time()
    return written


def _latencies(path: str, written: dict[int, float]) -> list[float]:
    """Of the target, or of the change table: `current` has a row once that has its change."""
    late: list[float] = []
    left, begin = set(written), min(written.values())
    for version in range(lake.version(path) + 1):
        at = committed_at(path, version).timestamp()
        if not left or at < begin:
            continue
        come = left & _ids(path, version)
        late += [at - written[key] for key in come]
        left -= come
    return late


def _idle(process: subprocess.Popen[bytes]) -> float:
    """The share of a core that a process and its children use while nothing happens."""
    time.sleep(5)

    def used() -> float:
        everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in everyone)

    before, began = used(), time.monotonic()
    time.sleep(IDLE_S)
    return (used() - before) / (time.monotonic() - began)
