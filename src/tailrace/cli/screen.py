"""A task on the terminal: the live screen of `run`, the tables of `status` and `validate`."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from ..capture.column_doubts import REPAIRS, ColumnDoubts
from ..config.quantities import about, span
from ..errors import TailraceError
from ..execution import JobCount, summary
from ..lake import json_files
from ..operate.status import ENDED, Status, TableStatus
from ..operate.status import status as status_of
from ..query.positions import format_lsn
from ..state.capture_state import RECONNECTING, RUNNING
from .output import console
from .screen_cost import freshness
from .screen_fit import Col, Fit

if TYPE_CHECKING:
    from ..config.task import Task
    from ..validate.repair import RepairResult
    from ..validate.validation import ValidationReport


MUCH = 1 << 30
"""The log that a source keeps for a task gets a line from this size (bytes)."""


def status(found: Status, most: int | None = None) -> Group:
    """One line per table, the task's stages above, and notes below; at most `most` tables, those with
    problems first."""
    columns = [
        Col("table", fold=True), Col("state", fold=True), Col("baseline rows", right=True, spare=3),
        Col("stored", right=True, spare=2), Col("inserted", right=True, spare=5),
        Col("updated", right=True, spare=5), Col("deleted", right=True, spare=5),
        Col("waiting", right=True), Col("lag", right=True), Col("position", spare=6),
    ]  # fmt: skip
    flagged = any(t.flagged is not None for t in found.tables)
    if flagged:
        columns.insert(-1, Col("flagged", right=True, spare=1))
    shown = Fit(columns, title=_title(found), below=_processes(found))
    chosen = found.tables
    if most is not None and len(chosen) > most:
        chosen = sorted(chosen, key=lambda t: (t.state == RUNNING, -t.seconds_behind))[:most]
    for t in chosen:
        rows = "" if t.baseline_rows is None else f"{t.baseline_rows:,}"
        counts = [f"{n:,}" for n in (t.stored, t.inserted, t.updated, t.deleted, t.behind)]
        odd = ["" if t.flagged is None else f"{t.flagged:,}"] if flagged else []
        position = format_lsn(t.position or "")
        shown.add(t.table, t.state, rows, *counts, span(t.seconds_behind) if t.behind else "", *odd, position)
    more = len(found.tables) - len(chosen)
    lines = [*([f"{more:,} more tables: `tailrace status` lists them"] if more else []), *reasons(found)]
    return Group(shown, *(Text(line, overflow="fold") for line in lines))


def reasons(found: Status) -> list[str]:
    """One line for each table that is paused, suspended or waits for a baseline, for errors, targets with
    other names, columns of unknown identity or proved late, open warnings, quarantined values, and consumers
    that keep old changes for long."""
    lines = [
        f"{t.table}: {t.state} since {_moment(t.since)} by {t.who}: {t.why}"
        for t in found.tables
        if t.why and t.since
    ]
    lines += [f"{t.table}: {t.errors} errors in a row, retrying: {t.error}" for t in found.tables if t.errors]
    lines += [f"{t.table}: its target is called {t.target}" for t in found.tables if t.target]
    for t in found.tables:
        doubts = ColumnDoubts(t.unknown_columns, t.proved_columns, t.changed_values)
        lines += [f"{t.table}: {said} ({REPAIRS})" for said in doubts.said]
        lines += [f"{t.table}: {said}" for said in t.warnings]
    lines += found.warnings
    lines += [
        f"{t.table}: {_bad(t.quarantined)} set aside in `control/quarantine` and became NULL (`on_bad_value`)"
        for t in found.tables
        if t.quarantined
    ]
    return lines + [f"consumer {name}: {said}" for name, said in found.consumers.items()]


def _title(found: Status) -> str:
    return (
        f"{found.task}: captured {found.captured or 0:,}, stored {found.stored or 0:,}, "
        f"applied {found.applied or 0:,} (change numbers)"
    )


def _processes(found: Status) -> list[str]:
    """One line for each of the two processes, and for the log that the source keeps for them."""
    said = found.pipeline or {}
    lines = [
        _capture(found),
        *_retained_log(found.capture or {}),
        _pipeline(found),
        *freshness(said),
        *_spark(said),
    ]
    return [*lines, *_loading(found)]


def _loading(found: Status) -> list[str]:
    """The tables that are not loaded yet, if the task runs."""
    if not found.capture or not found.capture["running"]:
        return []
    if not found.tables:
        return ["no table is loaded yet"]
    loading = [t.table for t in found.tables if _loads(t)]
    some = ", ".join(loading[:3]) + (", ..." if len(loading) > 3 else "")
    are = "is" if len(loading) == 1 else "are"
    many = f"{len(loading):,} of {len(found.tables):,} tables {are} still loading"
    return [f"{many}: {some}"] if loading else []


def _loads(table: TableStatus) -> bool:
    """Whether a table's baseline is being read, or waits."""
    return table.state.startswith(("baseline ", "waits for "))


