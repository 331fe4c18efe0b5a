"""What the full key log costs: the time of an apply with it against the same apply without.

    python bench/keylog.py [CHANGES] [ROWS]

A batch is a change table in Parquet, as in the bench `apply`: 45 % inserts of new keys, 10 % deletes, the rest
updates. All sides get every batch, in turns; medians count, the first batch does not. Strict rules look at
every change in any case; that is shown as a pair of its own.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from apply import TABLE, Case, batch, fill
from tailrace.apply import incoming
from tailrace.apply.keylog import KeyLog
from tailrace.apply.ruled import RuledApply
from tailrace.apply.rules import Rules
from tailrace.apply.targets.delta import DeltaTarget
from tailrace.change import ChangeTable
from tailrace.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES, ROWS, BATCHES, GOAL = 200_000, 2_000_000, 4, 1.35


def plain(spark: SparkSession, root: str) -> Callable[[ChangeTable], object]:
    """Without rules and key log."""
    target = DeltaTarget(spark, root, app_id="bench")
    return lambda changes: incoming.apply_one(target, changes, incoming.look(changes))


def ruled(spark: SparkSession, root: str, mode: str, log: str) -> Callable[[ChangeTable], object]:
    """With rules; `log`: a key log mode."""
    keylog = KeyLog(f"{root}-log", app_id="bench", run_id="1", mode=log)
    target = DeltaTarget(spark, root, app_id="bench")
    rules = Rules.of(mode)
    return RuledApply(spark, target, rules, root=root, task="t", app_id="bench", keylog=keylog).apply


def changes_of(made: ChangeTable) -> ChangeTable:
    """The batch as incoming change tables are: with masks, times and a name."""
    from pyspark.sql import functions as F

    df = made.df.withColumns(
        {
            "header__column_mask": F.lit(None).cast("binary"),
            "header__timestamp": F.expr("timestamp'2026-01-02 03:04:05.678'"),
        }
    )
    return ChangeTable(df, made.key, made.columns, name=TABLE)


def main(changes: int = CHANGES, rows: int = ROWS) -> None:
    """Prints seconds and ratios."""
    spark = session("bench keylog")
    with tempfile.TemporaryDirectory() as place:
        roots = {
            name: f"{place}/{name.replace(' ', '-')}"
            for name in ("upsert", "upsert log", "strict", "strict log")
        }
        sides = {
            "upsert": plain(spark, roots["upsert"]),
            "upsert log": ruled(spark, roots["upsert log"], "upsert", "all"),
            "strict": ruled(spark, roots["strict"], "strict", "off"),
            "strict log": ruled(spark, roots["strict log"], "strict", "all"),
        }
        case = Case("keylog", changes, rows, BATCHES, GOAL)
        fill(spark, case, [DeltaTarget(spark, root, app_id="bench").path(TABLE) for root in roots.values()])
        took: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(BATCHES + 1):
            made = changes_of(batch(spark, case, number, str(Path(place) / f"batch-{number}"))[0])
            for name in list(sides)[:: 1 if number % 2 else -1]:
                began = time.perf_counter()
                sides[name](made)
                took[name].append(time.perf_counter() - began)
        for root in (roots["upsert log"], roots["strict log"]):
            assert spark.read.format("delta").load(f"{root}-log").count() == changes * (BATCHES + 1)
        best = {name: statistics.median(seconds[1:]) for name, seconds in took.items()}
        for name, seconds in best.items():
            print(f"{name:12} {seconds:6.2f} s   {', '.join(f'{s:.2f}' for s in took[name])}")
        for mode in ("upsert", "strict"):
            print(
                f"{mode}: with the full key log / without: {best[f'{mode} log'] / best[mode]:.2f} (goal: {GOAL})"
            )
    spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
