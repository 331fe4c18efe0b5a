"""Columns whose older rows changed at the source without a record in the log.

Notes of the kind `column_states` have the newest result of `LogSource.column_states` for each table. The
columns of a table without a note are stored as they are. Notes of the kind `column_changes` have the changes
since then. Changes that make a table `stale` are kept until a new baseline is requested, or the table is
suspended for it. All `doubts` are kept with their time, and hold until a later baseline.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..apply.mapping.table_map import task_map
from ..config.task import Task
from ..model.change import Relation
from ..sources.base import LogSource
from ..sources.postgresql.layout import USING, retyped
from ..state.baselines import Baseline
from ..state.capture_gaps import UNLOGGED_VALUES
from ..state.notes import Notes
from ..state.open_warnings import OpenWarnings

logger = logging.getLogger("tailrace.capture")
EVERY_S = 5.0
"""Seconds between two checks of all columns."""
STALE = UNLOGGED_VALUES + " ({}): a new baseline has them"
_STATES, _CHANGES = "column_states", "column_changes"


class ColumnNotes:
    """The stored states of the columns of a task's tables."""

    def __init__(self, task: Task) -> None:
        self._task, self._due = task, 0.0
        self._noted_states, self._noted_changes = Notes(task, _STATES), Notes(task, _CHANGES)
        self._states: dict[str, Mapping[str, Any]] = self._noted_states.read()
        self._changes: dict[str, dict[str, Any]] = self._noted_changes.read()

    def stale(
        self, source: LogSource, tables: Sequence[str], *, notes: bool = True, now: bool = False
    ) -> dict[str, str]:
        """Returns the tables whose target needs a new baseline, with the reason.

        Args:
            source: is queried if a check is due, or a table is new.
            tables: the tables to check.
            notes: whether the result is stored.
            now: whether the source is queried in any case.
        """
        if now or time.monotonic() >= self._due or any(t not in self._states for t in tables):
            self._due = time.monotonic() + EVERY_S
            self._look(source, tables, notes=notes)
        found = {t: one["stale"] for t, one in self._changes.items() if t in tables and one["stale"]}
        return {t: STALE.format("; ".join(said)) for t, said in found.items()}

    def settled(self, tables: Collection[str]) -> None:
        """Marks tables as not stale: a new baseline is requested or about to be read, or they are
        suspended."""
        stale = {t: one | {"stale": []} for t, one in self._changes.items() if t in tables and one["stale"]}
        self._write(stale)

    def _look(self, source: LogSource, tables: Sequence[str], *, notes: bool) -> None:
        found = source.column_states(tables, self._states)
        if not found:
            return
        at, changes = dt.datetime.now(dt.timezone.utc).isoformat(), dict(self._changes)
        for table, one in found.items():
            for change in one.changed:
                said = f"column {change.column}: {change.why}"
                mine = changes.get(table, {"stale": [], "doubts": {}})
                stale = change.stale or change.column in (task_map(self._task, table).key or ())
                held = [*mine["stale"], said] if stale and said not in mine["stale"] else mine["stale"]
                changes[table] = {"stale": held, "doubts": mine["doubts"] | {said: at}}
                if notes:
                    logger.warning("%s, %s", table, said, extra={"table": table})
        new = {t: one for t, one in changes.items() if self._changes.get(t) != one}
        if not notes:
            self._changes = changes
            return
        self._write(new)  # before the states: after a crash the source reports it again
        states = {t: one.state for t, one in found.items()}
        self._states = {**self._states, **states}
        self._noted_states.write(states)

    def _write(self, changed: Mapping[str, dict[str, Any]]) -> None:
        self._changes = {**self._changes, **changed}
        self._noted_changes.write(changed)


def warn_of_types(
    warnings: OpenWarnings, known: dict[int, Relation], announced: Iterable[tuple[int, Relation]]
) -> None:
    """Warns of columns whose type differs from that in the known layout, and updates the known layouts.

    Args:
        known: the newest layout by the table's number.
        announced: the layouts that the stream announced.
    """
    for _, made in announced:
        for old, new in retyped(made, known.get(made.relid)):
            what = f"column {new.name} changed from {old.source_type} to {new.source_type}: {USING}"
            cure = "`tailrace validate` shows the differences, `tailrace resync` repairs them"
            warnings.happened("types", made.table, what, cure)
        known[made.relid] = made


def noted_doubts(task: Task, baselines: Mapping[str, Baseline]) -> dict[str, list[str]]:
    """Returns for each table the changes of its columns without a record in the log since its
    baseline began."""
    found: dict[str, list[str]] = {}
    for table, one in Notes(task, _CHANGES).read().items():
        if (taken := baselines.get(table)) is None:
            continue
        began = taken.finished_at - dt.timedelta(seconds=taken.seconds)
        since = [said for said, at in one["doubts"].items() if began <= dt.datetime.fromisoformat(at)]
        if since:
            found[table] = since
    return found
