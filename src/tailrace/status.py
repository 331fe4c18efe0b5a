"""What a task is doing, read from its files: no JVM, no connection to the source, running or not."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, dataclass, field
from typing import Any

from . import lake, log
from .control import ledger, live, retries
from .control.ledger import STORE_APP
from .control.tables import of_task
from .control.task import Task


@dataclass
class TableStatus:
    """One table of a task. Positions are hex; rows are since the beginning of the task; `behind` is stored
    change-table rows that the target does not have yet.

    `state`: running, paused, suspended, removed, `baseline 3/8` (parts read), window open, waits for its
    baseline, waits for a new baseline, being renamed. `why`, `who` and `since` belong to it where somebody
    ordered it. `target`: the name of its target, where that is not the table's. `errors`: how many in a row
    it has had; it is tried again (`control.retries`), and `error` is the last one."""

    table: str
    state: str
    baseline_rows: int | None = None
    stored: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    behind: int = 0
    position: str | None = None
    target_version: int = -1
    last_change: str | None = None
    why: str | None = None
    who: str | None = None
    since: str | None = None
    group: str | None = None
    target: str | None = None
    errors: int = 0
    error: str | None = None


@dataclass
class Status:
    """A task: its processes, how far each stage has come, and its tables."""

    task: str
    capture: dict[str, Any] | None
    pipeline: dict[str, Any] | None
    captured: int
    stored: int
    applied: int
    position: str | None
    tables: list[TableStatus] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def status(task: Task) -> Status:
    """The state of a task, from its control tables and live files."""
    capture, pipeline = live.read(task.run_path, "capture"), live.read(task.run_path, "pipeline")
    baselines = ledger.read_baselines(task.control_path("baselines"))
    where = log.state(task.log_path)
    tables: dict[str, TableStatus] = {}
    for name, state in ((capture or {}).get("baselines") or {}).items():
        tables[name] = TableStatus(name, f"baseline {state.get('parts_done', 0)}/{state.get('parts', 0)}")
    for name, taken in baselines.items():
        tables[name] = TableStatus(
            name, "running", baseline_rows=taken.rows, target_version=max(taken.version, 0)
        )
    _count(task, tables)
    _ordered(task, tables, baselines, capture or {})
    applied = lake.progress(task.control_path("applied"), "tailrace/applied")
    return Status(
        task.name,
        _alive(task, capture, "capture"),
        _alive(task, pipeline, "pipeline"),
        where.number,
        lake.progress(task.tracking_path, STORE_APP),
        applied,
        where.position.hex().upper() if where.position else None,
        [tables[t] for t in sorted(tables)],
    )


def _ordered(
    task: Task, tables: dict[str, TableStatus], baselines: dict[str, ledger.Baseline], capture: dict[str, Any]
) -> None:
    """What orders and open windows make of the tables; what holds a table comes before what it is doing."""
    reading = {t for t, one in (capture.get("baselines") or {}).items() if one.get("state") == "running"}
    for name in ledger.read_open(task.control_path("baselines")):
        tables.setdefault(name, TableStatus(name, "")).state = "window open"
    for name, one in of_task(task.orders_path, baselines).items():
        mine = tables.setdefault(name, TableStatus(name, "waits for its baseline"))
        if one.member == "removed":
            mine.state = "removed"
        elif one.held:
            mine.state = one.held
        elif one.landing or (one.wanted and mine.state in ("running", "waits for its baseline")):
            mine.state = "waits for a new baseline" if name in baselines else "waits for its baseline"
        if one.moving and not one.held:
            mine.state = "being renamed"
        if one.wanted and name in reading and not one.held:
            at = capture["baselines"][name]
            mine.state = f"baseline {at.get('parts_done', 0)}/{at.get('parts', 0)}"
        mine.target = one.target or None
        mine.why, mine.who = one.why or None, one.who or None
        mine.since = one.since.isoformat(timespec="seconds") if one.since else None
    failing = retries.failing(task.control_path("errors"))
    for name, mine in tables.items():
        mine.group = task.group(name)
        if name in failing:
            mine.errors, mine.error = failing[name].errors, failing[name].what


def _count(task: Task, tables: dict[str, TableStatus]) -> None:
    reached: dict[str, int] = {}
    for row in ledger.read_applied(task.control_path("applied")):
        if (name := row["table"]) is None:
            continue
        mine = tables.setdefault(str(name), TableStatus(str(name), "running"))
        for k in ("inserted", "updated", "deleted"):
            setattr(mine, k, getattr(mine, k) + row[k])
        mine.position, mine.target_version = str(row["position"]), int(str(row["version"]))
        at = row["applied_at"]
        mine.last_change = at.isoformat(timespec="seconds") if isinstance(at, dt.datetime) else None
        reached[str(name)] = int(str(row["upto"]))
    for batch in ledger.read_stored(task.control_path("stored")):
        for name, counts in batch.tables.items():
            mine = tables.setdefault(name, TableStatus(name, "waits for its baseline"))
            mine.stored += counts["rows"]
            if batch.upto > reached.get(name, -1):
                mine.behind += counts["rows"]


def _alive(task: Task, state: dict[str, Any] | None, name: str) -> dict[str, Any] | None:
    """The live file, with `running` saying whether the process that wrote it still holds its lock."""
    return None if state is None else state | {"running": live.locked(task.run_path, name)}
