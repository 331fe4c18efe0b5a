"""`make bench`: every bench in one run, one table, and `bench/results/latest.json`.

    python bench/run.py [--only capture,decode,store,way,apply,plans,transaction,...] [--quick] [--folder F]

Figures mean something on an idle machine, at full size; `--quick` only shows that everything works.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import apply
import capture
import cost
import decode
import executors
import formats
import fresh
import keylog
import load
import plans
import queries
import report
import stores
import tables
import whole_way
from measure import Row, say
from setup import peer_python
from tailrace.runtime.java import ensure_java
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres


class Benches:
    """What benches share: the server, the sizes, a folder, and backlogs made when first asked for."""

    def __init__(self, running: EmbeddedPostgres, folder: Path, quick: bool, store: bool) -> None:
        self.running, self.folder, self.quick, self._store = running, folder, quick, store
        self.sizes = load.QUICK if quick else load.FULL

    @cached_property
    def bulk(self) -> capture.Bulk:
        """The backlog `bulk`."""
        return capture.Bulk(self.running, self.folder, self.sizes, store=self._store)

    def capture(self) -> list[Row]:
        """Capture to LOG."""
        return capture.rows(self.bulk)

    def decode(self) -> list[Row]:
        """Decode alone."""
        return decode.rows(self.bulk)

    def store(self) -> list[Row]:
        """Capture and store."""
        return whole_way.store(self.bulk)

    def way(self) -> list[Row]:
        """The whole way to the targets."""
        return whole_way.way(self.running, self.folder, self.sizes)

    def apply(self) -> list[Row]:
        """Apply alone."""
        return apply.rows(self.folder, quick=self.quick)

    def plans(self) -> list[Row]:
        """The rule that picks a plan."""
        return plans.rows(self.folder, quick=self.quick)

    def keylog(self) -> list[Row]:
        """The key log's cost."""
        return keylog.rows(self.running, self.folder, quick=self.quick)

    def tables(self) -> list[Row]:
        """Many small tables."""
        return tables.rows(self.running, self.folder, quick=self.quick)

    def formats(self) -> list[Row]:
        """Vendor formats."""
        return formats.rows(self.folder, quick=self.quick)

    def queries(self) -> list[Row]:
        """Questions."""
        return queries.rows(self.folder, quick=self.quick)

    def fresh(self) -> list[Row]:
        """From commit to target, and idle."""
        return fresh.rows(self.running, self.folder, quick=self.quick)

    def cost(self) -> list[Row]:
        """What a running task costs."""
        return cost.rows(self.running, self.folder, quick=self.quick)

    def executors(self) -> list[Row]:
        """One executor against two."""
        return executors.rows(self.running, self.folder, quick=self.quick)

    def stores(self) -> list[Row]:
        """Delta and Iceberg, in a folder and in an S3 server."""
        return stores.rows(self.running, self.folder, quick=self.quick)

    def transaction(self) -> list[Row]:
        """One very large transaction."""
        return capture.one_transaction(self.running, self.folder, self.sizes)


NAMES = (
    "capture",
    "decode",
    "store",
    "way",
    "apply",
    "plans",
    "transaction",
    "keylog",
    "tables",
    "formats",
    "queries",
    "fresh",
    "executors",
    "cost",
    "stores",
)


def main() -> int:
    """Runs the benches asked for; 1 when a goal was missed in a full run."""
    asked = _arguments()
    ensure_java()
    peer_python()
    began, busy = time.monotonic(), report.load_average()
    folder = Path(asked.folder or tempfile.mkdtemp(prefix="tailrace-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with load.server(folder / "pg") as running:
            benches = Benches(running, folder, asked.quick, "store" in asked.only)
            rows = list(_all(benches, asked.only))
    finally:
        if not asked.folder:
            shutil.rmtree(folder, ignore_errors=True)
    size = "quick: smoke test, no measurement" if asked.quick else "full size"
    took = time.monotonic() - began
    caption = f"{report.machine()}; load average at the start {busy:.2f}; {size}; {took:.0f} s in all"
    report.show(rows, f"tailrace bench, {time.strftime('%Y-%m-%d')}", caption)
    report.write(rows)
    return int(not asked.quick and any(row.reached is False for row in rows))


def _all(benches: Benches, only: list[str]) -> Iterator[Row]:
    for name in only:
        say(f"bench {name} (load average {report.load_average():.2f})")
        bench: Callable[[], list[Row]] = getattr(benches, name)
        yield from bench()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="tailrace against its peers, in one run")
    parser.add_argument("--only", default=",".join(NAMES), help="benches, with commas between")
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    parser.add_argument("--folder", help="where to work, kept afterwards; a temporary folder by default")
    asked = parser.parse_args()
    asked.only = [name for name in asked.only.split(",") if name]
    if wrong := set(asked.only) - set(NAMES):
        parser.error(f"no such bench: {', '.join(sorted(wrong))}; there are {', '.join(NAMES)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
