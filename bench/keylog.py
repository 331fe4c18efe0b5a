"""The key log: what the full one costs of an apply, to Delta and to a database, and what a tiny batch costs
with it.

Run by `rows` as a process of its own: `keylog.py FOLDER URL [--quick]` prints JSON; `URL` is that of a server's
databases, `{}` for the name. Batches are those of the bench
`apply`, with times and masks. All sides get every batch, in turns; medians count, the first batch does not.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

import load
import measure
from apply import RELATION, TABLE, Case, batch, by_hand, fill
from measure import HERE, Row, say
from tailrace.apply.rules import RulesApplier
from tailrace.apply.vendor.applier import merge_one
from tailrace.config.settings import TargetSettings
from tailrace.engine.rules import Rules
from tailrace.keylog.key_log import KeyLog
from tailrace.lake import delta as lake
from tailrace.model.change import ChangeTable
from tailrace.model.positions import ChangeRange
from tailrace.sources.postgresql.embedded_server import EmbeddedPostgres
from tailrace.targets.base import Target
from tailrace.targets.change_batch import ChangeBatch
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.images import newer
from tailrace.targets.merge_result import MergeResult
from tailrace.targets.merge_rows import merge_rows
from tailrace.targets.postgresql.target import PostgresTarget
from tailrace.targets.scratch import scratch
from tailrace.targets.staged_changes import stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COST = 0.35
"""At most so much of an apply's time does the key log add."""
MODES = {
    "upsert": ("upsert", "off"),
    "upsert_logged": ("upsert", "all"),
    "strict": ("strict", "off"),
    "strict_logged": ("strict", "all"),
}
"""What one side is called, and its database -> mode of the rules, mode of the key log."""
Side = Callable[[ChangeTable, int, dict[str, int]], object]


def rows(running: EmbeddedPostgres, folder: Path, *, quick: bool) -> list[Row]:
    """The bench `keylog`."""
    say("key log: its cost, and a tiny batch")
    for name in MODES:
        load.database(running, name).close()
    first = next(iter(MODES))
    url = running.tcp_url(first).replace(f"/{first}", "/{}")
    command = [sys.executable, HERE / "keylog.py", folder / "keylog", url, *(["--quick"] if quick else [])]
    done = measure.run(command, log=None)
    found = json.loads(done.output.strip().splitlines()[-1])
    return [
        Row(f["name"], f["ours"], "s", f["peer"], f["theirs"], done.peak_mb, goal=f["goal"]) for f in found
    ]


def plain(spark: SparkSession, root: str) -> Side:
    """Without rules and key log, as a task applies."""
    target = DeltaTarget(spark, root, app_id="bench")

    def apply(changes: ChangeTable, upto: int, counts: dict[str, int]) -> object:
        batch = ChangeBatch(TABLE, RELATION, ChangeRange(None, upto), counts=counts)
        return merge_rows(target, changes, batch, root)

    return apply


NAMES = {"limits": "strict with limits and data errors logged"}
LIMITED = {"delete_missing": "log then suspend after 1000000", "data_error": "log"}
"""Policies that are looked at change by change."""


def under_rules(
    spark: SparkSession, root: str, mode: str, log: str, on: Mapping[str, str] | None = None
) -> Side:
    """With rules, as a task applies; `log`: a key log mode."""
    return following(spark, DeltaTarget(spark, root, app_id="bench"), root, Rules.of(mode, on), log)


def following(spark: SparkSession, target: Target, root: str, rules: Rules, log: str) -> Side:
    """What follows a task's changes into a target; the key log is `root`-log."""
    keylog = KeyLog(f"{root}-log", app_id="bench", run_id="1", mode=log)
    applier = RulesApplier(target, rules, root=root, task="t", keylog=keylog)
    start: int | None = None

    def apply(changes: ChangeTable, upto: int, counts: dict[str, int]) -> object:
        nonlocal start
        if start is None:
            applier.alter(TABLE, RELATION, RELATION)
        numbers, start = ChangeRange(start, upto), upto
        with scratch(root) as folder:
            judged = applier.judged(newer(changes, numbers.lower), RELATION)
            staged = stage(judged, RELATION, folder, ordered=target.capabilities.ordered)
            one = ChangeBatch(
                TABLE, RELATION, numbers, folder, staged=staged, counts=staged.counts,
                appends=rules.mode == "archive", target=target.path(TABLE),
            )  # fmt: skip
            if (done := merge_one(target, applier.prepared(one, 0))) is None:
                raise RuntimeError("the batch needs more memory than a merge has")
            return applier.finished(one, done)

    return apply


