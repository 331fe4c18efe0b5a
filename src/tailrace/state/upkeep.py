"""Keeps a task's control tables small: removes batches that nobody needs, and records that were replaced.

What stays of `stored`: each table's parts of batches that its target does not have yet, its newest one, and
all of the last `maintenance.keep_ledger`. Of `applied`: all of the last `keep_ledger`. Totals count all there
ever were. Of errors in a row, loads and baselines: what is in force. Of orders and tokens: what is not over,
and all of the last `keep_ledger`. Orders and baselines that tell where changes are missing (`gaps`) stay.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ..config.policies import MEDIUM
from ..config.quantities import ago
from ..config.task import Task
from ..lake import delta as lake
from ..lake import log_retention
from . import rolling
from .capture_gaps import needed
from .ledger import APPLIED, STORED, Baseline, all_baselines, read_baselines, read_open
from .orders import Answered, Order, TableControl, followed, of_task, parsed
from .orders import read as read_orders
from .rolling import File
from .totals import Totals

_MANY = 100
Keep = Callable[[pa.Table], pa.ChunkedArray]


def shorten(task: Task, loads: Mapping[str, tuple[int, str, int]], now: dt.datetime | None = None) -> None:
    """Removes what is old and not needed; `loads`: see `Totals.reached`."""
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


def in_force(task: Task, *, logged: int | None = None, now: dt.datetime | None = None) -> None:
    """Removes errors, loads and baselines that later ones have replaced, and, once they are many and older
    than `keep_ledger`, finished orders and tokens of closed windows.

    Args:
        logged: the change number up to which the key log has its tokens; None: there is no key log.
    """
    limit = ago(task.maintenance.keep_ledger, now)
    record = task.control_path("baselines")
    gaps, ends = needed(read_orders(task.orders_path), all_baselines(record))
    for name in ("errors", "mapped", "baselines"):
        _rewrite(task.control_path(name), _newest(name, ends))
    taken, opened = read_baselines(record), read_open(record)
    _rewrite(task.orders_path, lambda rows: _orders(rows, taken, limit, gaps))
    _rewrite(task.control_path("tokens"), lambda rows: _tokens(rows, opened, logged, limit))


def _rewrite(path: str, rule: Callable[[pa.Table], pa.Table]) -> None:
    """Keeps only the rows of a table that a rule selects, if they are far fewer; a concurrent commit leaves
    all rows for the next round."""
    if not lake.exists(path):
        return
    delta = DeltaTable(path)
    rows = lake.dataset(delta).to_table()
    kept = rule(rows)
    if rows.num_rows > _MANY + 2 * kept.num_rows:
        part = lake.Part(path, kept.schema)
        part.write(kept)
        added = part.close()
        files, now = [added] if added else [], delta.version()
        lake.overwrite(path, files, schema=lake.arrow_schema(path), progress={}, only_after=now)


def _newest(name: str, ends: Collection[tuple[str, int]]) -> Callable[[pa.Table], pa.Table]:
    """Each table's row with the largest number, and all rows behind it; for baselines the newest closed
    one, and those that end a gap (`ends`: table and number)."""

    def keep(rows: pa.Table) -> pa.Table:
        done = rows
        if name == "baselines":  # one whose window is open does not replace the previous one
            done = rows.filter(
                pc.or_(
                    pc.not_equal(pc.fill_null(rows["window"], "exact"), "open"),
                    pc.greater(pc.fill_null(rows["closes"], 0), 0),
                )
            )
        found = done.group_by("table").aggregate([("number", "max")]).to_pylist()
        least = {r["table"]: r["number_max"] for r in found}
        bound = pa.array([least.get(t) for t in rows["table"].to_pylist()], rows["number"].type)
        stays = pc.fill_null(pc.greater_equal(pc.fill_null(rows["number"], 0), bound), True)
        if name == "baselines":
            each = zip(rows["table"].to_pylist(), rows["number"].to_pylist(), strict=True)
            stays = pc.or_(stays, pa.array([one in ends for one in each], pa.bool_()))
        return rows.filter(stays)

    return keep


def _orders(
    rows: pa.Table, taken: Mapping[str, Baseline], limit: dt.datetime, gaps: Collection[int]
) -> pa.Table:
    given = parsed(rows)
    # Not all that are older: where the clock was set back, what undoes one may be.
    over = over_and_done(takewhile(lambda one: one.at < limit, given), taken)
    return rows.filter(pc.invert(pc.is_in(rows["number"], pa.array(sorted(over - set(gaps)), pa.int64()))))


def over_and_done(orders: Iterable[Order], taken: Mapping[str, Answered]) -> set[int]:
    """Numbers of the orders that no longer have an effect: those between two moments at which all previous
    orders gave their table the same state. `orders`: all up to some number, in order. Orders after one that
    a baseline still has to answer stay: their effect depends on it."""
    way: dict[str, dict[TableControl, int]] = {}  # per table: state -> the order that led to it
    over: set[int] = set()
    for one in orders:
        states = way.setdefault(one.table, {TableControl(one.table): 0})
        now = next(reversed(states))
        if now.wanted or now.landing:
            continue
        after = followed(now, one, taken.get(one.table))
        if after in states:
            over.add(one.number)
            while next(reversed(states)) != after:
                over.add(states.popitem()[1])
        else:
            states[after] = one.number
    return over


def _tokens(
    rows: pa.Table, opened: Mapping[str, Baseline], logged: int | None, limit: dt.datetime
) -> pa.Table:
    stays = pc.greater_equal(rows["seen_at"], limit)
    if logged is not None:
        stays = pc.or_(stays, pc.greater(rows["number"], logged))
    return rows.filter(pc.or_(stays, pc.is_in(rows["table"], pa.array(sorted(opened), pa.string()))))


def passed(task: Task, totals: Totals, loads: Mapping[str, tuple[int, str, int]]) -> dict[str, int]:
    """The change number up to which each table's changes are no longer needed, according to the records.

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
    """Which rows of `stored` stay: those stored since `limit`, those of tables whose targets have not passed
    them (of a table that is not in `passed`, none), and the newest row of each table."""

    def keep(rows: pa.Table) -> pa.ChunkedArray:
        whole = pc.is_null(rows["table"])
        needed = pc.greater(rows["upto"], _of(passed, rows["table"], -1))
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
