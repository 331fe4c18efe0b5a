"""The state of a task, read from its files: no JVM, no connection to the source, running or not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from ..apply.mapped_snapshots import loaded
from ..apply.mapping.table_map import place_of, task_map
from ..capture.column_doubts import find_doubts
from ..config.quantities import span
from ..config.task import Task
from ..formats.sqdr.control import IR_SUBSCRIPTION
from ..lake import delta as lake
from ..lake import json_files, log, log_retention
from ..lake.opened import open_table
from ..lake.table import progress as progress_of
from ..model.positions import BEFORE_ALL, ChangeNumber, Position, order_key
from ..state import lifecycle, live
from ..state.baselines import Baseline
from ..state.capture_state import AWAY, GONE, RECONNECTING, RUNNING, STATE_EVERY_S
from ..state.lifecycle import TableLifecycle, TableState, TableStates
from ..state.open_warnings import open_warnings
from ..state.totals import Totals
from ..targets.task_tables import target_tables
from . import control_tables
from .consumers import consumer_warnings

ENDED = ("stopped", "drained")
WAITS = "waits for its baseline"
SILENT_S = 60.0
"""The age in seconds from which a report of capture is out of date: capture waits for the source's server, or
hangs."""
Baselines = Mapping[str, Baseline]
_REPORTED_BY_CAPTURE = ("lag_bytes", "lag_seconds", "retained_bytes", "left_bytes", "rate")


@dataclass
class TableStatus:
    """One table of a task. Numbers of rows are totals since the task began.

    Attributes:
        state: running, paused, suspended, removed, `baseline 3/8` (parts read), window open, waits for its
            baseline, waits for a new baseline, being renamed, tracked only (its policy is below level 2).
            Otherwise `not captured`, `not applied` or `stopped` (neither) while a process does not run, and
            `source unreachable` or `target unreachable` while it cannot connect.
        lifecycle: the state according to the task's tables alone: `discovered`, `waiting for baseline`,
            `loading`, `applying`, `paused`, `suspended`, `failed` (it is tried again) or `dropped` (removed).
        baseline_rows: rows of the newest baseline.
        stored: rows in the change table.
        inserted, updated, deleted: rows, without those of a batch whose process was killed between its commit
            and its record.
        behind: stored change-table rows that the target does not have yet. A store batch that it has in part
            counts as a whole.
        seconds_behind: the age of the oldest of these rows.
        position: the position of the last applied change.
        target_version: the target's version; None if it has none.
        last_change: when the last batch was applied.
        why, who, since: reason, user and time of the command that the state is due to.
        group: the group of the table.
        target: the name of its target, if that is not the table's name.
        errors: consecutive errors; the table is tried again (`control.retries`).
        error: the last error.
        flagged: changes since its baseline that did not find the row they expect; None without a key log.
        unknown_columns: columns that could not be identified with a column of the source.
        proved_columns: columns that only a later change identified: earlier values may have become NULL.
        changed_values: columns whose older rows changed at the source without a record in the log.
        warnings: other open warnings (`state.open_warnings`).
        quarantined: values in `control/quarantine` that became NULL because the lake type cannot hold them.

    The warnings about columns stay until a new baseline.
    """

    table: str
    state: str
    lifecycle: str = TableState.DISCOVERED.value
    baseline_rows: int | None = None
    stored: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    behind: int = 0
    seconds_behind: float = 0.0
    position: Position | None = None
    target_version: int | None = None
    last_change: str | None = None
    why: str | None = None
    who: str | None = None
    since: str | None = None
    group: str | None = None
    target: str | None = None
    errors: int = 0
    error: str | None = None
    flagged: int | None = None
    unknown_columns: list[str] = field(default_factory=list)
    proved_columns: list[str] = field(default_factory=list)
    changed_values: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    quarantined: int = 0


@dataclass
class Status:
    """A task: its processes, the progress of each stage, and its tables.

    Attributes:
        capture, pipeline: the last report of each process (`state.live`); None if it never ran. Added are
            `running`; `since`, when it ended (UTC, ISO 8601); `unreachable_since`, when it lost its source or
            target; and `unheard_since`, when a process on another host was last heard of. Values that need a
            connection to the source are None without one: `lag_bytes`, `lag_seconds`, `retained_bytes`,
            `left_bytes`, `rate` (`state.capture_state`). `waits` names the transactions that a new stream or
            a baseline waits for.
        captured, stored, applied: change numbers; None if a stage has done nothing yet.
        position: the end of LOG.
        consumers: warnings about consumers, by name.
        seconds_unstored: how long the oldest change of LOG that is not stored has waited.
        warnings: open warnings that are about no single table.
        left_out: the tables that match the task file but are not captured, with the reason.
    """

    task: str
    capture: dict[str, Any] | None
    pipeline: dict[str, Any] | None
    captured: ChangeNumber | None
    stored: ChangeNumber | None
    applied: ChangeNumber | None
    position: Position | None
    tables: list[TableStatus] = field(default_factory=list)
    consumers: dict[str, str] = field(default_factory=dict)
    seconds_unstored: float = 0.0
    warnings: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Returns it for `--json`."""
        return asdict(self)