def in_place(root: str, mode: str, log: str) -> Side:
    """What the pipeline does on one machine: a task reads the change table itself."""
    none: Any = None  # no session
    target = DeltaTarget(none, root, app_id="bench", local_limit_bytes=TargetSettings().one_task)
    keylog = KeyLog(f"{root}-log", app_id="bench", run_id="1", mode=log)
    rules = RulesApplier(target, Rules.of(mode), root=root, task="t", keylog=keylog)
    start: int | None = None

    def apply(changes: ChangeTable, upto: int, counts: dict[str, int]) -> object:
        nonlocal start
        one = ChangeBatch(
            TABLE, RELATION, ChangeRange(start, upto), changes.name, counts=counts,
            appends=mode == "archive", target=target.path(TABLE),
        )  # fmt: skip
        ruled = None if (mode, log) == ("upsert", "off") else rules.prepared(one, 0)
        (done,) = target.merge([ruled or one])
        if not isinstance(done, MergeResult):
            raise RuntimeError(f"the batch is not what tasks read themselves: {done}")
        start = upto
        return done if ruled is None else rules.finished(ruled, done)

    return apply


def headed(made: ChangeTable) -> ChangeTable:
    """The batch as change tables are: with masks, times and a name."""
    from pyspark.sql import functions as F

    more = {
        "column_mask": F.lit(None).cast("binary"),
        "timestamp": F.expr("timestamp'2026-01-02 03:04:05.678'"),
    }
    return replace(made, df=made.df.withColumns({f"header__{n}": v for n, v in more.items()}), name=TABLE)


def kept(made: ChangeTable) -> ChangeTable:
    """The same in a change table, which it is named after."""
    lake.append(f"{made.name}-ct", headed(made).df.toArrow())
    return replace(made, name=f"{made.name}-ct")


