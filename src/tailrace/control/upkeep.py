"""Keeps a task's control tables small: batches that nobody needs go, and what was written over.

What stays of `stored`: each table's parts of batches that its target does not have yet, its newest one, and
all of the last `maintenance.keep_ledger`. Of `applied`: all of the last `keep_ledger`. Totals count all there
ever were. Of errors in a row, loads and baselines: what is in force.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from .. import lake
from . import delta_log, rolling
from .ledger import APPLIED, STORED, read_baselines
from .policies import MEDIUM
from .rolling import File
from .tables import of_task
from .task import Task
from .totals import Totals

_MANY = 100
Keep = Callable[[pa.Table], pa.ChunkedArray]


def shorten(task: Task, loads: Mapping[str, tuple[int, str, int]], now: dt.datetime | None = None) -> None:
    """Removes what is old and needed by nobody; `loads`: see `Totals.reached`."""
    stored, applied = task.control_path("stored"), task.control_path("applied")
    limit = (now or dt.datetime.now(dt.timezone.utc)) - dt.timedelta(seconds=task.maintenance.keep_ledger)
    totals = Totals(stored, applied)
    newest = {table: one.upto for table, one in totals.stored.items()}
    keep = parts_to_keep(passed(task, totals, loads), newest, limit)
    for path, book, rule in ((stored, STORED, keep), (applied, APPLIED, records_to_keep(limit))):
        if not lake.exists(path):
            continue
        rolling.fold(path, book)
        rolling.trim(path, book, rule, lambda one: _before(one, limit), task.maintenance.small_files)
        delta_log.settle(path)
        lake.vacuum(path, delta_log.KEPT_S)
        delta_log.forget(path)


def in_force(task: Task) -> None:
    """Removes errors, loads and baselines that later ones have replaced, once they are many."""
    for name, order in (("errors", "number"), ("mapped", "number"), ("baselines", "number")):
        path = task.control_path(name)
        if not lake.exists(path):
            continue
        delta = DeltaTable(path)
        rows = delta.to_pyarrow_table()
        if order not in rows.column_names:  # made by an earlier release
            continue
        done = rows
        if name == "baselines":  # one whose window is open does not replace the one before
            done = rows.filter(
                pc.or_(
                    pc.not_equal(pc.fill_null(rows["window"], "exact"), "open"),
                    pc.greater(pc.fill_null(rows["closes"], 0), 0),
                )
            )
        least = {
            r["table"]: r[f"{order}_max"]
            for r in done.group_by("table").aggregate([(order, "max")]).to_pylist()
        }
        bound = pa.array([least.get(t) for t in rows["table"].to_pylist()], rows[order].type)
        kept = rows.filter(pc.fill_null(pc.greater_equal(pc.fill_null(rows[order], 0), bound), True))
        if rows.num_rows > _MANY + 2 * kept.num_rows:
            part = lake.Part(path, kept.schema)
            part.write(kept)
            added = part.close()
            files, now = [added] if added else [], delta.version()
            lake.overwrite(path, files, schema=lake.arrow_schema(path), progress={}, only_after=now)


def passed(task: Task, totals: Totals, loads: Mapping[str, tuple[int, str, int]]) -> dict[str, int]:
    """The change number up to which each table's changes are needed no more, by what is recorded.

    Nothing is given up of tables that wait for a baseline or get a new one: where that begins is known only
    when it is there.
    """
    baselines = read_baselines(task.control_path("baselines"))
    reached, states = totals.reached(baselines, loads), of_task(task.orders_path, baselines)
    found = {}
    for table, one in totals.stored.items():
        state, taken = states.get(table), table in baselines
        if (state and state.member == "removed") or (task.policy(table).level < MEDIUM and not taken):
            found[table] = one.upto
        elif (state and (state.wanted or state.busy)) or (task.baseline.enabled and not taken):
            found[table] = -1
        else:
            found[table] = reached.get(table, -1)
    return found


def parts_to_keep(passed: Mapping[str, int], newest: Mapping[str, int], limit: dt.datetime) -> Keep:
    """Which rows of `stored` stay: those stored since `limit`, of tables that have not passed them, and each
    table's newest."""

    def keep(rows: pa.Table) -> pa.ChunkedArray:
        whole = pc.is_null(rows["table"])
        needed = pc.greater(rows["upto"], _of(passed, rows["table"], (1 << 63) - 1))
        needed = pc.or_(needed, pc.equal(rows["upto"], _of(newest, rows["table"], -1)))
        stays = pc.or_(pc.greater_equal(rows["stored_at"], limit), pc.and_(needed, pc.invert(whole)))
        batches = pc.unique(rows["upto"].filter(stays))
        return pc.or_(stays, pc.and_(whole, pc.is_in(rows["upto"], batches)))

    return keep


def records_to_keep(limit: dt.datetime) -> Keep:
    """Which rows of `applied` stay: those written since `limit`."""
    return lambda rows: pc.greater_equal(rows["applied_at"], limit)


def _of(numbers: Mapping[str, int], tables: pa.ChunkedArray, unknown: int) -> pa.ChunkedArray:
    """Each row's number, by its table."""
    place = pc.index_in(tables, pa.array(list(numbers), pa.string()))
    return pc.fill_null(pc.take(pa.array(numbers.values(), pa.int64()), place), unknown)


def _before(one: File, limit: dt.datetime) -> bool:
    return one.written is None or one.written < limit
