"""Runs the demo's load: pgbench and the shop's writer, in parallel."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..errors import SourceError
from ..sources.postgresql.embedded_server import wheel_binaries
from .shop import ShopWriter


@dataclass(frozen=True)
class ShopLoad:
    """The load of the source: transactions of pgbench and of the writer, acts, rollbacks."""

    pgbench_transactions: int
    writer_transactions: int
    acts: list[str]
    rolled_back: int


def pgbench(url: str, log: Path, *arguments: str, stop: threading.Event | None = None) -> str:
    """Runs pgbench until it ends, or `stop` is set; returns its output. SourceError if it fails."""
    stop = stop or threading.Event()
    command = [str(wheel_binaries() / "pgbench"), *arguments, url]
    with log.open("w+b") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        while running.poll() is None:
            if stop.wait(0.05):
                running.terminate()
                running.wait()
    said = log.read_text(errors="replace")
    if running.returncode and not stop.is_set():
        raise SourceError(f"pgbench failed: {said.strip()[-800:]}", where=str(log))
    return said


def load(
    url: str, folder: Path, seconds: float, *, stop: threading.Event, show: Callable[[str], None]
) -> ShopLoad:
    """Runs both for `seconds`; calls `show` with each act of the writer. `stop` ends it early."""
    acts: list[str] = []

    def record(act: str) -> None:
        acts.append(act)
        show(act)

    writer = ShopWriter(url, seconds, record)
    arguments = ("-n", "-c", "2", "-j", "1", "-T", str(max(1, round(seconds))))
    with ThreadPoolExecutor(2, thread_name_prefix="load") as pool:
        bench = pool.submit(pgbench, url, folder / "pgbench.log", *arguments, stop=stop)
        writing = pool.submit(writer.run, stop)
        said = bench.result()
        writing.result()
    counted = re.search(r"actually processed: (\d+)", said)
    return ShopLoad(int(counted[1]) if counted else 0, writer.transactions, acts, writer.rolled_back)
