"""A task's state in the shape of Qlik's control tables: `attrep_status`, `attrep_history`,
`attrep_suspended_tables` (columns: `formats.qlik.control.TABLES`), for tools that watch those.

They are computed from the task's own tables on request; a running task does not write them. That needs no JVM
and no connection to the source, and the task may run or not.
"""

from __future__ import annotations

import datetime as dt
import platform
from dataclasses import dataclass
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from ..config.task import Task
from ..formats.qlik.control import TABLES
from ..model.change import split
from ..model.types import arrow_type
from ..state import lifecycle
from ..state.baselines import all_baselines
from ..state.declarations import APPLIED
from ..state.rolling import Ledger
from ..state.state_table import KeyedTable, Row
from ..state.totals import last_stored
from .status import status

STATUS, HISTORY, SUSPENDED = "attrep_status", "attrep_history", "attrep_suspended_tables"
LOADING, CHANGING = "FULL LOAD", "CHANGE PROCESSING"
SLOT_MINUTES = 5
_SECOND = 1_000_000
_WIDTH = dt.timedelta(minutes=SLOT_MINUTES)
_START = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def export(task: Task, folder: str) -> dict[str, int]:
    """Writes the three tables (Delta) to a folder, each in one commit.

    Rows of tasks with other names stay. `attrep_history` keeps the slots of earlier exports.

    Returns:
        The number of the task's rows by table.
    """
    found = {STATUS: [status_row(task)], HISTORY: history_rows(task), SUSPENDED: suspended_rows(task)}
    written = dict[str, int]()
    for name, rows in found.items():

        def replaced(known: list[Row], name: str = name, rows: list[Row] = rows) -> list[Row]:
            others = [r for r in known if r["task_name"] != task.name]
            ours = _with_older(known, rows, task.name) if name == HISTORY else rows
            written[name] = len(ours)
            return [*others, *ours]

        KeyedTable(f"{folder.rstrip('/')}/{name}", schema_of(name), "control.change").change(replaced)
    return written


def _with_older(known: list[Row], rows: list[Row], task: str) -> list[Row]:
    """Returns the slots of a task with those of earlier exports.

    A slot whose records are no longer kept does not shrink. A task is identified by its name alone, because
    the name of its server changes in containers.
    """
    ours = [r for r in known if r["task_name"] == task]
    slots = {
        (r["timeslot_type"], r["timeslot"]): r
        for r in sorted([*ours, *rows], key=itemgetter("timeslot_records"))
    }
    return [slots[at] for at in sorted(slots)]


def schema_of(name: str) -> pa.Schema:
    """Returns the Arrow schema of one of the tables."""
    return pa.schema([pa.field(c.name, arrow_type(c.type)) for c in TABLES[name].columns])


def status_row(task: Task) -> Row:
    """Returns the row of `attrep_status`.

    `pending_changes` are change-table rows that targets do not have yet. Columns that only Qlik has a value
    for (its swap, its memory, the time of its tail) are NULL.
    """
    now, seen = dt.datetime.now(dt.timezone.utc), status(task)
    capture = seen.capture or {}
    loading = any(t.state.startswith(("baseline", "waits for", "window")) for t in seen.tables)
    behind = capture.get("lag_seconds")
    applied = seen.applied and last_stored(task.control_path("stored"), seen.applied)
    return {
        "server_name": platform.node(),
        "task_name": task.name,
        "task_status": LOADING if loading else CHANGING,
        "status_time": now,
        "pending_changes": sum(t.behind for t in seen.tables),
        "source_current_position": seen.position,
        "source_current_timestamp": None if behind is None else now - dt.timedelta(seconds=behind),
        "source_tail_position": seen.position,
        "source_timestamp_applied": applied.commit_time if applied else _START,
    }


def history_rows(task: Task) -> list[Row]:
    """Returns the rows of `attrep_history`: slots of five minutes with baselines or applied batches.

    They go back as far as all records of a slot are kept (`maintenance.keep_ledger`). `timeslot` is the end
    of a slot, and `timeslot_latency` the greatest latency of its batches, from the source's commit to the
    target, in seconds. The volume is NULL.
    """
    found: dict[tuple[str, dt.datetime], Row] = {}
    loads = {(b.table, b.number): b for b in all_baselines(task.control_path("baselines")) if b.done}
    for taken in loads.values():
        _slot(task, found, LOADING, taken.finished_at)["timeslot_records"] += taken.rows
    for one in _applied(task.control_path("applied"), _WIDTH):
        row = _slot(task, found, CHANGING, one.end - _WIDTH)
        row |= {"timeslot_records": one.rows, "timeslot_latency": one.latency}
    return [found[at] for at in sorted(found)]


def _slot(task: Task, found: dict[tuple[str, dt.datetime], Row], kind: str, at: dt.datetime) -> Row:
    end = _START + ((at - _START) // _WIDTH + 1) * _WIDTH
    new = {
        "server_name": platform.node(), "task_name": task.name, "timeslot_type": kind, "timeslot": end,
        "timeslot_duration": SLOT_MINUTES, "timeslot_latency": None, "timeslot_records": 0,
    }  # fmt: skip
    return found.setdefault((kind, end), new)


def suspended_rows(task: Task) -> list[Row]:
    """Returns the rows of `attrep_suspended_tables`: tables whose changes wait, with the reason."""
    rows = []
    for _, one in sorted(lifecycle.read(task).waiting.items()):
        owner, name = split(one.table)
        rows.append(
            {
                "server_name": platform.node(), "task_name": task.name, "table_owner": owner,
                "table_name": name, "suspend_reason": one.why or one.held or "waits for its baseline",
                "suspend_timestamp": one.since,
            }
        )  # fmt: skip
    return rows


@dataclass(frozen=True)
class _Applied:
    """A time slot with applied batches: its end, the rows inserted, updated and deleted, and the longest time
    from a commit of the source to the target (whole seconds; None if unknown)."""

    end: dt.datetime
    rows: int
    latency: int | None


def _applied(applied: str, width: dt.timedelta) -> list[_Applied]:
    """Returns the slots whose records are all kept, in order."""
    ledger = Ledger(applied, APPLIED)
    wanted = ["upto", "applied_at", "committed_at", "inserted", "updated", "deleted"]
    rows = ledger.batches(wanted).select(wanted)
    at, wide = rows["applied_at"].cast(pa.int64()), int(width / dt.timedelta(seconds=1)) * _SECOND
    late = pc.subtract(at, rows["committed_at"].cast(pa.int64()))
    counts = [pc.fill_null(rows[n], 0) for n in ("inserted", "updated", "deleted")]
    many = pc.add(pc.add(counts[0], counts[1]), counts[2])
    found = pa.table({"slot": pc.divide(at, wide), "rows": many, "late": pc.divide(late, _SECOND)})
    gone = pc.max(ledger.totals(["upto"])["gone"]).as_py()
    if gone is not None:  # including the task's own slot
        found = found.filter(pc.greater(found["slot"], gone // wide))
    made = found.group_by("slot").aggregate([("rows", "sum"), ("late", "max")]).sort_by("slot")
    return [
        _Applied(_START + (r["slot"] + 1) * width, r["rows_sum"], r["late_max"]) for r in made.to_pylist()
    ]
