"""Apply alone, as a pipeline does it or given a DataFrame (`DeltaTarget.apply`), against a hand-written foreachBatch MERGE, same session, same batches.

Run by `rows` as a process of its own: `apply.py FOLDER [--quick]` prints JSON. A batch is a change table in a
parquet file: 45 % inserts of new keys, 10 % deletes, the rest updates of random rows (some twice). The
targets of both sides get every batch in turn and must be equal at the end; medians count, the first batch
does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

import measure
from measure import HERE, Row, say
from tailrace.config.settings import TargetSettings
from tailrace.lake import delta as lake
from tailrace.model.change import ChangeTable, Column, Relation
from tailrace.model.positions import ChangeRange
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.merge_result import MergeResult
from tailrace.targets.merge_rows import merge_rows

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

PEER = "hand-written MERGE (row_number, DeltaTable.merge)"
TABLE = "bench.line"
RELATION = Relation(
    1, "bench", "line", "d",
    (
        Column("id", 1, "bigint", "int8", "bigint", key=True),
        Column("name", 2, "text", "text", "string"),
        Column("amount", 3, "numeric(12,2)", "numeric", "decimal(12,2)"),
        Column("at", 4, "timestamp with time zone", "timestamptz", "timestamp"),
        Column("note", 5, "text", "text", "string"),
    ),
)  # fmt: skip
NAMES = [c.name for c in RELATION.columns]
Apply = Callable[[ChangeTable, int, dict[str, int]], str]
Sides = Callable[["SparkSession", "Case", Path], "tuple[Side, Side]"]
"""Makes the two sides of a case, ours first, in a folder."""


@dataclass(frozen=True)
class Case:
    """One comparison: so many changes into a table of so many rows, `batches` times after a first one.

    `limit`: the setting `target.local_limit`; 0 has several tasks merge, None is the default. `given`: the
    changes are a DataFrame; otherwise they are read from a change table, as a pipeline does it.
    """

    name: str
    changes: int
    rows: int
    batches: int
    goal: float
    deletes: bool = True
    limit: int | None = None
    given: bool = False


def cases(quick: bool) -> list[Case]:
    """The comparisons, at full or small size."""
    large, many = (2_000_000, 200_000) if not quick else (100_000, 10_000)
    small, few = (100_000, 1_000) if not quick else (10_000, 200)
    huge, scattered = (20_000_000, 2_000) if not quick else (200_000, 100)
    tasks, given = "by several tasks", ", given as a DataFrame"
    apply = "apply of {:,} changes into {:,} rows"
    return [
        Case(apply.format(many, large), many, large, 4, 4.5),
        Case(apply.format(few, small), few, small, 7, 9),
        Case(apply.format(many, large) + given, many, large, 4, 3, given=True),
        Case(apply.format(few, small) + given, few, small, 7, 5, given=True),
        Case(f"the same {many:,}, {tasks}, no deletes", many, large, 3, 3, deletes=False, limit=0),
        Case(f"the same {many:,}, {tasks}, with deletes", many, large, 3, 3, limit=0),
        Case(f"the same {many:,}, {tasks}, with deletes{given}", many, large, 3, 2, limit=0, given=True),
        Case(f"{many:,} changes into {huge:,} rows, {tasks}", many, huge, 2, 4, limit=0),
        Case(f"{scattered:,} scattered changes into {huge:,} rows, {tasks}", scattered, huge, 2, 3, limit=0),
    ]


def rows(folder: Path, *, quick: bool) -> list[Row]:
    """The bench `apply`."""
    say("apply, against a hand-written MERGE")
    return measured("apply.py", PEER, folder / "apply", quick=quick)


def measured(program: str, peer: str, folder: Path, *, quick: bool) -> list[Row]:
    """The rows of a program that ends with `main`."""
    command = [sys.executable, HERE / program, folder, *(["--quick"] if quick else [])]
    done = measure.run(command, log=None)
    found = json.loads(done.output.strip().splitlines()[-1])
    return [
        Row(f"{f['name']} ({f['plan']})", f["ours"], "s", peer, f["theirs"], done.peak_mb, goal=f["goal"])
        for f in found
    ]


class Side:
    """One side of a case: its Delta table, how it applies a batch, the seconds of each; `ready`: what it does
    with a batch's changes before the clock starts."""

    def __init__(self, path: str, apply: Apply, ready: Callable[[ChangeTable], object] | None = None) -> None:
        self.path, self.apply, self.ready = path, apply, ready or (lambda _: None)
        self.seconds: list[float] = []
        self.plan = ""

    def take(self, changes: ChangeTable, upto: int, counts: dict[str, int]) -> None:
        """Applies a batch and keeps the time it took."""
        began = time.perf_counter()
        self.plan = self.apply(changes, upto, counts)
        self.seconds.append(time.perf_counter() - began)