def _capture(found: Status) -> str:
    said = found.capture
    words = _process("capture", said)
    if said is None or not said["running"]:
        return f"{words}; lag unknown"
    if said.get("state") == RECONNECTING:
        words = f"{_unreachable('capture', said, 'source')}; lag unknown"
    else:
        rate, behind, seconds = (said.get(k) for k in ("rate", "lag_bytes", "lag_seconds"))
        if behind is None or seconds is None:
            words += "; lag unknown"
        else:
            words += f": {rate or 0:,.0f} records/s, lag {behind:,} bytes, {span(seconds)}"
    words += f"; {str(said['message']).splitlines()[0]}" if said.get("message") else ""
    begins = "the baseline" if said.get("state") == RUNNING else "the stream"
    return f"{words}; {begins} waits for open transactions: {said['waits']}" if said.get("waits") else words


def _pipeline(found: Status) -> str:
    said = found.pipeline
    waiting, rows = (found.captured or 0) - (found.stored or 0), sum(t.behind for t in found.tables)
    does = []
    if waiting > 0:
        does.append(f"{waiting:,} records wait for the store, {span(found.seconds_unstored)}")
    if rows:
        does.append("1 row waits to be applied" if rows == 1 else f"{rows:,} rows wait to be applied")
    loaded = bool(found.tables) and not any(map(_loads, found.tables))
    if not does and loaded and said is not None and said["running"]:
        does.append("everything captured is applied")
    if said is not None and said["running"] and said.get("state") == RECONNECTING:
        return "; ".join(
            [_unreachable("pipeline", said, "target"), *does, str(said["message"]).splitlines()[0]]
        )
    return "; ".join([_process("pipeline", said), *does])


def _spark(pipeline: dict[str, Any]) -> list[str]:
    """The Spark session of a pipeline, and the counts of its tasks."""
    said = pipeline.get("spark") or {}
    steps = {kind: JobCount(**one) for kind, one in (said.get("steps") or {}).items()}
    lines = [done] if (done := summary(steps)) else []
    if not pipeline.get("running") or not said.get("state"):
        return lines
    if said["state"] == "ready":
        ui = f", UI {said['ui']}" if said.get("ui") else ""
        return [f"Spark {said['version']} on {said['master']}{ui}", *lines]
    return [f"Spark is {said['state']}: the driver runs the tasks", *lines]


def _unreachable(name: str, said: dict[str, Any], other: str) -> str:
    """States since when a process cannot reach its source or target."""
    since = _moment(said.get("unreachable_since") or said["at"])
    tries = said.get("attempts") or 1
    return f"{name} reconnecting: the {other} is unreachable since {since} ({tries} attempts)"


def _retained_log(capture: dict[str, Any]) -> list[str]:
    """The log that the source keeps for the task, if it is large or close to its limit."""
    kept, left = capture.get("retained_bytes"), capture.get("left_bytes")
    if kept is None or (kept < MUCH and (left is None or left > kept)):
        return []
    then = "" if left is None else f", and will discard it after {about(left)} more"
    return [f"the source keeps {about(kept)} of log for this task{then} (docs/operating.md)"]


def _process(name: str, said: dict[str, Any] | None) -> str:
    """The state of a process, or since when it does not run."""
    if said is None:
        return f"{name} never ran"
    if not said["running"]:
        ended = said.get("state") in ENDED
        words = f"{name} has not run since {_moment(said['since'])}"
        if said.get("ended"):
            return f"{words}: {str(said['ended']).splitlines()[0]}"
        return words if ended else f"{words}: it did not end normally"
    words = f"{name} {said.get('state')}"
    if unheard := said.get("unheard_since"):
        return f"{words}, but without a report since {_moment(unheard)}: its host may be down"
    return words


