"""Shows the demo on a terminal: lines with seconds, a progress bar, and the result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.status import Status
from rich.table import Table
from rich.text import Text

from ..cli.output import console
from ..cli.screen_fit import Col, Fit
from ..lake import json_files
from ..query.render import format_value

if TYPE_CHECKING:
    from ..config.task import Task
    from .questions import Answer
    from .result import DemoResult
    from .story import StoryEvent


class Show:
    """Shows the demo's progress; `quiet` keeps the steps and prints nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = console(quiet=quiet)
        self._began = time.monotonic()
        self._status: Status | None = None
        self._words = ""
        self._progress: Progress | None = None
        self._bar = TaskID(0)
        self._task: Task | None = None
        self.steps: list[tuple[float, str]] = []

    @property
    def seconds(self) -> float:
        """Seconds since the demo started."""
        return round(time.monotonic() - self._began, 1)

    def step(self, words: str) -> None:
        """Prints a line about a completed step."""
        self.steps.append((self.seconds, words))
        self._console.print(f"[bold green]{self.seconds:6.1f} s[/]  {escape(words)}", soft_wrap=True)

    def act(self, words: str) -> None:
        """Prints a dimmed line about an act of the writer."""
        self.steps.append((self.seconds, words))
        self._console.print(f"[dim]{self.seconds:6.1f} s    {escape(words)}[/]", soft_wrap=True)

    @contextmanager
    def doing(self, words: str) -> Iterator[None]:
        """Shows a spinner while something takes time."""
        self._words = words
        with self._console.status(escape(words)) as self._status:
            yield
        self._status = None

    def about(self, detail: str) -> None:
        """Shows a detail next to the spinner."""
        if self._status is not None:
            self._status.update(f"{escape(self._words)}: {escape(detail)}")

    def baselines(self, task: Task) -> None:
        """Shows the progress of baselines next to the spinner."""
        running = (json_files.read(task.run_path, "capture") or {}).get("baselines") or {}
        rows = sum(one.get("rows") or 0 for one in running.values())
        if rows:
            self.about(f"{rows:,} rows")

    @contextmanager
    def loading(self, task: Task, seconds: float) -> Iterator[None]:
        """Shows a bar over the time of the load, with the progress of capture and pipeline."""
        columns = (
            BarColumn(bar_width=10),
            TextColumn("{task.completed:.0f}/{task.total:.0f} s  {task.fields[words]}"),
        )
        with Progress(*columns, console=self._console, transient=True) as self._progress:
            self._task, self._bar = task, self._progress.add_task("load", total=seconds, words="")
            self._load_began = time.monotonic()
            yield
        self._progress = None

    def tick(self) -> None:
        """Updates the bar."""
        if self._progress is None or self._task is None:
            return
        capture = json_files.read(self._task.run_path, "capture") or {}
        pipeline = json_files.read(self._task.run_path, "pipeline") or {}
        tables: dict[str, Any] = pipeline.get("tables") or {}
        stored = sum(t.get("stored", 0) for t in tables.values())
        applied = sum(t.get(k, 0) for t in tables.values() for k in ("inserted", "updated", "deleted"))
        words = f"captured {capture.get('records', 0):,}  stored {stored:,}  rows applied {applied:,}"
        done = time.monotonic() - self._load_began
        self._progress.update(self._bar, completed=done, words=words)

    def result(self, played: DemoResult) -> None:
        """Prints the tables, the changes of one row, and commands to try next."""
        self._console.print()
        self._console.print(_tables(played))
        self._console.print()
        self._console.print(_life(played.life))
        self._console.print()
        for answer in played.answers:
            self._console.print(Text(answer.question, "bold"))
            self._console.print(Text(f"$ {answer.command}", "dim"), soft_wrap=True)
            self._console.print(_answer(answer))
            self._console.print()
        self._console.print(f"Everything is in {escape(played.folder)}. Try next:", soft_wrap=True)
        for command in played.next:
            self._console.print(f"  {escape(command)}", soft_wrap=True)
        self._console.print()
        self._console.print(_spark(played.spark))


def _tables(played: DemoResult) -> Group:
    title = f"rows of source and target at position {int(played.position[:16], 16):X}"
    columns = [
        Col("table"), Col("source", right=True), Col("target", right=True), Col("equal"),
        Col("changes", right=True), Col("changes/s", right=True),
    ]  # fmt: skip
    shown = Fit(columns, title=title)
    for t in played.tables:
        equal = Text("yes", "green") if t.equal else Text("NO", "bold red")
        counts = (f"{n:,}" for n in (t.source_rows, t.target_rows))
        shown.add(t.table, *counts, equal, f"{t.changes:,}", f"{t.changes_per_second:,.0f}")
    changes, rate = (sum(getattr(t, k) for t in played.tables) for k in ("changes", "changes_per_second"))
    shown.add("all", "", "", "", f"{changes:,}", f"{rate:,.0f}")
    words = [Text(f"{t.table} differs: {t.differs}", "red") for t in played.tables if not t.equal]
    verdict = Text("every target is equal to its source, row by row (checksums)", "bold green")
    note = Text("changes: stored and applied; per second from the first write to the last apply", "dim")
    return Group(shown, *(words or [verdict]), note)


def _spark(steps: dict[str, dict[str, int]]) -> Fit:
    numbers = ("jobs", "tasks", "changes and rows", "in the driver")
    columns = [Col("step"), *(Col(name, right=True) for name in numbers)]
    shown = Fit(columns, title="what Spark's tasks did")
    for kind, one in steps.items():
        shown.add(kind, *(f"{one[name]:,}" for name in ("jobs", "tasks", "in_spark", "in_driver")))
    return shown


def _answer(answer: Answer) -> Fit:
    shown = Fit([Col(name, fold=True) for name in answer.rows[0]])
    for row in answer.rows:
        shown.add(*map(format_value, row.values()))
    return shown


NUMBERS = (
    "A change number counts the records of the task's log, including begins and commits. It orders "
    "changes over all tables, and is the end of header__change_seq."
)


def _life(events: list[StoryEvent]) -> Group:
    shown = Table(title="one customer's life, from its change table", title_justify="left", show_lines=True)
    for name in ("change", "before", "after"):
        shown.add_column(name, overflow="fold")
    for e in events:
        head = (
            f"[bold]{e.operation}[/] (change {e.number})",
            f"{e.time:%H:%M:%S.%f} UTC",
            f"transaction {e.transaction}",
            f"position {int(e.position[:16], 16):X}/{int(e.position[16:32], 16)}",
            f"mask: {escape(', '.join(e.changed)) or 'nothing'}",
        )
        # An update's images are shown where they differ, an insert's with the columns that existed then.
        names = e.changed if e.oper in ("U", "I") else None
        shown.add_row("\n".join(head), _image(e.before, names), _image(e.after, names))
    return Group(shown, Text(NUMBERS, "dim"))


def _image(image: dict[str, Any] | None, names: list[str] | None) -> str:
    """Returns an image's values, or those of some columns."""
    if image is None:
        return "-"
    if names == []:
        return "(the same)"
    pairs = ((k, v) for k, v in image.items() if names is None or k in names)
    return "\n".join(f"{escape(k)} = {'NULL' if v is None else escape(str(v))}" for k, v in pairs)
