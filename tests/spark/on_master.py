"""Batches for a large target, applied under a Spark master: `python -m tests.spark.on_master MASTER FOLDER`.

Prints JSON: rows, outcomes and key log, which are the same under every master, and how many tasks each executor has
completed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.apply.rules import RulesApplier
from tailrace.apply.vendor.applier import VendorApplier
from tailrace.engine.rules import Rules
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.model import sequence
from tailrace.model.positions import ChangeRange
from tailrace.runtime.session import session
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.merge_result import MergeResult
from tailrace.testing.changes import Image, change_table

from ..unit.test_merge_shards import CHANGES as STORED
from ..unit.test_merge_shards import RELATION, ROWS, Change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = {"I": 0, "U": 1_000, "D": 1, "T": 0, "key_changes": 1, "absent": 0}
VARYING = {"keylog_ts", "insert_ts", "change_row_timestamp"}
CHANGES: list[Change] = [
    *((n, "U", 3 * n, "b") for n in range(1, 1_000)),
    (1_000, "D", 5, None),
    (1_001, "B", 7, "a"),
    (1_001, "U", 70_000, "moved"),
]


def filled(target: DeltaTarget) -> str:
    """A target of four files with 1,000 rows each."""
    path = target.path("s.t")
    for first in range(0, 4_000, 1_000):
        ids = list(range(first, first + 1_000))
        lake.append(path, pa.table([ids, ["a"] * len(ids)], schema=ROWS))
    return path


def in_place(spark: SparkSession, root: Path) -> dict[str, Any]:
    """Changes that stay in their change table."""
    target = DeltaTarget(spark, f"{root}/lake", app_id="x", local_limit_bytes=0)
    path, rows = (
        filled(target),
        [(sequence.make(1_700_000_000_000_000, n), oper, f"{n:040X}", key, v) for n, oper, key, v in CHANGES],
    )
    lake.append(f"{root}/changes", pa.table(list(map(list, zip(*rows, strict=True))), schema=STORED))
    batch = ChangeBatch("s.t", RELATION, ChangeRange(0, 1_001), f"{root}/changes", counts=COUNTS, target=path)
    (done,) = target.merge([batch])
    assert isinstance(done, MergeResult), done
    one = done.outcome
    return {"outcome": [one.inserted, one.updated, one.deleted, one.plan], "rows": rows_of(path)}


def under_rules(spark: SparkSession, root: Path) -> dict[str, Any]:
    """Changes that rules decide in shards, with a key log."""
    target = DeltaTarget(spark, f"{root}/lake", app_id="x", local_limit_bytes=0)
    path = filled(target)
    images = [Image(n, o, {"id": k} if v is None else {"id": k, "v": v}) for n, o, k, v in CHANGES]
    images.append(Image(1_002, "U", {"id": 5, "v": "gone"}))
    log = KeyLog(f"{root}/keylog", app_id="x", run_id="1")
    rules = Rules.of("strict", {"update_missing": "log"})
    under = RulesApplier(target, rules, root=f"{root}/rules", task="t", keylog=log)
    done = VendorApplier(under, f"{root}/rules").apply(
        change_table(spark, images, columns={"id": "int", "v": "string"}, name="s.t")
    )
    logged = lake.read(f"{root}/keylog").drop_columns(list(VARYING)).sort_by("change_row_counter")
    return {
        "outcome": [done.end, dict(done.counts), dict(done.conflicts), done.flagged, done.outcome.plan],
        "rows": rows_of(path),
        "key log": [{k: str(v) for k, v in row.items()} for row in logged.to_pylist()],
    }


def rows_of(path: str) -> list[list[Any]]:
    """The rows of a table, in order of the key."""
    return [list(row.values()) for row in lake.read(path).sort_by("id").to_pylist()]


def applied(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Both."""
    return {"in place": in_place(spark, folder / "place"), "rules": under_rules(spark, folder / "rules")}


def main(master: str, folder: str) -> None:
    """Both, and the tasks that executors have completed since."""
    spark = session("batches", master=master)
    found = applied(spark, Path(folder))
    listed = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    executors = [listed.apply(n) for n in range(listed.size())]
    tasks = {e.id(): e.completedTasks() for e in executors}
    print(json.dumps({"found": found, "tasks": tasks}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
