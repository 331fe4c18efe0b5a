"""Compares source and target at one position, while the source continues to change.

The source is read in an exported snapshot, whose position is known. The target's rows at that position are
its newest version not after it, with the stored changes in between on top (`query.state`). Counts and
checksums per bucket of keys are compared, then rows in buckets that differ. All reading runs as tasks
(`execution`), in Spark or in this process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..capture.ddl_watch import moved_tables
from ..capture.part_readers import Loaded, PartLoad, PartReaders
from ..config.task import Task
from ..errors import ConfigError, PositionError, TableMovedError, TailraceError
from ..execution import thread_pool
from ..lake import delta as lake
from ..model.change import Relation
from ..model.nearest import meant
from ..model.positions import ChangeNumber
from ..model.steps import Steps
from ..operate.consumers import consumers_of, failing_in
from ..sources.base import LogSource, Snapshot
from ..state import lifecycle
from ..state.baselines import read_baselines
from ..state.layouts import policy
from ..state.totals import last_stored
from .comparable_targets import comparable_tables
from .compare import Comparison, TablePair, TableResult
from .postgresql_target import TargetSnapshot, hold_target
from .scratch import scratch_folder
from .sessions import Sessions
from .sides import LoadedRows, LoadedTarget, TableSides, TargetSide
from .table_errors import TableErrors
from .target_shape import TargetShape

KIND = "validate"
"""The kind of the jobs that read rows."""
MAX_ATTEMPTS = 10
"""The maximum number of attempts when a table is truncated, rewritten or loaded again in the meantime."""
RENAME_TIMEOUT_S = 30.0
"""Seconds to wait for the renaming of a target."""


DROPPED = "the source has no table {0} (`tailrace remove` ends its copy)"
"""Result for a table that was dropped in the source."""


@dataclass(frozen=True)
class TableDifference:
    """A table that differs: its result, the target's layouts, and both sides at a position (hex)."""

    result: TableResult
    made: TargetShape
    both: TableSides
    position: str


OnDifferences = Callable[[Sequence[TableDifference]], None]
"""Function that is called with the differences while the source's rows are available."""


@dataclass(frozen=True)
class ValidationReport:
    """The results of one validation, all at one source position (hex)."""

    position: str
    tables: list[TableResult]

    @property
    def equal(self) -> bool:
        """Whether every table is equal."""
        return all(t.equal for t in self.tables)

    def as_dict(self) -> dict[str, Any]:
        """Returns a dictionary for `--json`."""
        return {"position": self.position, "equal": self.equal, "tables": [asdict(t) for t in self.tables]}


