"""Source against target at one common position, while the source goes on changing.

The source is read in an exported snapshot, whose position is known. The target's state at that position is
its newest version not after it, overlaid with the stored changes in between (`query.state`). Both sides are
compared by counts and checksums per bucket of keys; only buckets that differ are compared row by row.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import baseline, lake, log
from .apply.plan import SPECIAL
from .apply.reading import read_changes
from .apply.route import Routes
from .apply.segment import segments
from .apply.targets.delta_layout import reshaped
from .change import PREFIX, Relation
from .compare import TableResult, compare
from .control import ledger
from .control.tables import of_task
from .control.task import Task
from .control.totals import batches_after, last_stored
from .ddl_watch import moved_of
from .errors import ConfigError, PositionError, TableMovedError
from .nearest import meant
from .operate.consumers import consumers_of
from .query.state import state_at
from .sources.base import LogSource, Snapshot
from .validate_mapped import Made, version_before
from .validate_postgresql import HeldTarget, hold
from .validate_rules import comparable, living

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIES = 10
"""How often a validation begins anew because a table was truncated or rewritten while it was read."""
RENAMED_S = 30.0
"""How long a target that is to get another name is waited for."""


@dataclass(frozen=True)
class Difference:
    """A table that differs: what the target makes of its source, and the source's rows at a position (hex),
    as the target should have them (columns: those that were compared)."""

    result: TableResult
    made: Made
    source: DataFrame
    position: str


Amend = Callable[[Sequence[Difference]], None]
"""What may be done about differences while the source's rows are at hand."""


@dataclass(frozen=True)
class Report:
    """The results of one validation, all at one source position (hex)."""

    position: str
    tables: list[TableResult]

    @property
    def equal(self) -> bool:
        """Whether every table is equal."""
        return all(t.equal for t in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {"position": self.position, "equal": self.equal, "tables": [asdict(t) for t in self.tables]}


def validate(
    task: Task,
    spark: SparkSession,
    source: LogSource,
    *,
    tables: Sequence[str] = (),
    catch_up: Callable[[], None] | None = None,
    timeout_s: float = 120.0,
    buckets: int = 256,
    samples: int = 10,
    progress: Callable[[str], None] = lambda _: None,
    amend: Amend | None = None,
) -> Report:
    """Compares source and target of a task, table by table.

    `catch_up` is called before and after the snapshot when no process of the task is running (it must store
    and apply what the source has). Otherwise validation waits until the running task has stored up to the
    snapshot's position, at most `timeout_s` seconds (PositionError). `progress` is told each table.
    `amend` gets the tables that differ, when any does; the report says what was found before it.

    Raises:
        ConfigError: a table has no baseline yet, or there is no table to compare.
    """
    baselines = ledger.read_baselines(task.control_path("baselines"))
    states = of_task(task.orders_path, baselines)
    removed = {t for t, one in states.items() if one.member == "removed"}
    chosen = list(tables) or sorted(baselines.keys() - removed)
    wanted = comparable(task, chosen, named=bool(tables))
    if missing := [t for t in wanted if t not in baselines]:
        raise ConfigError(
            f"no baseline of {', '.join(missing)} yet",
            where=task.name,
            hint=meant(missing[0], baselines) or f"start `tailrace run` for {task.name}",
        )
    if not wanted:
        raise ConfigError(
            "nothing was compared: no table that is a copy of its source has a baseline",
            where=task.name,
            hint="`tailrace status` says how the tables stand; `tailrace run` takes their baselines",
        )
    if catch_up is not None:
        catch_up()
    wait_named(task, wanted, min(timeout_s, RENAMED_S) if catch_up is None else 0)
    moved_of(task, source)  # those that were renamed are found under the names they are known by
    for attempt in range(TRIES):
        scratch = Path(tempfile.mkdtemp(prefix="tailrace-validate-"))
        try:
            # Changes that are laid over an older version must not go meanwhile.
            kept = consumers_of(task).held("validate")
            with kept, hold(task, wanted) as held, source.snapshot() as snapshot:
                return _at(
                    task, spark, source, snapshot, held, wanted, scratch, catch_up,
                    timeout_s, buckets, samples, progress, amend,
                )  # fmt: skip
        except TableMovedError:
            if attempt + 1 == TRIES:
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    raise AssertionError("unreachable")


def _at(
    task: Task,
    spark: SparkSession,
    source: LogSource,
    snapshot: Snapshot,
    held: HeldTarget | None,
    wanted: Sequence[str],
    scratch: Path,
    catch_up: Callable[[], None] | None,
    timeout_s: float,
    buckets: int,
    samples: int,
    progress: Callable[[str], None],
    amend: Amend | None,
) -> Report:
    """Validation at one snapshot. The source is read first: the less can be truncated under us."""
    source.mark("validate")  # a record after the snapshot: once it is stored, so is all before it
    relations = {table: source.relation(table) for table in wanted}
    with readers(task.baseline.workers) as pool:
        lefts = {
            t: _source_rows(task, spark, source, snapshot, r, scratch / lake.file_name(t), pool)
            for t, r in relations.items()
        }
        files = {}
        if held is not None:
            folder = scratch / "target"
            files = {t: held.files(t, str(folder / lake.file_name(t)), pool) for t in wanted}
    if catch_up is not None:
        catch_up()
    _wait_stored(task, snapshot, timeout_s)

    sides: dict[str, tuple[Made, DataFrame]] = {}

    def one(table: str) -> TableResult:
        progress(table)
        base = None
        if held is not None:
            there = held.tables[table]
            base = rows_of_files(spark, there.layout, files[table]), there.upto
        right, overlaid, made = _target_rows(task, spark, table, snapshot, base)
        left, right = made.both(relations[table], lefts[table], right)
        sides[table] = made, left
        return compare(table, made.relation, left, right, overlaid, buckets, samples)

    with ThreadPoolExecutor(task.apply.parallel_tables) as side_by_side:
        report = Report(snapshot.position.hex().upper(), list(side_by_side.map(one, wanted)))
    if amend is not None and not report.equal:
        amend([Difference(t, *sides[t.table], report.position) for t in report.tables if not t.equal])
    return report


def readers(workers: int) -> ProcessPoolExecutor:
    """Processes that read parts of tables; they end with this one."""
    return ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=baseline.end_with, initargs=(os.getpid(),)
    )