def status(task: Task) -> Status:
    """Returns the state of a task, from its control tables and live files."""
    capture, pipeline = process(task, "capture"), process(task, "pipeline")
    states, where = lifecycle.read(task), log.state(task.log_path)
    reading = (capture.get("baselines") or {}) if capture and capture["running"] else {}
    totals = Totals(task.control_path("stored"), task.control_path("applied"))
    known = {*totals.applied, *totals.stored, *(t for t, one in reading.items() if one.get("state") != GONE)}
    tables = {t: _table(task, states[t], reading.get(t), totals) for t in sorted(known | states.keys())}
    _count(task, tables, totals, states)
    _noted(task, tables, states.baselines)
    others = _warned(task, tables, states.baselines)
    now, why = _while(capture, pipeline), _ended_by(capture, pipeline)
    captured = where.number if where.position is not None else None
    for mine in tables.values():
        if mine.state == RUNNING:
            mine.state, mine.why = now, mine.why or why
    return Status(
        task.name,
        capture,
        pipeline,
        captured,
        totals.stored_upto,
        totals.applied_upto,
        Position(where.position.hex().upper()) if where.position else None,
        list(tables.values()),
        consumer_warnings(task),
        _unstored(task, captured, totals.stored_upto),
        others,
        (capture or {}).get("left_out") or {},
    )


def _while(capture: dict[str, Any] | None, pipeline: dict[str, Any] | None) -> str:
    """Returns the state of a table that is not held, given its processes."""
    captured, applied = (bool(one and one["running"]) for one in (capture, pipeline))
    if not applied:
        return "not applied" if captured else "stopped"
    if not captured or capture is None:
        return "not captured"
    if pipeline is not None and pipeline.get("state") == RECONNECTING:
        return AWAY
    return "source unreachable" if capture.get("state") == RECONNECTING else RUNNING


def _ended_by(*processes: dict[str, Any] | None) -> str | None:
    """Returns the newest error that ended a process; None if none did."""
    ended = [one for one in processes if one and not one["running"] and one.get("ended")]
    return str(max(ended, key=lambda one: str(one["at"]))["ended"]) if ended else None


def _table(task: Task, one: TableLifecycle, reading: Mapping[str, Any] | None, totals: Totals) -> TableStatus:
    """Returns the status of a table without its numbers of rows."""
    mine = TableStatus(one.table, _label(one, reading, totals), one.state.value, target=one.target or None)
    if one.baseline is not None:
        mine.baseline_rows, mine.target_version = one.baseline.rows, one.baseline.version
    mine.why, mine.who = one.why or None, one.who or None
    mine.since = one.since.isoformat(timespec="seconds") if one.since else None
    mine.group = task.group(one.table)
    if one.failure is not None:
        mine.errors, mine.error = one.failure.errors, one.failure.what
    return mine


