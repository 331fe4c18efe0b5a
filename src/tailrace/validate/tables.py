"""Source against target at one common position, while the source goes on changing.

The source is read in an exported snapshot, whose position is known. The target's state at that position is
its newest version not after it, overlaid with the stored changes in between (`query.state`). Both sides are
compared by counts and checksums per bucket of keys; only buckets that differ are compared row by row.
Everything that reads rows runs as tasks (`execution`): in Spark, or in this process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..capture.ddl_watch import moved_of
from ..capture.part_readers import Loaded, PartLoad, PartReaders
from ..config.task import Task
from ..errors import ConfigError, PositionError, TableMovedError, TailraceError
from ..execution import thread_pool
from ..lake import delta as lake
from ..model.change import Relation
from ..model.nearest import meant
from ..model.steps import Steps
from ..operate.consumers import consumers_of, failing_in
from ..sources.base import LogSource, Snapshot
from ..state import lifecycle
from ..state.baselines import read_baselines
from ..state.layouts import policy
from ..state.totals import last_stored
from .apart import Apart
from .compare import Comparison, Pair, TableResult
from .mapped import Made
from .postgresql_side import HeldTarget, hold
from .rules import comparable
from .scratch import scratch_folder
from .sessions import Sessions
from .sides import Both, Held, Landed, TargetSide

KIND = "validate"
"""The kind of the jobs that read rows."""
TRIES = 10
"""How often a validation is repeated because a table was truncated, rewritten or loaded again."""
RENAMED_S = 30.0
"""Seconds to wait for a target that is about to be renamed."""


GONE = "the source has no table {0} (`tailrace remove` ends its copy)"
"""Why a table that was dropped is not compared."""


@dataclass(frozen=True)
class Difference:
    """A table that differs: what the target makes of its source, and both sides at a position (hex)."""

    result: TableResult
    made: Made
    both: Both
    position: str


Amend = Callable[[Sequence[Difference]], None]
"""Called with the differences while the source's rows are available."""


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
        """For `--json`."""
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
    amend: Amend | None = None,
) -> ValidationReport:
    """Compares source and target of a task, table by table.

    `catch_up` is called before and after the snapshot when no process of the task is running (it must store
    and apply what the source has). Otherwise validation waits until the running task has stored up to the
    snapshot's position, at most `timeout_s` seconds (PositionError). `steps` is told what is done.
    `sessions` has the Spark session: its tasks read and compare large tables once it is ready.
    `amend` gets the tables that differ, when any does; the report says what was found before it. An error
    that concerns one table alone is that table's result (`TableResult.not_compared`).

    Raises:
        ConfigError: a table has no baseline yet, or there is no table to compare.
    """
    states = lifecycle.read(task)
    baselines = states.baselines
    removed = states.removed
    chosen = list(tables) or sorted(baselines.keys() - removed)
    if gone := sorted(removed.intersection(tables)):
        raise ConfigError(
            f"{', '.join(gone)} was removed from the task: its changes are no longer captured",
            where=task.name,
            hint="`tailrace add` brings it back",
        )
    wanted = comparable(task, chosen, named=bool(tables))
    if missing := [t for t in wanted if t not in baselines]:
        none = [t for t in missing if t not in states and not task.source.selects(t)]
        raise ConfigError(
            f"the task has no table {', '.join(none)}"
            if none
            else f"no baseline of {', '.join(missing)} yet",
            where=task.name,
            hint=meant(missing[0], baselines)
            or "`tailrace status` lists the tables; `tailrace run` takes their baselines",
        )
    if not wanted:
        raise ConfigError(
            "nothing was compared: no table that is a copy of its source has a baseline",
            where=task.name,
            hint="`tailrace status` shows the state of the tables; `tailrace run` takes their baselines",
        )
    if catch_up is not None:
        catch_up()
    wait_named(task, wanted, min(timeout_s, RENAMED_S) if catch_up is None else 0)
    moved_of(task, source)  # renamed tables are found under their known names
    for attempt in range(TRIES):
        try:
            # Changes that are applied on top of an older version must not be removed in the meantime.
            kept = consumers_of(task).held("validate", failing_in(task))
            with (
                kept,
                scratch_folder(task) as scratch,
                hold(task, wanted) as held,
                source.snapshot() as snapshot,
            ):
                return _at(
                    task, sessions, source, snapshot, held, wanted, scratch, catch_up,
                    timeout_s, buckets, samples, steps or Steps(), amend,
                )  # fmt: skip
        except TableMovedError:
            if attempt + 1 == TRIES:
                raise
    raise AssertionError("unreachable")