def validate(
    task: Task,
    sessions: Sessions,
    source: LogSource,
    *,
    tables: Sequence[str] = (),
    catch_up: Callable[[], None] | None = None,
    timeout_s: float = 120.0,
    buckets: int = 256,
    samples: int = 10,
    steps: Steps | None = None,
    amend: OnDifferences | None = None,
) -> ValidationReport:
    """Compares source and target of a task, table by table.

    An error that concerns one table alone becomes that table's result (`TableResult.not_compared`).

    Args:
        task: the task.
        sessions: the Spark session, whose tasks compare large tables once it is ready.
        source: the source.
        tables: the tables; all with a baseline by default.
        catch_up: stores and applies the source's changes; called before and after the snapshot if no process
            of the task is running. If None, validation waits until the running task has stored the changes up
            to the snapshot.
        timeout_s: the maximum seconds to wait for that.
        buckets: the number of buckets of keys.
        samples: the maximum number of differing rows in a result.
        steps: receives progress messages.
        amend: called with the tables that differ, if any. The report describes the state before it.

    Raises:
        ConfigError: a table has no baseline yet, or there is no table to compare.
        PositionError: the task did not store the changes in time.
    """
    states = lifecycle.read(task)
    baselines = states.baselines
    removed = states.removed
    chosen = list(tables) or sorted(baselines.keys() - removed)
    if gone := sorted(removed.intersection(tables)):
        raise ConfigError(
            f"{', '.join(gone)} was removed from the task: its changes are no longer captured",
            where=task.name,
            hint="`tailrace add` captures it again",
        )
    wanted = comparable_tables(task, chosen, named=bool(tables))
    if missing := [t for t in wanted if t not in baselines]:
        none = [t for t in missing if t not in states and not task.source.selects(t)]
        raise ConfigError(
            f"the task has no table {', '.join(none)}"
            if none
            else f"no baseline of {', '.join(missing)} yet",
            where=task.name,
            hint=meant(missing[0], baselines)
            or "`tailrace status` lists the tables; `tailrace run` loads their baselines",
        )
    if not wanted:
        raise ConfigError(
            "nothing was compared: no table that is a copy of its source has a baseline",
            where=task.name,
            hint="`tailrace status` shows the state of the tables; `tailrace run` loads their baselines",
        )
    if catch_up is not None:
        catch_up()
    wait_for_renames(task, wanted, min(timeout_s, RENAME_TIMEOUT_S) if catch_up is None else 0)
    moved_tables(task, source)  # renamed tables are found under their known names
    for attempt in range(MAX_ATTEMPTS):
        try:
            # Changes that are applied on top of an older version must not be removed in the meantime.
            kept = consumers_of(task).held("validate", failing_in(task))
            with (
                kept,
                scratch_folder(task) as scratch,
                hold_target(task, wanted) as held,
                source.snapshot() as snapshot,
            ):
                return _at(
                    task, sessions, source, snapshot, held, wanted, scratch, catch_up,
                    timeout_s, buckets, samples, steps or Steps(), amend,
                )  # fmt: skip
        except TableMovedError:
            if attempt + 1 == MAX_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _at(
    task: Task,
    sessions: Sessions,
    source: LogSource,
    snapshot: Snapshot,
    held: TargetSnapshot | None,
    wanted: Sequence[str],
    scratch: str,
    catch_up: Callable[[], None] | None,
    timeout_s: float,
    buckets: int,
    samples: int,
    steps: Steps,
    amend: OnDifferences | None,
) -> ValidationReport:
    """Validates at one snapshot. The source is read first, so that it is less likely to be
    truncated before."""
    source.mark("validate")  # a record after the snapshot: once it is stored, all earlier changes are
    errors = TableErrors(sessions.failures)
    lefts, rights = _read(task, sessions, source, snapshot, held, wanted, scratch, errors, steps)
    if catch_up is not None:
        catch_up()
    steps.now("waiting for the changes before the snapshot to be stored")
    _wait_stored(task, snapshot, timeout_s, steps)
    limit = snapshot.position.hex().upper()
    baselines = read_baselines(task.control_path("baselines"))
    if newer := [table for table in wanted if baselines[table].position > limit]:
        raise TableMovedError(
            f"{', '.join(newer)} got a new baseline since the snapshot",
            where=task.name,
            hint="run `tailrace validate` again",
        )
    both: dict[str, TableSides] = {}

    def paired(table: str) -> TablePair:
        target = TargetSide.at(task, baselines[table], limit, rights.get(table), sessions)
        both[table] = TableSides(lefts[table], target)
        return both[table].pair(sessions, scratch)

    with thread_pool("sides", task.apply.parallel_tables) as side_by_side:
        made = list(side_by_side.map(lambda t: errors.attempt(t, lambda: paired(t)), wanted))
    results: dict[str, TableResult] = {}
    steps.done(len(wanted) - len(pairs := [pair for pair in made if pair is not None]))
    for pair, found in Comparison(sessions.tasks, scratch).compare(pairs, buckets, samples, steps.now):
        if isinstance(found, TailraceError):
            errors.record(pair.table, found)
        else:
            results[pair.table] = replace(found, as_null=both[pair.table].as_null)
        steps.done()
    report = ValidationReport(
        limit,
        [
            results.get(t) or TableResult(t, False, 0, 0, 0, 0, not_compared=errors.messages.get(t))
            for t in wanted
        ],
    )
    differ = [(t, both[t.table]) for t in report.tables if not t.equal and t.not_compared is None]
    if amend is not None and differ:
        amend([TableDifference(t, b.target.made, b, limit) for t, b in differ])
    return report


