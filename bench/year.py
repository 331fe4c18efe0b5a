"""A task after a simulated year: what it takes to look at it, and to begin again.

    python bench/year.py [--batches 2000000] [--tables 300]

Prints seconds and the process's memory (MB, the most it had) after each step; each step runs in a process of
its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = ("make", "status", "export", "start", "upkeep")


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--batches", type=int, default=2_000_000)
    asked.add_argument("--tables", type=int, default=300)
    asked.add_argument("--home", default="")
    asked.add_argument("--step", choices=STEPS)
    given = asked.parse_args()
    if given.step:
        print(json.dumps(step(given)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in STEPS:
            words = [sys.executable, __file__, *sys.argv[1:], "--home", folder, "--step", name]
            out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            print(name, out.strip(), flush=True)


def step(given: Any) -> dict[str, float]:
    """One step: what it took."""
    from tailrace.config.task import load

    file = Path(given.home) / "year.yaml"
    file.write_text("name: year\nhome: home\nsource: {url: 'postgresql://db/shop'}\n")
    began = time.perf_counter()
    found = {
        "make": make,
        "status": look,
        "export": export,
        "start": start,
        "upkeep": upkeep,
    }
    said = found[given.step](load(file), given)
    took = time.perf_counter() - began
    return {"seconds": round(took, 2), **said, "memory_mb": round(peak_memory() / 1e6)}


def peak_memory() -> int:
    """The most bytes that this process had; `getrusage` counts those of the process that started it, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


def make(task: Any, given: Any) -> dict[str, float]:
    from tailrace.testing import year

    size = year.Year(batches=given.batches, tables=given.tables)
    year.settled(task, size)
    return {}


def look(task: Any, given: Any) -> dict[str, float]:
    from tailrace.operate.status import status

    found = status(task)
    assert len(found.tables) == given.tables
    return {
        "status_ms": median(lambda: status(task), time.perf_counter),
        "status_cpu_ms": median(lambda: status(task), time.process_time),
    }


def export(task: Any, given: Any) -> dict[str, float]:
    from tailrace.operate.vendor_status import history_rows

    return {"slots": len(history_rows(task))}


def start(task: Any, given: Any) -> dict[str, float]:
    """What both halves read before they begin, without a session or a connection."""
    from tailrace.apply.applier import Applier
    from tailrace.apply.scheduler import Scheduler
    from tailrace.lake import log
    from tailrace.runtime.pipeline import apply_paths, store_paths
    from tailrace.state.ledger import newest_applied
    from tailrace.store.log_files import LogFiles
    from tailrace.store.writer import Store

    class Reached:
        """A target that is where its last record says; nothing else is asked of it."""

        def progress(self, table: str) -> int:
            return reached[table]

        def __getattr__(self, name: str) -> Any:
            raise NotImplementedError(name)

    reached = newest_applied(task.control_path("applied"))
    began = time.perf_counter()
    LogFiles(task.log_path, Store(store_paths(task)).begin())
    log.LogWriter(task.log_path, task.relations_path)
    log.layouts(task.relations_path)
    said = {"log_s": round(time.perf_counter() - began, 2)}
    began, cpu = time.perf_counter(), time.process_time()
    applier = Applier(
        None,  # type: ignore[arg-type]
        apply_paths(task),
        Reached(),  # type: ignore[arg-type]
        max_changes=1_000_000,
        parallel=2,
        need_baseline=True,
        scheduler=Scheduler(task.commands_path, task.control_path("errors"), task.groups),
    )
    applier.catch_up()
    said["applier_cpu_ms"] = round((time.process_time() - cpu) * 1000, 1)
    return said | {"applier_s": round(time.perf_counter() - began, 2)}


def upkeep(task: Any, given: Any) -> dict[str, float]:
    from tailrace.state.retention import trim_batches, trim_tables

    trim_tables(task)
    trim_batches(task, {})
    return {}


def median(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Milliseconds."""
    took = []
    for _ in range(9):
        began = clock()
        work()
        took.append(clock() - began)
    return round(statistics.median(took) * 1000, 1)


if __name__ == "__main__":
    main()