def wait_named(task: Task, tables: Sequence[str], timeout_s: float) -> None:
    """Until the targets have the names they are about to get: whoever captures gives them those."""
    end = time.monotonic() + timeout_s
    while True:
        states = of_task(task.orders_path, ledger.read_baselines(task.control_path("baselines")))
        moving = {t: states[t].moving for t in tables if t in states and states[t].moving}
        if not moving:
            return
        if time.monotonic() > end:
            raise ConfigError(
                "; ".join(f"the target of {t} is about to be called {to}" for t, to in moving.items()),
                where=task.name,
                hint=f"start `tailrace run` for {task.name}, and validate again: the process that captures "
                "gives the name; `tailrace status` says what keeps it",
            )
        time.sleep(0.2)


def _wait_stored(task: Task, snapshot: Snapshot, timeout_s: float) -> None:
    """Until everything before the snapshot's position is in the change tables."""
    wanted = snapshot.position.hex().upper()
    end = time.monotonic() + timeout_s
    while True:
        last = last_stored(task.control_path("stored"))
        if last is not None and last.position >= wanted:
            return
        if time.monotonic() > end:
            raise PositionError(
                f"the task has stored up to {last.position if last else 'nothing'}, "
                f"validation needs {wanted}",
                where=task.name,
                hint="is `tailrace run` running, and is its lag small? see `tailrace status`",
            )
        time.sleep(0.2)


def _source_rows(
    task: Task,
    spark: SparkSession,
    source: LogSource,
    snapshot: Snapshot,
    relation: Relation,
    scratch: Path,
    pool: ProcessPoolExecutor,
) -> DataFrame:
    path = str(scratch)
    parts = source.parts(relation, task.baseline.rows_per_part)
    reader = source.part_reader()
    hidden = task.policy(relation.table).hidden(relation)  # their values are nowhere but in the source
    loads = [
        pool.submit(baseline.load_part, reader, snapshot, relation, part, path, True, hidden)
        for part in parts
    ]
    files = [f"{path}/{done.added.path}" for done in (one.result() for one in loads) if done.added]
    return rows_of_files(spark, relation, files)


def rows_of_files(spark: SparkSession, relation: Relation, files: list[str]) -> DataFrame:
    """The rows that `readers` left in parquet files."""
    ddl = ", ".join(f"`{c.name.replace('`', '``')}` {c.type}" for c in relation.columns)
    if not files:
        return spark.createDataFrame([], ddl)
    return spark.read.schema(ddl).parquet(*files)


def _target_rows(
    task: Task, spark: SparkSession, table: str, snapshot: Snapshot, held: tuple[DataFrame, int] | None
) -> tuple[DataFrame, bool, Made]:
    """The target's rows at the snapshot's position, whether changes had to be laid over a version, and what
    the target makes of the source.

    `held`: rows of a target without versions, and the change number they have reached.
    """
    from pyspark.sql import functions as F

    limit = snapshot.position.hex().upper()
    taken = ledger.read_baselines(task.control_path("baselines"))[table]
    if taken.position > limit:
        raise PositionError(f"the baseline of {table} is younger than the snapshot", hint="validate again")
    base, number = held or version_before(task, spark, taken, limit)
    base = living(task, table, base)
    last = last_stored(task.control_path("stored"))
    stored = batches_after(task.control_path("stored"), table, number)
    upto = max(number, last.upto if last else number)
    counts = {k: sum(b.tables.get(table, {}).get(k, 0) for b in stored) for k in SPECIAL}
    history = [
        one
        for one in log.history(task.relations_path).get(table, [])
        if one.from_position.hex().upper() < limit
    ]
    overlaid, routes = False, Routes.of(task, spark, record=False)
    spans = segments(history, taken, number, upto) if lake.exists(task.changes_path(table)) else []
    for span, route in routes.follow(table, spans, history, taken, number)[0]:
        if route.relation != route.before:
            base, overlaid = reshaped(base, route.before, route.relation), True
        changes = read_changes(spark, task.changes_path(table), span)
        between = changes.df.where(F.col(PREFIX + "stream_position") < limit) if changes else None
        if changes is not None and between is not None and not between.isEmpty():
            seen, mine = route.through(changes.with_df(between), counts)
            base, overlaid = state_at(base, seen, route.relation, mine), True
    follows = routes.layouts(table, history, taken, number, upto).at(upto) if history else taken.relation
    seen_last = [one.relation for one in history if one.from_position.hex().upper() >= taken.position]
    newest = seen_last[-1] if seen_last else taken.relation
    return base, overlaid, Made(newest, follows, routes.prepared(table, follows))
