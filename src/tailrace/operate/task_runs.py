"""A task in the control tables of its key log: a group, its tables' subscriptions, their runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from ..config.task import Task
from ..state import lifecycle
from ..state.baselines import read_baselines
from .runs import Group, Runs, Subscription

RUN_S = 86_400.0
"""Seconds after which a running task begins a new run, so that old ones can be removed."""
NOTE_S, SOON_S = 60.0, 1.0
"""Seconds between updates of the figures of running runs, and between those after flagged changes."""


class TaskRuns:
    """The runs of a running task; does nothing for a task without key log."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._on = task.keylog.mode != "off"
        self._runs = Runs(task.keylog_path, group_of(task), keep=task.keylog.keep_runs, every=RUN_S)
        self._noted, self._flagged = time.monotonic(), False
        self._lock = threading.Lock()

    def begin(self, wanted: Collection[str]) -> Mapping[str, str]:
        """The run of each of these tables; started, together with those of all others, if one has none."""
        if not self._on:
            return {}
        now = self._runs.current(wanted)
        return self._runs.run_ids(subscriptions(self._task, wanted)) if now is None else now

    def flagged(self) -> None:
        """Changes were flagged: the figures are updated, at the latest by the next `note`."""
        self._flagged = True
        self.note()

    def note(self) -> None:
        """Updates the figures, once a minute; after flagged changes once a second."""
        with self._lock:
            if not self._on or time.monotonic() - self._noted < (SOON_S if self._flagged else NOTE_S):
                return
            self._flagged, self._noted = False, time.monotonic()
            self._runs.note(*self._held())

    @contextmanager
    def until_end(self) -> Iterator[None]:
        """Ends all runs when the block ends, with its error if it fails."""
        try:
            yield
        except BaseException as error:
            self._end(str(error) or type(error).__name__)
            raise
        self._end(None)

    def _end(self, error: str | None) -> None:
        if self._on and self._runs.some:
            self._runs.end(*self._held(), error=error)

    def _held(self) -> tuple[dict[str, str | None], set[str]]:
        """Why tables take no changes (None: they do), and those that were removed."""
        states = lifecycle.read(self._task)
        held = {t: (states[t].why or states[t].held) if states[t].waits else None for t in states.baselines}
        return held, states.removed


def subscriptions(task: Task, wanted: Iterable[str] = (), *, others: bool = True) -> list[Subscription]:
    """These tables of a task, and with `others` all that have a baseline; with the baseline's results."""
    taken = read_baselines(task.control_path("baselines"))
    found = []
    for table in sorted({*(taken if others else ()), *wanted}):
        one = taken.get(table)
        baseline = (one.finished_at, one.rows, one.seconds) if one else None
        found.append(Subscription(table, task.table(table).rule_mode, task.keylog.mode, baseline=baseline))
    return found


def group_of(task: Task) -> Group:
    """The task as a group."""
    to = _plain(task.target.database) if task.target.database else task.target.path
    return Group(task.name, task.name, _plain(task.source.url), to)


def _plain(url: str) -> str:
    """An address without user, password and options.

    >>> _plain("postgresql://me:secret@db:5432/shop?sslmode=require")
    'postgresql://db:5432/shop'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