def by_hand(spark: SparkSession, path: str) -> Side:
    """What one writes into foreachBatch: newest change of each key, then MERGE."""
    from delta.tables import DeltaTable
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    def apply(changes: ChangeTable, upto: int, counts: dict[str, int]) -> str:
        newest = Window.partitionBy("id").orderBy(F.desc("header__change_seq"))
        last = changes.df.withColumn("n", F.row_number().over(newest)).where("n = 1")
        values: dict[str, str | SparkColumn] = {name: f"s.{name}" for name in NAMES}
        (
            DeltaTable.forPath(spark, path).alias("t")
            .merge(last.alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.header__change_oper = 'D'")
            .whenMatchedUpdate(set=values)
            .whenNotMatchedInsert("s.header__change_oper <> 'D'", values=values)
            .execute()
        )  # fmt: skip
        return "merge"

    return Side(path, apply)


def by_tailrace(spark: SparkSession, root: str, limit: int) -> Side:
    """The target, given DataFrames."""
    target = DeltaTarget(spark, root, app_id="bench", local_limit_bytes=limit)

    def apply(changes: ChangeTable, upto: int, counts: dict[str, int]) -> str:
        batch = ChangeBatch(TABLE, RELATION, ChangeRange(None, upto), counts=counts)
        return merge_rows(target, changes, batch, root).plan

    return Side(target.path(TABLE), apply)


def picked(root: str, limit: int) -> Side:
    """What the pipeline does on one machine; the changes are in a change table first."""
    target = DeltaTarget(None, root, app_id="bench", local_limit_bytes=limit)  # type: ignore[arg-type]
    start: int | None = None

    def take(changes: ChangeTable, upto: int, counts: dict[str, int]) -> str:
        nonlocal start
        one = ChangeBatch(
            TABLE, RELATION, ChangeRange(start, upto), f"{changes.name}-ct", counts=counts,
            target=target.path(TABLE),
        )  # fmt: skip
        (done,) = target.merge([one])
        if not isinstance(done, MergeResult):
            raise RuntimeError(f"the batch is not what tasks read themselves: {done}")
        start = upto
        return done.outcome.plan

    def ready(changes: ChangeTable) -> None:
        lake.append(f"{changes.name}-ct", pq.read_table(changes.name))

    return Side(target.path(TABLE), take, ready)


def fill(spark: SparkSession, case: Case, paths: Sequence[str]) -> None:
    """The rows that are there before: ids from 0."""
    source = spark.range(case.rows).selectExpr(
        "id", "'name ' || id name", "cast(id * 1.25 as decimal(12,2)) amount", "timestamp'2026-01-01' at",
        "md5(cast(id as string)) note",
    )  # fmt: skip
    for path in paths:
        source.write.format("delta").save(path)


def batch(spark: SparkSession, case: Case, number: int, path: str) -> tuple[ChangeTable, int, dict[str, int]]:
    """Batch `number` (from 0): changes, in the files of `path`, which they are named; the change number it
    reaches, counts of its operations.

    Every tenth id is there to be deleted, each by one batch; updates take random ids among the others.
    """
    n, first = case.changes, number * case.changes
    seq = f"'2026112100000000' || lpad(cast({first} + id + 1 as string), 19, '0')"
    deletes = n // 10 if case.deletes else 0
    inserts = n * 45 // 100
    new, gone = case.rows + number * inserts, number * deletes
    # 20 changes in a row: 9 inserts (ids 0-2, 4-8 and 19), 2 deletes (3, 13), 9 updates.
    kind = (
        f"case when id % 20 in (3, 13) and {deletes} > 0 then 'D' "
        "when id % 20 in (0, 1, 2, 4, 5, 6, 7, 8, 19) then 'I' else 'U' end"
    )
    key = f"""case oper
        when 'D' then 10 * (({gone} + (id div 10)) * 7919 % {case.rows // 10}) + 7
        when 'I' then {new} + row
        else cast(rand({number + 1}) * {case.rows // 10} as bigint) * 10 + id % 7 end"""
    place = "(id div 20) * 9 + least(8, if(id % 20 < 3, id % 20, id % 20 - 1))"
    df = (
        spark.range(n)
        .selectExpr("id", f"{kind} oper", f"{place} row", f"{seq} seq")
        .selectExpr("id n", "oper", "seq", f"{key} id")
    )
    data = ["'name x' || n", "cast(n as decimal(12,2))", "timestamp'2026-01-02'", "md5(cast(n as string))"]
    values = [f"if(oper = 'D', null, {v}) {c}" for v, c in zip(data, NAMES[1:], strict=True)]
    df.selectExpr("seq header__change_seq", "oper header__change_oper", "id", *values).write.parquet(path)
    made = spark.read.parquet(path)
    found = {r[0]: r[1] for r in made.groupBy("header__change_oper").count().collect()}
    counts = {k: found.get(k, 0) for k in "IUDT"} | {"key_changes": 0, "absent": 0}
    return ChangeTable(made, ["id"], NAMES, name=path), first + n, counts


def against_merge(spark: SparkSession, case: Case, folder: Path) -> tuple[Side, Side]:
    """The sides of this bench: ours, theirs."""
    mine = str(folder / "by-tailrace")
    limit = TargetSettings(local_limit=case.limit).one_task
    ours = by_tailrace(spark, mine, limit) if case.given else picked(mine, limit)
    return ours, by_hand(spark, str(folder / "by-hand"))


def compare(spark: SparkSession, case: Case, folder: Path, sides: Sides) -> dict[str, object]:
    """Runs one case, its sides in turns; RuntimeError when the targets differ in the end."""
    ours, theirs = sides(spark, case, folder)
    say(f"{case.name}: filling")
    fill(spark, case, [theirs.path, ours.path])
    for number in range(case.batches + 1):
        made = batch(spark, case, number, str(folder / f"batch-{number}"))
        for side in (theirs, ours) if number % 2 else (ours, theirs):
            side.ready(made[0])
            settle()
            side.take(*made)
        told = [f"{side.seconds[-1]:.2f} s ({side.plan})" for side in (ours, theirs)]
        say(f"{case.name}: {told[0]}, the other side {told[1]}")
    load = spark.read.format("delta").load
    same(load(ours.path), load(theirs.path), case.name)
    medians = [statistics.median(side.seconds[1:]) for side in (ours, theirs)]
    return {"name": case.name, "plan": ours.plan, "ours": medians[0], "theirs": medians[1], "goal": case.goal}


def settle() -> None:
    """Waits until what came before is over: pages on their way to the disk, the JVM's compiler and collector
    at work. Otherwise the side that follows pays for it."""
    os.sync()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        before = busy()
        time.sleep(0.2)
        if busy() - before < 0.02:
            return


def busy() -> float:
    """CPU seconds of this process and those it started."""
    ticks = 0
    for pid in measure.tree(os.getpid()):
        with contextlib.suppress(OSError):
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def same(left: DataFrame, right: DataFrame, name: str) -> None:
    one, other = left.select(*NAMES), right.select(*NAMES)
    if one.exceptAll(other).limit(1).count() or other.exceptAll(one).limit(1).count():
        raise RuntimeError(f"{name}: the targets differ")


def main(todo: Sequence[Case], sides: Sides, folder: str) -> None:
    """Runs every case in one session, and prints what was found as JSON."""
    from tailrace.runtime.session import session

    spark = session("bench apply")
    found = [compare(spark, case, Path(folder) / str(k), sides) for k, case in enumerate(todo)]
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(cases("--quick" in sys.argv), against_merge, sys.argv[1])