def _label(one: TableLifecycle, reading: Mapping[str, Any] | None, totals: Totals) -> str:
    """Returns the state of a table as `TableStatus` names it."""
    if one.state in (TableState.PAUSED, TableState.SUSPENDED):
        return str(one.state.value)
    if reading is not None and one.wanted and reading.get("state") in (RUNNING, AWAY):
        return _baseline(reading)
    if one.moving or one.state is TableState.DROPPED:
        return "being renamed" if one.moving else "removed"
    state = _unordered(one, reading, totals)
    if one.landing or (one.wanted and state in (RUNNING, WAITS)):
        return WAITS if one.baseline is None else "waits for a new baseline"
    return state


def _unordered(one: TableLifecycle, reading: Mapping[str, Any] | None, totals: Totals) -> str:
    """Returns the state of a table without commands."""
    if one.loading is not None:
        return "window open"
    if one.baseline is not None:
        return RUNNING
    if _is_tracked_only(one, totals):
        return "tracked only"
    if reading is not None and reading.get("state") != GONE:
        return _baseline(reading)
    return RUNNING if one.table in totals.applied else WAITS


def _is_tracked_only(one: TableLifecycle, totals: Totals) -> bool:
    return one.table in totals.stored and one.baseline is None and one.expected is TableState.DISCOVERED


def _baseline(at: Mapping[str, Any]) -> str:
    return AWAY if at.get("state") == AWAY else f"baseline {at.get('parts_done', 0)}/{at.get('parts', 0)}"


def _noted(task: Task, tables: dict[str, TableStatus], baselines: Baselines) -> None:
    """Adds flagged rows as counted in the key log, columns whose older values are in doubt, and quarantined
    values."""
    for row in control_tables.rows(task.keylog_path, IR_SUBSCRIPTION):
        if row["group_id"] == task.name and row["subscription_id"] in tables:
            tables[row["subscription_id"]].flagged = row["flagged_count"] or 0
    for name, doubts in find_doubts(task, baselines).items():
        if name in tables and tables[name].state != "removed":
            mine = tables[name]
            mine.unknown_columns, mine.proved_columns = doubts.unknown, doubts.proved
            mine.changed_values = doubts.changed
    quarantine = task.control_path("quarantine")
    for name, many in _quarantined(quarantine, lake.version(quarantine)).items():
        if name in tables and tables[name].state != "removed":
            tables[name].quarantined = many


def _warned(task: Task, tables: Mapping[str, TableStatus], baselines: Baselines) -> list[str]:
    """Adds the open warnings of tables; returns those that are about no known table."""
    others = []
    for one in open_warnings(task, baselines):
        mine = tables.get(one.table)
        if mine is None:
            others.append(f"{one.table}: {one.said}" if one.table else one.said)
        elif mine.state != "removed" or not one.until_baseline:
            mine.warnings.append(one.said)
    return others


@lru_cache(4)
def _quarantined(path: str, version: int | None) -> dict[str, int]:
    """Returns the number of quarantined values by table, in a version of the quarantine table; the live
    screen calls it once a second."""
    if version is None:
        return {}
    counts = lake.dataset(open_table(path, version=version)).to_table(["table"])["table"].value_counts()
    return {one["values"]: one["counts"] for one in counts.to_pylist()}


def _unstored(task: Task, captured: ChangeNumber | None, stored: ChangeNumber | None) -> float:
    if (captured or 0) <= (stored or 0):
        return 0.0
    at = log_retention.committed_at(task.log_path, log.version_after(task.log_path, stored or BEFORE_ALL))
    return max(0.0, (dt.datetime.now(dt.timezone.utc) - at).total_seconds())


def _count(task: Task, tables: dict[str, TableStatus], totals: Totals, states: TableStates) -> None:
    for name, one in totals.applied.items():
        mine = tables[name]
        mine.inserted, mine.updated, mine.deleted = one.inserted, one.updated, one.deleted
        mine.position, mine.target_version = one.position, one.version
        mine.last_change = one.applied_at.isoformat(timespec="seconds")
    for name, stored in totals.stored.items():
        tables[name].stored = stored.rows
    reached = _reached(task, totals, states)
    applied = {t for t in tables if not _is_tracked_only(states[t], totals)} - states.removed
    for name, many in totals.behind(reached).items():
        tables[name].behind = many if name in applied else 0
    now = dt.datetime.now(dt.timezone.utc)
    for name, since in totals.waiting_since(reached, applied).items():
        tables[name].seconds_behind = max(0.0, (now - since).total_seconds())