def _moment(iso: str) -> str:
    """A time for people.

    >>> _moment("2026-11-22T15:15:31.268+00:00")
    '2026-11-22 15:15:31 UTC'
    """
    at = datetime.fromisoformat(iso).astimezone(timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


_OTHER_LINES = 12
"""Lines of the live screen that are not tables."""


def live(task: Task, over: threading.Event) -> None:
    """Redraws the status once a second until `over` is set."""
    there = console()
    while not over.is_set():
        size = there.size
        with Live(console=there, refresh_per_second=4, transient=True) as shown:
            while not over.is_set() and there.size == size:
                shown.update(_frame(task, max(1, size.height - _OTHER_LINES)))
                over.wait(1.0)
        if not over.is_set():
            there.clear()  # the terminal was resized, which has moved the lines of the last frame


def _frame(task: Task, lines: int) -> RenderableType:
    try:
        return Group(status(status_of(task), lines), _baselines(task))
    except (OSError, ValueError, DeltaError, TailraceError) as error:  # a process is writing it
        return Text(f"the task's state cannot be read at the moment: {error}")


def _baselines(task: Task) -> Progress | Text:
    running = {
        name: one
        for name, one in ((json_files.read(task.run_path, "capture") or {}).get("baselines") or {}).items()
        if one.get("state") == "running"
    }
    if not running:
        return Text("")
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rows]}")
    )
    for name, one in running.items():
        total, done = one.get("parts") or None, one.get("parts_done") or 0
        bars.add_task(f"baseline {name}", total=total, completed=done, rows=f"{one.get('rows', 0):,} rows")
    return bars


def report(found: ValidationReport) -> Group:
    """The result of a validation: a line per table, then the first differing rows."""
    columns = [
        Col("table", fold=True), Col("source rows", right=True), Col("target rows", right=True), Col("equal"),
        Col("differs", fold=True),
    ]  # fmt: skip
    shown = Fit(columns, title=f"validated at {format_lsn(found.position)}")
    parts: list[Fit | Text] = [shown]
    for t in found.tables:
        if t.not_compared is not None:
            shown.add(t.table, "", "", Text("not compared", "bold red"), t.not_compared)
            continue
        words = (
            [f"{t.differing_rows:,} {'row' if t.differing_rows == 1 else 'rows'}"] if t.differing_rows else []
        )
        words += [t.columns] if t.columns else []
        equal = Text("yes", "green") if t.equal else Text("NO", "bold red")
        shown.add(t.table, f"{t.source_rows:,}", f"{t.target_rows:,}", equal, "; ".join(words))
        if t.samples:
            rows = Fit([Col(c, fold=True) for c in t.samples[0]], title=f"{t.table}: rows on one side only")
            for sample in t.samples:
                rows.add(*("NULL" if v is None else str(v) for v in sample.values()))
            parts.append(rows)
    if behind := ", ".join(t.table for t in found.tables if t.overlaid):
        said = "waiting changes count as applied here (`tailrace status` shows why they wait)"
        parts.append(Text(f"{behind}: {said}"))
    for t in found.tables:
        if t.as_null:
            parts.append(Text(f"{t.table}: {_bad(t.as_null, ' of the source')} compared as NULL"))
    return Group(*parts)


def _bad(many: int, of: str = "") -> str:
    """Subject and verb for values that the column's lake type cannot hold.

    >>> print(_bad(2, " of the source"))
    2 values of the source that the column's lake type cannot hold were
    """
    one = many == 1
    said = f"{many:,} {'value' if one else 'values'}{of} that the column's lake type cannot hold"
    return f"{said} {'was' if one else 'were'}"


def repaired(before: ValidationReport, done: list[RepairResult], after: ValidationReport | None) -> Group:
    """The result of a repair: the differences before, the changes written, and the differences after."""
    parts: list[Group | Fit] = [report(before)]
    if done:
        title = "repaired" if after is not None else "not repaired: a repair would write"
        counted = [Col(name, right=True) for name in ("inserts", "updates", "deletes")]
        run, refused = Col("run in the key log", spare=1), Col("not repaired", fold=True)
        shown = Fit([Col("table", fold=True), *counted, run, refused], title=title)
        for one in done:
            counts = (f"{n:,}" for n in (one.inserts, one.updates, one.deletes))
            shown.add(one.table, *counts, one.run_id or "", one.refused or "")
        parts.append(shown)
    if after is not None:
        parts.append(report(after))
    return Group(*parts)
