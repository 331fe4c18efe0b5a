"""The rule that picks a plan: one task or several, at three sizes of target. On one machine a batch is one task's
while it writes no more than `target.rewrite_limit` bytes of files anew; the other plan is the peer.

Run by `rows` as a process of its own: `plans.py FOLDER [--quick]` prints JSON. Batches are those of `apply`. Both
sides get every batch in turn and must be equal at the end; medians count, the first batch does not.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

import apply
import measure
from apply import RELATION, TABLE, Case, Side
from measure import HERE, Row, say
from tailrace.apply.targets.audit import Audited
from tailrace.apply.targets.delta.many import TaskBatch
from tailrace.apply.targets.delta.target import DeltaTarget
from tailrace.config.settings import TargetSettings
from tailrace.lake import delta as lake
from tailrace.model.change import ChangeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PEER = "the plan that is not picked: several tasks (rewrite)"


def cases(quick: bool) -> list[Case]:
    """The comparisons: three sizes of target, and few changes in the largest."""
    sizes = [(1_000, 100_000), (200_000, 2_000_000), (200_000, 20_000_000), (2_000, 20_000_000)]
    return [
        Case(f"{n:,} changes into {size:,} rows", n, size, 3 if size < 10_000_000 else 2, 0.9, limit=0)
        for n, size in [(max(20, n // 100), size // 100) if quick else (n, size) for n, size in sizes]
    ]


def rows(folder: Path, *, quick: bool) -> list[Row]:
    """The bench `plans`."""
    say("plans: the one that is picked against the other")
    command = [sys.executable, HERE / "plans.py", folder / "plans", *(["--quick"] if quick else [])]
    done = measure.run(command, log=None)
    found = json.loads(done.output.strip().splitlines()[-1])
    return [
        Row(f"{f['name']} ({f['plan']})", f["ours"], "s", PEER, f["theirs"], done.peak_mb, goal=f["goal"])
        for f in found
    ]


def picked(root: str) -> Side:
    """What the pipeline does on one machine, with default settings."""
    limit = TargetSettings().one_task(alone=True)
    target = DeltaTarget(None, root, app_id="bench", local_limit_bytes=limit)  # type: ignore[arg-type]
    after = -1

    def take(changes: ChangeTable, upto: int, counts: dict[str, int]) -> str:
        nonlocal after
        one = TaskBatch(TABLE, changes.name, target.path(TABLE), RELATION, after, upto)
        (done,) = target.merge_many([one])
        if not isinstance(done, Audited):
            raise RuntimeError(f"the batch is not one task's: {done}")
        after = upto
        return done.outcome.plan

    return Side(target.path(TABLE), take)


def compare(spark: SparkSession, case: Case, folder: Path) -> dict[str, object]:
    """Runs one case; RuntimeError when the targets differ in the end."""
    ours, theirs = picked(str(folder / "one")), apply.by_tailrace(spark, str(folder / "several"), 0)
    say(f"{case.name}: filling")
    apply.fill(spark, case, [theirs.path, ours.path])
    for number in range(case.batches + 1):
        path = str(folder / f"batch-{number}")
        changes, upto, counts = apply.batch(spark, case, number, path)
        lake.append(f"{path}-ct", pq.read_table(path))
        made = replace(changes, name=f"{path}-ct"), upto, counts
        for side in (theirs, ours) if number % 2 else (ours, theirs):
            side.take(*made)
        say(
            f"{case.name}: {ours.seconds[-1]:.2f} s ({ours.plan}), {theirs.seconds[-1]:.2f} s ({theirs.plan})"
        )
    load = spark.read.format("delta").load
    apply.same(load(ours.path), load(theirs.path), case.name)
    medians = [statistics.median(side.seconds[1:]) for side in (ours, theirs)]
    return {"name": case.name, "plan": ours.plan, "ours": medians[0], "theirs": medians[1], "goal": case.goal}


def main(folder: str, *flags: str) -> None:
    """Runs every case in one session."""
    from tailrace.runtime.session import session

    spark = session("bench plans")
    todo = cases("--quick" in flags)
    found = [compare(spark, case, Path(folder) / str(k)) for k, case in enumerate(todo)]
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