def _at(
    task: Task,
    sessions: Sessions,
    source: LogSource,
    snapshot: Snapshot,
    held: HeldTarget | None,
    wanted: Sequence[str],
    scratch: str,
    catch_up: Callable[[], None] | None,
    timeout_s: float,
    buckets: int,
    samples: int,
    steps: Steps,
    amend: Amend | None,
) -> ValidationReport:
    """Validation at one snapshot. The source is read first, so that less can be truncated during the
    validation."""
    source.mark("validate")  # a record after the snapshot: once it is stored, so is everything before it
    alone = Apart(sessions.failures)
    lefts, rights = _read(task, sessions, source, snapshot, held, wanted, scratch, alone, steps)
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
            hint="validate again",
        )
    both: dict[str, Both] = {}

    def paired(table: str) -> Pair:
        target = TargetSide.at(task, baselines[table], limit, rights.get(table), sessions)
        both[table] = Both(lefts[table], target)
        return both[table].pair(sessions, scratch)

    with thread_pool("sides", task.apply.parallel_tables) as side_by_side:
        made = list(side_by_side.map(lambda t: alone.tried(t, lambda: paired(t)), wanted))
    results: dict[str, TableResult] = {}
    steps.done(len(wanted) - len(pairs := [pair for pair in made if pair is not None]))
    for pair, found in Comparison(sessions.tasks, scratch).compare(pairs, buckets, samples, steps.now):
        if isinstance(found, TailraceError):
            alone.failed(pair.table, found)
        else:
            results[pair.table] = replace(found, as_null=both[pair.table].as_null)
        steps.done()
    report = ValidationReport(
        limit,
        [results.get(t) or TableResult(t, False, 0, 0, 0, 0, not_compared=alone.why.get(t)) for t in wanted],
    )
    differ = [(t, both[t.table]) for t in report.tables if not t.equal and t.not_compared is None]
    if amend is not None and differ:
        amend([Difference(t, b.target.made, b, limit) for t, b in differ])
    return report


def _read(
    task: Task,
    sessions: Sessions,
    source: LogSource,
    snapshot: Snapshot,
    held: HeldTarget | None,
    wanted: Sequence[str],
    scratch: str,
    alone: Apart,
    steps: Steps,
) -> tuple[dict[str, Landed], dict[str, Held]]:
    """Reads the rows of the source, and of a target that is held, into files: all parts of all tables are
    given to the readers at once."""
    targets = {} if held is None else alone.each(wanted, held.table)
    there = source.columns(wanted)
    alone.why |= {t: GONE.format(t) for t in wanted if t not in there}
    relations = alone.each(wanted, source.relation)
    parts = alone.each(relations, lambda t: source.parts(relations[t], task.baseline.rows_per_part))
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
        begun = alone.each(parts, lambda t: left(t, readers))
        begun_there = alone.each(targets, lambda t: right(t, readers))
        try:
            lefts = alone.each(begun, lambda t: landed(relations[t], *begun[t], steps, f"reading {t}"))
            rights = alone.each(
                begun_there,
                lambda t: landed(targets[t].layout, *begun_there[t], steps, f"reading the target of {t}"),
            )
        except BaseException:
            for _, futures in [*begun.values(), *begun_there.values()]:
                for one in futures:
                    one.cancel()
            raise
    return lefts, {t: Held(rows, targets[t].upto) for t, rows in rights.items()}


def landed(
    layout: Relation, folder: str, loads: Sequence[Future[Loaded]], steps: Steps, message: str
) -> Landed:
    """The rows that are read into a folder, once they are."""
    steps.now(message)
    files, bad, rows = list[str](), Counter[str](), 0
    for one in loads:
        done = one.result()
        files += [f"{folder}/{done.added.path}"] if done.added else []
        bad.update(column for column, _ in done.bad)
        rows += done.rows
        steps.done()
    return Landed(layout, files, bad, rows)


def wait_named(task: Task, tables: Sequence[str], timeout_s: float) -> None:
    """Waits until the targets have the names that they are about to get: capture renames them."""
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
                hint=f"start `tailrace run` for {task.name}, and validate again: the capture process "
                "renames the target; `tailrace status` shows what prevents it",
            )
        time.sleep(0.2)


def _wait_stored(task: Task, snapshot: Snapshot, timeout_s: float, steps: Steps) -> None:
    """Waits until everything before the snapshot's position is in the change tables."""
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
                hint="is `tailrace run` running, and is its lag small? see `tailrace status`",
            )
        steps.waits()
        time.sleep(0.2)
