"""Retention of a task's own tables: the rules by which rows are removed from them.

`stored` keeps each table's parts of batches that its target does not have yet, its newest one, and all of the
last `maintenance.keep_ledger`; `applied` all of the last `keep_ledger`. Totals include all rows ever written.
The append-only tables keep the newest row of each key, or what a rule here says; rows that show where changes
are missing (`capture_gaps`) stay.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from ..config.policies import MEDIUM
from ..config.quantities import ago
from ..config.task import Task
from ..lake import delta as lake
from ..lake import log_retention
from ..model.positions import ChangeNumber
from . import commands, rolling
from .baselines import Baseline, all_baselines, read_baselines, read_open
from .capture_gaps import needed
from .commands import Command
from .declarations import APPLIED, BASELINES, COMMANDS, FAILURES, MAPPED_LOADS, NOTES, STORED, TOKENS
from .lifecycle import Answer, TableLifecycle, follow, of_task
from .rolling import File
from .state_table import Declaration, Row, StateTable
from .totals import Totals

Keep = Callable[[pa.Table], pa.ChunkedArray]


def trim_batches(
    task: Task, loads: Mapping[str, tuple[int, str, int]], now: dt.datetime | None = None
) -> None:
    """Removes old rows of `stored` and `applied`; `loads`: see `Totals.reached`."""
    stored, applied = task.control_path("stored"), task.control_path("applied")
    limit = ago(task.maintenance.keep_ledger, now)
    totals = Totals(stored, applied)
    newest = {table: one.upto for table, one in totals.stored.items()}
    keep = parts_to_keep(passed(task, totals, loads), newest, limit)
    for path, book, rule in ((stored, STORED, keep), (applied, APPLIED, records_to_keep(limit))):
        if not lake.exists(path):
            continue
        rolling.fold(path, book)
        rolling.trim(path, book, rule, lambda one: _before(one, limit), task.maintenance.small_files)
        lake.vacuum(path, log_retention.KEPT_S)
        log_retention.forget(path)


def trim_tables(task: Task, *, logged: ChangeNumber | None = None, now: dt.datetime | None = None) -> None:
    """Trims the append-only tables: see `declarations` for what is removed from each.

    Args:
        logged: the change number up to which the key log has its tokens; None: there is no key log.
    """
    limit, record = ago(task.maintenance.keep_ledger, now), task.control_path("baselines")
    gaps, ends = needed(commands.read(task.commands_path), all_baselines(record))
    taken, opened = read_baselines(record), read_open(record)
    for declared in (FAILURES, MAPPED_LOADS, NOTES):
        _table(task, declared).trim()
    _table(task, BASELINES).trim(lambda rows: baselines_to_keep(rows, ends))
    _table(task, COMMANDS).trim(lambda rows: commands_to_keep(rows, taken, limit, gaps))
    _table(task, TOKENS).trim(lambda rows: tokens_to_keep(rows, opened, logged, limit))


def _table(task: Task, declared: Declaration) -> StateTable[Row]:
    return StateTable(task.control_path(declared.name), declared, dict)


def baselines_to_keep(rows: pa.Table, ends: Collection[tuple[str, int]]) -> pa.ChunkedArray:
    """Which rows of `baselines` stay: each table's newest baseline on which changes can be applied, those
    that follow it, and those that end a gap (`ends`: table and number)."""
    tables, numbers = rows["table"].to_pylist(), rows["baseline"].to_pylist()
    done = pc.or_(pc.not_equal(rows["window"], "open"), pc.is_valid(rows["closes"])).to_pylist()
    newest: dict[str, int] = {}
    for table, number, counts in zip(tables, numbers, done, strict=True):
        if counts:
            newest[table] = max(number, newest.get(table, 0))
    each = zip(tables, numbers, strict=True)
    return pa.array([n >= newest.get(t, 0) or (t, n) in ends for t, n in each], pa.bool_())


def commands_to_keep(
    rows: pa.Table, taken: Mapping[str, Baseline], limit: dt.datetime, gaps: Collection[int]
) -> pa.ChunkedArray:
    """Which rows of `orders` stay: those with an effect, those that begin or end a gap, and young ones."""
    given = sorted((Command.parse(row) for row in rows.to_pylist()), key=lambda one: one.number)
    # Not all that are older: where the clock was set back, the command that undoes one may be.
    over = over_and_done(takewhile(lambda one: one.at < limit, given), taken)
    return pc.invert(pc.is_in(rows["number"], pa.array(sorted(over - set(gaps)), pa.int64())))


def tokens_to_keep(
    rows: pa.Table, opened: Mapping[str, Baseline], logged: ChangeNumber | None, limit: dt.datetime
) -> pa.ChunkedArray:
    """Which rows of `tokens` stay: young ones, those missing in the key log, those of open windows."""
    stays = pc.greater_equal(rows["at"], limit)
    if logged is not None:
        stays = pc.or_(stays, pc.greater(rows["change_number"], logged))
    return pc.or_(stays, pc.is_in(rows["table"], pa.array(sorted(opened), pa.string())))


def over_and_done(given: Iterable[Command], taken: Mapping[str, Answer]) -> set[int]:
    """Numbers of the commands that no longer have an effect: those between two moments at which all previous
    commands gave their table the same state. `given`: all up to some number, in order. Commands after one
    that a baseline still has to answer stay: their effect depends on it."""
    way: dict[str, dict[TableLifecycle, int]] = {}  # per table: state -> the command that led to it
    over: set[int] = set()
    for one in given:
        states = way.setdefault(one.table, {TableLifecycle(one.table): 0})
        now = next(reversed(states))
        if now.wanted or now.landing:
            continue
        after = follow(now, one, taken.get(one.table))
        if after in states:
            over.add(one.number)
            while next(reversed(states)) != after:
                over.add(states.popitem()[1])
        else:
            states[after] = one.number
    return over


def passed(
    task: Task, totals: Totals, loads: Mapping[str, tuple[int, str, int]]
) -> dict[str, ChangeNumber | None]:
    """The change number up to which each table's changes are no longer needed, according to the records.

    Nothing is given up of tables that wait for a baseline or get a new one: where that begins is known only
    when it is there.
    """
    baselines = read_baselines(task.control_path("baselines"))
    reached, states = totals.reached(baselines, loads), of_task(task.commands_path, baselines)
    found = dict[str, ChangeNumber | None]()
    for table, one in totals.stored.items():
        state, taken = states[table], table in baselines
        if state.removed or (task.policy(table).level < MEDIUM and not taken):
            found[table] = one.upto
        elif state.wanted or state.busy or (task.baseline.enabled and not taken):
            found[table] = None
        else:
            found[table] = reached.get(table)
    return found


def parts_to_keep(
    passed: Mapping[str, ChangeNumber | None], newest: Mapping[str, ChangeNumber], limit: dt.datetime
) -> Keep:
    """Which rows of `stored` stay: those stored since `limit`, those of tables whose targets have not passed
    them (of a table that is not in `passed`, none), and the newest row of each table."""

    def keep(rows: pa.Table) -> pa.ChunkedArray:
        whole = pc.is_null(rows["table"])
        needed = pc.greater(rows["upto"], _of(passed, rows["table"]))
        needed = pc.or_(needed, pc.equal(rows["upto"], _of(newest, rows["table"])))
        stays = pc.or_(pc.greater_equal(rows["stored_at"], limit), pc.and_(needed, pc.invert(whole)))
        batches = pc.unique(rows["upto"].filter(stays))
        return pc.or_(stays, pc.and_(whole, pc.is_in(rows["upto"], batches)))

    return keep


def records_to_keep(limit: dt.datetime) -> Keep:
    """Which rows of `applied` stay: those written since `limit`."""
    return lambda rows: pc.greater_equal(rows["applied_at"], limit)


def _of(numbers: Mapping[str, int | None], tables: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each row's number, by its table; -1 for a table without a number."""
    place = pc.index_in(tables, pa.array(list(numbers), pa.string()))
    return pc.fill_null(pc.take(pa.array(numbers.values(), pa.int64()), place), -1)


def _before(one: File, limit: dt.datetime) -> bool:
    return one.written is None or one.written < limit