def _read(
    task: Task,
    sessions: Sessions,
    source: LogSource,
    snapshot: Snapshot,
    held: TargetSnapshot | None,
    wanted: Sequence[str],
    scratch: str,
    errors: TableErrors,
    steps: Steps,
) -> tuple[dict[str, LoadedRows], dict[str, LoadedTarget]]:
    """Reads the rows of the source, and of a PostgreSQL target, into files, all parts of all tables in
    parallel."""
    targets = {} if held is None else errors.for_each(wanted, held.table)
    there = source.columns(wanted)
    errors.messages |= {t: DROPPED.format(t) for t in wanted if t not in there}
    relations = errors.for_each(wanted, source.relation)
    parts = errors.for_each(relations, lambda t: source.parts(relations[t], task.baseline.rows_per_part))
    held_parts = sum(len(one.parts) for one in targets.values())
    steps.more(sum(map(len, parts.values())) + held_parts + len(wanted))

    def left(t: str, readers: PartReaders) -> tuple[str, list[Future[Loaded]]]:
        folder = f"{scratch}/source/{lake.file_name(t)}"
        hidden = policy(task, relations[t].table, relations[t]).hidden(
            relations[t]
        )  # their values exist only in the source
        load = PartLoad(source.part_reader(), snapshot, relations[t], folder, keep_bad=True, hidden=hidden)
        return folder, [readers.load(load, part) for part in parts[t]]

    def right(t: str, readers: PartReaders) -> tuple[str, list[Future[Loaded]]]:
        assert held is not None  # noqa: S101 - otherwise no table is held
        folder = f"{scratch}/target/{lake.file_name(t)}"
        return folder, held.load(t, folder, readers)

    with PartReaders(task.baseline.workers, sessions.background, kind=KIND) as readers:
        begun = errors.for_each(parts, lambda t: left(t, readers))
        begun_there = errors.for_each(targets, lambda t: right(t, readers))
        try:
            lefts = errors.for_each(
                begun, lambda t: collect_rows(relations[t], *begun[t], steps, f"reading {t}")
            )
            rights = errors.for_each(
                begun_there,
                lambda t: collect_rows(
                    targets[t].layout, *begun_there[t], steps, f"reading the target of {t}"
                ),
            )
        except BaseException:
            for _, futures in [*begun.values(), *begun_there.values()]:
                for one in futures:
                    one.cancel()
            raise
    return lefts, {t: LoadedTarget(rows, ChangeNumber(targets[t].upto)) for t, rows in rights.items()}


def collect_rows(
    layout: Relation, folder: str, loads: Sequence[Future[Loaded]], steps: Steps, message: str
) -> LoadedRows:
    """Waits for the parts of a table, and returns its rows."""
    steps.now(message)
    files, bad, rows = list[str](), Counter[str](), 0
    for one in loads:
        done = one.result()
        files += [f"{folder}/{done.added.path}"] if done.added else []
        bad.update(column for column, _ in done.bad)
        rows += done.rows
        steps.done()
    return LoadedRows(layout, files, bad, rows)


def wait_for_renames(task: Task, tables: Sequence[str], timeout_s: float) -> None:
    """Waits until capture has renamed targets that are about to be renamed."""
    end = time.monotonic() + timeout_s
    while True:
        states = lifecycle.read(task)
        moving = {t: states[t].moving for t in tables if states[t].moving}
        if not moving:
            return
        if time.monotonic() > end:
            raise ConfigError(
                "; ".join(f"the target of {t} is about to be renamed to {to}" for t, to in moving.items()),
                where=task.name,
                hint=f"start `tailrace run` for {task.name}, whose capture process renames the target, "
                "and validate again; `tailrace status` shows what prevents it",
            )
        time.sleep(0.2)


def _wait_stored(task: Task, snapshot: Snapshot, timeout_s: float, steps: Steps) -> None:
    """Waits until all changes before the snapshot's position are in the change tables."""
    wanted = snapshot.position.hex().upper()
    end = time.monotonic() + timeout_s
    while True:
        last = last_stored(task.control_path("stored"))
        if last is not None and last.position >= wanted:
            return
        if time.monotonic() > end:
            raise PositionError(
                f"the task has stored up to {last.position if last else 'nothing'}, validation needs "
                f"{wanted}",
                where=task.name,
                hint="check with `tailrace status` that `tailrace run` is running and its lag is small",
            )
        steps.waits()
        time.sleep(0.2)
