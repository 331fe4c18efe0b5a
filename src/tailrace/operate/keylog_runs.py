"""The runs of a key log, and a task in its control tables.

A run belongs to one table. It is a call of `tailrace apply`, a period of a running task, or a repair. Its
`run_id` is in each of its rows, and in one row of `statistic`.

That row is written when the run begins, updated while it continues, and completed when it ends. Its figures
are counted from the rows of the key log, so they are right after a crash: the next run completes those that
were interrupted.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from ..config.task import Task
from ..errors import ConfigError
from ..formats.sqdr.control import GROUPS, IR_SUBSCRIPTION, STATISTIC, SUBSCRIPTIONS
from ..lake import delta as lake
from ..state import lifecycle
from ..state.baselines import read_baselines
from . import control_tables
from .keylog_retention import prune
from .keylog_rows import Counted, count

APPLY, REPAIR = "apply", "repair"
RUNNING, ENDED, FAILED, INTERRUPTED = "running", "ended", "failed", "interrupted"


@dataclass(frozen=True)
class Group:
    """A writer of a key log; `id` is its `group_id`. The addresses contain no password."""

    id: str
    name: str
    source: str = ""
    destination: str = ""


@dataclass(frozen=True)
class Subscription:
    """One table of a group: `id` is its `subscription_id`.

    Attributes:
        rules, mode: its apply rules, and the rows that are logged.
        destination: the name of the target.
        baseline: the end, rows and seconds of its baseline; None without a baseline.
    """

    id: str
    rules: str = "upsert"
    mode: str = "all"
    destination: str = ""
    baseline: tuple[datetime, int, float] | None = None


class Runs:
    """The runs of one group in one process. Thread-safe.

    Args:
        keylog: the path of the key log.
        group: the writer.
        kind: `apply` or `repair`.
        keep: the number of past runs of a table that stay when a new one begins; 0 for all.
        every: the age in seconds at which a run is replaced by a new one, once a run is requested; None if
            runs continue until `end`.
    """

    def __init__(
        self, keylog: str, group: Group, *, kind: str = APPLY, keep: int = 0, every: float | None = None
    ) -> None:
        self._keylog, self._group, self._kind = keylog.rstrip("/"), group, kind
        self._keep, self._every = keep, every
        self._lock = threading.Lock()
        self._open: dict[str, tuple[str, float]] = {}  # subscription -> run and its start
        self._counted: dict[str, Counted] = {}

    def run_ids(self, tables: Iterable[Subscription]) -> dict[str, str]:
        """Returns the run of each subscription by its id, and starts missing ones.

        Raises:
            ConfigError: another group logs a table of that name here.
        """
        wanted = list(tables)
        with self._lock:
            now = time.monotonic()
            if self._every is not None:
                old = [s for s, (_, began) in self._open.items() if now - began > self._every]
                self._close(old, ENDED, None)
            if new := [t for t in wanted if t.id not in self._open]:
                self._begin(new, now)
            return {t.id: self._open[t.id][0] for t in wanted}

    def current(self, tables: Iterable[str]) -> dict[str, str] | None:
        """Returns all open runs by subscription; None if a table has no run, or if new runs are due."""
        with self._lock:
            old = self._every is not None and any(
                time.monotonic() - began > self._every for _, began in self._open.values()
            )
            if old or any(t not in self._open for t in tables):
                return None
            return {table: run for table, (run, _) in self._open.items()}

    @property
    def some(self) -> bool:
        """Whether any run is open."""
        return bool(self._open)

    def note(self, held: Mapping[str, str | None] | None = None, removed: Collection[str] = ()) -> None:
        """Updates the figures of open runs.

        Args:
            held: the reason why a table takes no changes, by table; None if it does.
            removed: the tables that were removed.
        """
        with self._lock:
            self._tell_held(held or {}, removed)
            self._write({run: {} for run, _ in self._open.values()})

    def end(
        self,
        held: Mapping[str, str | None] | None = None,
        removed: Collection[str] = (),
        *,
        error: str | None = None,
    ) -> None:
        """Ends all open runs, failed ones with an `error`; `held` and `removed` are as in `note`."""
        with self._lock:
            self._tell_held(held or {}, removed)
            self._close(list(self._open), ENDED if error is None else FAILED, error)

    def _begin(self, tables: Sequence[Subscription], now: float) -> None:
        self._refuse_others({t.id for t in tables})
        self._register(tables)
        self._end_dead({t.id for t in tables})
        at = datetime.now(timezone.utc)
        name = f"{at:%Y%m%dT%H%M%S}{at.microsecond // 1000:03}-{uuid.uuid4().hex[:6]}"  # in order of time
        mark = "" if self._kind == APPLY else f"-{self._kind}"
        started = []
        for place, table in enumerate(tables, 1):
            run = f"{name}-{place}{mark}"
            self._open[table.id], self._counted[run] = (run, now), Counted()
            done, rows, seconds = table.baseline or (None, None, None)
            started.append(
                {
                    "run_id": run, "group_id": self._group.id, "subscription_id": table.id,
                    "kind": self._kind, "state": RUNNING, "start_ts": at, "baseline_ts": done,
                    "baseline_rows": rows, "baseline_seconds": seconds, **Counted().as_row(),
                }
            )  # fmt: skip
        control_tables.put(self._keylog, STATISTIC, started)
        if self._keep:
            prune(self._keylog, self._keep)

    def _refuse_others(self, ids: set[str]) -> None:
        """Joins use `subscription_id` alone, so it cannot belong to two groups."""
        for row in control_tables.rows(self._keylog, IR_SUBSCRIPTION):
            if row["subscription_id"] in ids and row["group_id"] != self._group.id:
                raise ConfigError(
                    f"{row['group_id']} already logs changes of {row['subscription_id']} here",
                    where=self._keylog,
                    hint="give each its own key log (`--keylog`, or `keylog: {path: ...}`)",
                )

    def _register(self, tables: Sequence[Subscription]) -> None:
        now, group = datetime.now(timezone.utc), self._group
        if group.id not in {r["id"] for r in control_tables.rows(self._keylog, GROUPS)}:
            control_tables.put(self._keylog, GROUPS, [{"id": group.id, "name": group.name, "since": now}])
        where = {
            t.id: {
                "id": t.id, "source_dsn": group.source, "source_table": t.id,
                "destination_dsn": group.destination, "destination_table": t.destination or t.id,
            }
            for t in tables
        }  # fmt: skip
        control_tables.put(self._keylog, SUBSCRIPTIONS, where.values())
        known = {r["subscription_id"]: r for r in control_tables.rows(self._keylog, IR_SUBSCRIPTION)}
        new = [
            {
                "subscription_id": t.id, "group_id": group.id, "apply_rules": t.rules, "keylog_mode": t.mode,
                "state": "active", "state_reason": None,
                "since": known[t.id]["since"] if t.id in known else now,
            }
            for t in tables
        ]  # fmt: skip
        # A repair adds nothing to a known subscription.
        if self._kind != APPLY:
            new = [r for r in new if r["subscription_id"] not in known]
        control_tables.put(self._keylog, IR_SUBSCRIPTION, new)

    def _end_dead(self, ids: set[str]) -> None:
        """Ends interrupted runs of these tables, which are still marked as running.

        One process at a time writes to a key log, so no other run is active. A repair ends only those of
        repairs, because the task that requested it continues.
        """
        dead = [
            r["run_id"]
            for r in control_tables.rows(self._keylog, STATISTIC)
            if r["state"] == RUNNING and r["subscription_id"] in ids and self._kind in (APPLY, r["kind"])
        ]
        if dead:
            self._write({run: {"state": INTERRUPTED} for run in dead})

    def _close(self, tables: Sequence[str], state: str, error: str | None) -> None:
        if not tables:
            return
        now = datetime.now(timezone.utc)
        runs = [self._open[t][0] for t in tables]
        self._write({run: {"state": state, "end_ts": now, "error": error} for run in runs})
        for table in tables:
            self._counted.pop(self._open.pop(table)[0], None)

    def _write(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        """Writes the rows of runs with their current figures and states."""
        found = count(self._keylog, said, self._counted) if lake.exists(self._keylog) else {}
        self._counted |= {run: c for run, c in found.items() if run in self._counted}
        self._tell_flagged(found)
        rows = []
        for run, words in said.items():
            counted = found.get(run, Counted())
            row = {"run_id": run, **counted.as_row(), **words}
            if words.get("state") == INTERRUPTED:
                row["end_ts"] = counted.until
            rows.append(row)
        if rows:
            control_tables.put(self._keylog, STATISTIC, rows)

    def _tell_held(self, held: Mapping[str, str | None], removed: Collection[str]) -> None:
        said = {
            table: {
                "state": "removed" if table in removed else "active" if why is None else "suspended",
                "state_reason": why,
            }
            for table, why in held.items()
        }
        self._tell(said if self._kind == APPLY else {})

    def _tell_flagged(self, found: Mapping[str, Counted]) -> None:
        now = {t: found[run] for t, (run, _) in self._open.items() if run in found}
        self._tell({t: {"flagged_count": c.flagged_count} for t, c in now.items() if c.last is not None})

    def _tell(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        """Updates existing subscriptions of this group."""

        def ended(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            for row in rows:
                if row["group_id"] == self._group.id:
                    row.update(said.get(row["subscription_id"], {}))
            return rows

        if said:
            control_tables.table(self._keylog, IR_SUBSCRIPTION).change(ended)


RUN_S = 86_400.0
"""Seconds after which a running task begins a new run, so that old ones can be removed."""
NOTE_S, SOON_S = 60.0, 1.0
"""Seconds between updates of the figures of open runs, and between those after flagged changes."""


class TaskRuns:
    """The runs of a running task. Without a key log, its methods do nothing."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._on = task.keylog.mode != "off"
        self._runs = Runs(task.keylog_path, group_of(task), keep=task.keylog.keep_runs, every=RUN_S)
        self._noted, self._flagged = time.monotonic(), False
        self._lock = threading.Lock()

    def begin(self, wanted: Collection[str]) -> Mapping[str, str]:
        """Returns the run of each of these tables. If one has none, runs of all tables are started."""
        if not self._on:
            return {}
        now = self._runs.current(wanted)
        return self._runs.run_ids(subscriptions(self._task, wanted)) if now is None else now

    def flagged(self) -> None:
        """Reports flagged changes: the figures are updated, at the latest by the next `note`."""
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
        """Returns the reason why each table takes no changes (None if it does), and the removed tables."""
        states = lifecycle.read(self._task)
        held = {t: (states[t].why or states[t].held) if states[t].waits else None for t in states.baselines}
        return held, states.removed


def subscriptions(task: Task, wanted: Iterable[str] = (), *, others: bool = True) -> list[Subscription]:
    """Returns these tables of a task, with `others` also all that have a baseline, and their baselines."""
    taken = read_baselines(task.control_path("baselines"))
    found = []
    for table in sorted({*(taken if others else ()), *wanted}):
        one = taken.get(table)
        baseline = (one.finished_at, one.rows, one.seconds) if one else None
        found.append(Subscription(table, task.table(table).rule_mode, task.keylog.mode, baseline=baseline))
    return found


def group_of(task: Task) -> Group:
    """Returns the task as a group."""
    to = _plain(task.target.database) if task.target.database else task.target.path
    return Group(task.name, task.name, _plain(task.source.url), to)


def _plain(url: str) -> str:
    """Returns an address without user, password and options.

    >>> _plain("postgresql://me:secret@db:5432/shop?sslmode=require")
    'postgresql://db:5432/shop'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