def measured(
    spark: SparkSession,
    case: Case,
    folder: Path,
    sides: dict[str, Side],
    ready: Callable[[ChangeTable], ChangeTable] = headed,
) -> dict[str, float]:
    """Seconds of each side, whose targets are `folder`/name; `ready`: what all sides get of a batch."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(case.batches + 1):
        made, upto, counts = batch(spark, case, number, str(folder / f"batch-{number}"))
        given = ready(made)
        for name in list(sides)[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            sides[name](given, upto, counts)
            took[name].append(time.perf_counter() - began)
    found = {name: statistics.median(seconds[1:]) for name, seconds in took.items()}
    say(f"{case.name}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items()))
    return found


def cost(spark: SparkSession, case: Case, folder: Path) -> list[dict[str, object]]:
    """The full key log against none, under several rules."""
    sides: dict[str, Side] = {
        "upsert": plain(spark, str(folder / "upsert")),
        "upsert, logged": under_rules(spark, str(folder / "upsert, logged"), "upsert", "all"),
        "strict": under_rules(spark, str(folder / "strict"), "strict", "off"),
        "strict, logged": under_rules(spark, str(folder / "strict, logged"), "strict", "all"),
        "limits": under_rules(spark, str(folder / "limits"), "strict", "off", LIMITED),
        "limits, logged": under_rules(spark, str(folder / "limits, logged"), "strict", "all", LIMITED),
        "soft delete": under_rules(spark, str(folder / "soft delete"), "soft_delete", "off"),
        "soft delete, logged": under_rules(spark, str(folder / "soft delete, logged"), "soft_delete", "all"),
    }
    fill(spark, case, [DeltaTarget(spark, str(folder / n), app_id="bench").path(TABLE) for n in sides])
    took = measured(spark, case, folder, sides)
    modes = ("upsert", "strict", "limits", "soft delete")
    return [more(f"{case.name}, {NAMES.get(m, m)}", took[f"{m}, logged"], took[m]) for m in modes]


def read_in_place(spark: SparkSession, case: Case, folder: Path) -> list[dict[str, object]]:
    """The full key log against none, as a pipeline does it."""
    sides = {name: in_place(str(folder / name), mode, log) for name, (mode, log) in MODES.items()}
    fill(spark, case, [DeltaTarget(spark, str(folder / n), app_id="bench").path(TABLE) for n in sides])
    took = measured(spark, case, folder, sides, kept)
    return [more(f"{case.name}, {m}", took[f"{m}_logged"], took[m]) for m in ("upsert", "strict")]


def more(name: str, logged: float, without: float) -> dict[str, object]:
    """A row of results: what the key log adds."""
    return {
        "name": f"{name}, full key log", "ours": logged, "peer": "the same without a key log",
        "theirs": without, "goal": 1 / (1 + COST),
    }  # fmt: skip


def elsewhere(spark: SparkSession, large: Case, archive: Case, folder: Path) -> list[dict[str, object]]:
    """The full key log against none, in targets too large for one task, and in archives."""
    sides: dict[str, Side] = {}
    for name, (mode, log) in MODES.items():
        target = DeltaTarget(spark, str(folder / name), app_id="bench", local_limit_bytes=0)
        sides[name] = following(spark, target, str(folder / name), Rules.of(mode), log)
    fill(spark, large, [DeltaTarget(spark, str(folder / n), app_id="bench").path(TABLE) for n in sides])
    took = measured(spark, large, folder, sides)
    found = [more(f"{large.name}, {m}", took[f"{m}_logged"], took[m]) for m in ("upsert", "strict")]
    logs = {"off": "archive", "all": "archive, logged"}
    both = {name: under_rules(spark, str(folder / name), "archive", log) for log, name in logs.items()}
    took = measured(spark, archive, folder / "archives", both)
    found.append(more(archive.name, took["archive, logged"], took["archive"]))
    both = {
        f"{name}, in place": in_place(str(folder / f"{name}, in place"), "archive", log)
        for log, name in logs.items()
    }
    took = measured(spark, archive, folder / "archives in place", both, kept)
    # The same bytes are appended twice, in two forms: this one has no goal.
    name = f"{archive.name}, read in place"
    return [*found, more(name, took["archive, logged, in place"], took["archive, in place"]) | {"goal": None}]


def database(spark: SparkSession, case: Case, folder: Path, url: str) -> list[dict[str, object]]:
    """The full key log against none, with PostgreSQL as target."""
    sides: dict[str, Side] = {}
    for name, (mode, log) in MODES.items():
        target = PostgresTarget(spark, url.format(name), task="bench")
        target.alter(TABLE, RELATION, RELATION)
        with psycopg.connect(url.format(name), autocommit=True) as session:
            session.execute(
                f"insert into {target.path(TABLE)} select id, 'name ' || id, id * 1.25, '2026-01-01', "
                f"md5(id::text) from generate_series(0, {case.rows - 1}) id"
            )
            session.execute("analyze")
        sides[name] = following(spark, target, str(folder / name), Rules.of(mode), log)
    took = measured(spark, case, folder, sides)
    rows = [(m, took[f"{m}_logged"], took[m]) for m in ("upsert", "strict")]
    return [more(f"{case.name} of PostgreSQL, {m}", logged, without) for m, logged, without in rows]


def tiny(spark: SparkSession, case: Case, folder: Path) -> list[dict[str, object]]:
    """A few changes of a small table, with the full key log, against a hand-written MERGE without any."""
    theirs = by_hand(spark, str(folder / "by-hand"))
    ours = under_rules(spark, str(folder / "ours"), "strict", "all")
    fill(spark, case, [theirs.path, DeltaTarget(spark, str(folder / "ours"), app_id="bench").path(TABLE)])
    took = measured(spark, case, folder, {"ours": ours, "by hand": theirs.take})
    return [
        {
            "name": f"{case.name}, strict, full key log", "ours": took["ours"],
            "peer": "hand-written MERGE, no log", "theirs": took["by hand"], "goal": case.goal,
        }
    ]  # fmt: skip


def main(folder: str, url: str, *flags: str) -> None:
    """All of it, in one session."""
    from tailrace.runtime.session import session

    spark = session("bench keylog")
    large, many = (2_000_000, 200_000) if "--quick" not in flags else (100_000, 10_000)
    read = Case(f"{many:,} changes into {large:,} rows, read in place", many, large, 8, 0)
    found = read_in_place(spark, read, Path(folder, "read"))
    found += cost(
        spark, Case(f"{many:,} changes into {large:,} rows", many, large, 8, 0), Path(folder, "cost")
    )
    distributed = Case(f"{many:,} changes into {large:,} rows, several tasks", many, large, 4, 0, limit=0)
    archive = Case(f"{many:,} changes into an archive", many, large, 4, 0)
    found += elsewhere(spark, distributed, archive, Path(folder, "elsewhere"))
    name = f"{many // 2:,} changes into {large // 4:,} rows"
    found += database(spark, Case(name, many // 2, large // 4, 3, 0), Path(folder, "database"), url)
    found += tiny(spark, Case("20 changes into 10,000 rows", 20, 10_000, 11, 4), Path(folder, "tiny"))
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