def _reached(task: Task, totals: Totals, states: TableStates) -> dict[str, ChangeNumber]:
    """Returns the progress of each target: as recorded, or later if the process ended between the target's
    commit and the record. A database is not asked."""
    found = totals.reached(states.baselines, loaded(task.control_path("mapped")))
    if task.target.database:
        return found
    names, tables = states.target_names, target_tables(task)
    for name in totals.late(found):
        place, one = place_of(task_map(task, name), names), totals.applied.get(name)
        path = tables.name(place.target)
        # Most are at the version of their record: checking that there is no later one is fast.
        if one is not None and not tables.is_newer_than(path, order_key(one.version)):
            continue
        progress = progress_of(tables, path, place.app(name, task.apply_app))
        if progress is not None:
            found[name] = max(found.get(name, progress), progress)
    return found


def age_s(at: str, now: dt.datetime | None = None) -> float:
    """Returns the seconds since a time (ISO 8601)."""
    return ((now or dt.datetime.now(dt.timezone.utc)) - dt.datetime.fromisoformat(at)).total_seconds()


def process(task: Task, name: str) -> dict[str, Any] | None:
    """Returns the last report of a process, and whether it is running."""
    found = json_files.read(task.run_path, name)
    if found is None:
        return None
    running = live.locked(task.run_path, name)
    if running and found.get("state") in ENDED:  # reported by the previous process
        found["state"] = "starting"
    if found.get("state") == RECONNECTING:
        found["unreachable_since"] = found.get("since")
    found |= {"running": running, "since": None if running else found["at"]}
    if running and (unheard := live.unheard_s(task.run_path, name)):
        heard = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=unheard)
        found["unheard_since"] = heard.isoformat(timespec="seconds")
    silent = running and age_s(found["at"]) > SILENT_S
    if name == "capture" and (not running or silent or found.get("state") != RUNNING):
        found |= dict.fromkeys(_REPORTED_BY_CAPTURE)
    if name == "capture" and (not running or silent):
        found["waits"] = None
    return found


_HELD_BACK = ("removed", "tracked only")
_REPORT_S = 2 * STATE_EVERY_S
"""The age that a report of capture may have: its values are not known more exactly."""


def late(found: Status, limit_s: float, now: dt.datetime | None = None) -> list[str]:
    """Returns the reasons why a task is more than some seconds behind its source, or why that is unknown.

    The list is empty if the task is not behind. A process that does not run, and a source or target that does
    not answer, counts from that moment.
    """
    at = now or dt.datetime.now(dt.timezone.utc)
    return [*_processes(found, limit_s, at), *_stages(found, limit_s)]


def _processes(found: Status, limit_s: float, now: dt.datetime) -> Iterator[str]:
    for name, said in (("capture", found.capture), ("pipeline", found.pipeline)):
        if said is None:
            yield f"{name} never ran"
            continue
        away = said.get("state") == RECONNECTING and said["running"]
        since = said.get("unreachable_since") if away else said.get("since")
        if since and (seconds := age_s(since, now)) > limit_s:
            what = (
                f"has not reached the {'source' if name == 'capture' else 'target'}"
                if away
                else "has not run"
            )
            yield f"{name} {what} for {span(seconds)}"
        silent = name == "capture" and said["running"] and not away and said.get("at")
        if silent and (seconds := age_s(silent, now)) > limit_s + _REPORT_S:
            yield f"capture has reported nothing for {span(seconds)}"


def _stages(found: Status, limit_s: float) -> Iterator[str]:
    lag = (found.capture or {}).get("lag_seconds") or 0.0
    if lag > limit_s + _REPORT_S:
        yield f"capture is {span(lag)} behind the source"
    if found.seconds_unstored > limit_s:
        yield f"captured changes have waited {span(found.seconds_unstored)} for the store"
    for table in found.tables:
        if table.seconds_behind > limit_s and table.state not in _HELD_BACK:
            yield f"{table.table} is {span(table.seconds_behind)} behind ({table.state})"
