"""What a task looks like on a terminal: the live screen of `run`, the tables of `status` and `validate`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from .control import live as state
from .status import ENDED, RECONNECTING, Status
from .status import status as status_of

if TYPE_CHECKING:
    from .control.task import Task
    from .repair import Repaired
    from .validate import Report


def table(found: Status) -> Table:
    """One line a table, with the task's stages in the title."""
    shown = Table(title=_title(found), title_justify="left", caption=_caption(found), caption_justify="left")
    for name, right in (
        ("table", False), ("state", False), ("baseline rows", True), ("stored", True), ("inserted", True),
        ("updated", True), ("deleted", True), ("behind", True), ("position", False),
    ):  # fmt: skip
        shown.add_column(name, justify="right" if right else "left", no_wrap=True)
    for t in found.tables:
        rows = "" if t.baseline_rows is None else f"{t.baseline_rows:,}"
        counts = (f"{n:,}" for n in (t.stored, t.inserted, t.updated, t.deleted, t.behind))
        shown.add_row(t.table, t.state, rows, *counts, (t.position or "")[:16])
    return shown


def reasons(found: Status) -> Text:
    """Why tables are paused, suspended or wait for a baseline, targets with other names, consumers that keep
    old changes for long: a line each."""
    lines = [
        f"{t.table}: {t.state} since {t.since} by {t.who}: {t.why}" for t in found.tables if t.why and t.since
    ]
    lines += [
        f"{t.table}: {t.errors} errors in a row, tried again: {t.error}" for t in found.tables if t.errors
    ]
    lines += [f"{t.table}: its target is called {t.target}" for t in found.tables if t.target]
    lines += [f"consumer {name}: {said}" for name, said in found.consumers.items()]
    return Text("\n".join(lines))


def _title(found: Status) -> Text:
    return Text(
        f"{found.task}: captured {found.captured:,}, stored {max(found.stored, 0):,}, "
        f"applied {max(found.applied, 0):,} (change numbers)"
    )


def _caption(found: Status) -> Text:
    words = [_process("capture", found.capture), _process("pipeline", found.pipeline)]
    if found.capture and found.capture["running"]:
        rate, behind, seconds = (found.capture.get(k) for k in ("rate", "lag_bytes", "lag_seconds"))
        if behind is None or seconds is None:
            words.append("lag unknown")
        else:
            words.append(f"{rate or 0:,.0f} records/s, lag {behind:,} bytes, {seconds:.1f} s")
        if found.capture.get("message"):
            words.append(str(found.capture["message"]))
    else:
        words.append("lag unknown")
    return Text("; ".join(words))


def _process(name: str, said: dict[str, Any] | None) -> str:
    """What a process does, or since when it does nothing."""
    if said is None:
        return f"{name} never ran"
    if not said["running"]:
        ended = said.get("state") in ENDED
        return f"{name} is not running since {said['since']}" + (
            "" if ended else ": it did not end by itself"
        )
    if said.get("state") == RECONNECTING:
        since = said.get("unreachable_since")
        when = f"since {since}" if since else f"(last tried at {said['at']})"
        return f"{name}: the source is unreachable {when}"
    return f"{name} {said.get('state')}"


def live(task: Task, over: threading.Event) -> None:
    """Redraws the status once a second until `over` is set."""
    with Live(console=Console(), refresh_per_second=4, transient=True) as shown:
        while not over.is_set():
            found = status_of(task)
            shown.update(Group(table(found), reasons(found), _baselines(task)))
            over.wait(1.0)


def _baselines(task: Task) -> Progress | Text:
    running = {
        name: one
        for name, one in ((state.read(task.run_path, "capture") or {}).get("baselines") or {}).items()
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


def report(found: Report) -> Group:
    """The result of a validation: a line a table, then the first differing rows."""
    shown = Table(title=f"validated at {found.position[:16]}", title_justify="left")
    for name, right in (
        ("table", False),
        ("source rows", True),
        ("target rows", True),
        ("equal", False),
        ("differs", False),
    ):
        shown.add_column(name, justify="right" if right else "left")
    parts: list[Table | Text] = [shown]
    for t in found.tables:
        words = [f"{t.differing_rows:,} rows"] if t.differing_rows else []
        words += [t.columns] if t.columns else []
        equal = Text("yes", "green") if t.equal else Text("NO", "bold red")
        shown.add_row(t.table, f"{t.source_rows:,}", f"{t.target_rows:,}", equal, "; ".join(words))
        if t.samples:
            rows = Table(title=f"{t.table}: rows on one side only", title_justify="left")
            for column in t.samples[0]:
                rows.add_column(column, overflow="fold")
            for sample in t.samples:
                rows.add_row(*("NULL" if v is None else str(v) for v in sample.values()))
            parts.append(rows)
    return Group(*parts)


def repaired(before: Report, done: list[Repaired], after: Report | None) -> Group:
    """The result of a repair: what differed, what was (or would be) written, what is left."""
    parts: list[Group | Table | Text] = [report(before)]
    if done:
        title = "repaired" if after is not None else "not repaired: what a repair would write"
        shown = Table(title=title, title_justify="left")
        for name in ("table", "inserts", "updates", "deletes", "run in the key log", "not repaired"):
            shown.add_column(name, justify="right" if name.endswith("s") else "left")
        for one in done:
            counts = (f"{n:,}" for n in (one.inserts, one.updates, one.deletes))
            shown.add_row(one.table, *counts, one.run_id or "", one.refused or "")
        parts.append(shown)
    if after is not None:
        parts.append(report(after))
    return Group(*parts)
