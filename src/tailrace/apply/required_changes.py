"""The changes that a task's targets and its key log still need from the change tables. It needs no JVM.

A table needs the changes after the progress of its target, whatever stops it there: a command, a suspension,
an error that is tried again, an interval. A baseline that is being read resets the target to the end of LOG
at its start, which is not known before it is loaded. So all changes of such a table are needed until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ..config.policies import MEDIUM
from ..config.task import Task
from ..keylog.key_log import KeyLog
from ..lake import delta as lake
from ..lake.table import progress as progress_of
from ..model.positions import ChangeNumber
from ..state import ddl, lifecycle
from ..state.lifecycle import TableLifecycle
from ..targets.multi_source import TargetLocation
from ..targets.task_tables import target_tables
from .mapped_snapshots import loaded, waits_in_staging
from .mapping.table_map import place_of, task_map
from .table_progress import lacks_baseline


@dataclass(frozen=True)
class Need:
    """A need for all changes after a change number.

    Attributes:
        who: what needs them.
        after: the change number; None if all changes are needed.
    """

    who: str
    after: ChangeNumber | None


class Needs:
    """The present needs of the tables of a task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._states = lifecycle.read(task)
        self._taken = self._states.baselines
        self._open = {t for t, one in self._states.items() if one.loading is not None}
        self._lost = self._without_reader()
        self._loaded = loaded(task.control_path("mapped"))
        self._names = self._states.target_names
        logged = task.keylog.mode != "off" and lake.exists(task.keylog_path)
        self._keylog = KeyLog(task.keylog_path, app_id=task.name, run_id="") if logged else None

    @property
    def removed(self) -> set[str]:
        """The tables that were removed from the task; their changes are not needed."""
        return self._states.removed

    def of(self, table: str) -> list[Need]:
        """The needs of a table's target and key log."""
        if table in self.removed | self._lost or self._task.policy(table).level < MEDIUM:
            return []
        state = self._states[table]
        found = [Need(who, None) for who in self._pending_baselines(table, state)]
        taken = self._taken.get(table)
        if taken is not None and waits_in_staging(taken, self._loaded):
            found.append(Need("its baseline, which waits to be mapped", taken.after))
        why = state.held or ("missing changes" if state.gap else "")
        found.append(Need(f"its target ({why})" if why else "its target", self._reached(table)))
        if self._keylog is not None and (reached := self._keylog.state(table).progress) is not None:
            found.append(Need("the key log", ChangeNumber(reached)))
        return found

    def without_baseline(self, tables: Iterable[str]) -> list[str]:
        """Those of the tables whose target does not have their baseline: it was removed, was created again,
        or the task now has another target.

        Tables that get a new baseline are left out, and so are those whose target is the table of another
        one: `adoption_findings` reports them.
        """
        loaded = [t for t in tables if self.has_baseline(t)]
        if not loaded:
            return []
        with self._progress() as progress:
            return [t for t in loaded if lacks_baseline(self._taken[t], progress(t))]

    def written(self, tables: Iterable[str]) -> set[str]:
        """Those of the tables whose target this task has written to, with or without a baseline.

        Raises:
            ApplyError: the target cannot be reached.
        """
        with self._progress() as progress:
            return {t for t in tables if progress(t) is not None}

    def filled(self, tables: Iterable[str]) -> set[str]:
        """Those of the tables whose target has a baseline or changes; errors as `written`."""
        rest = [t for t in tables if t not in self._taken]
        return {t for t in tables if t in self._taken} | (self.written(rest) if rest else set())

    def has_baseline(self, table: str) -> bool:
        """Whether the newest baseline of a table was loaded, and no other one is expected."""
        taken, state = self._taken.get(table), self._states[table]
        if (
            taken is None
            or waits_in_staging(taken, self._loaded)
            or self._pending_baselines(table, state)
            or state.moving
        ):
            return False
        return table not in self.removed and self._task.policy(table).level >= MEDIUM

    def passed(self, known: Mapping[str, object]) -> ChangeNumber | None:
        """The last change number in LOG when the oldest baseline of the `known` tables started; None if a
        table has no baseline.

        Targets need no changes up to there: a baseline that is being read started later.
        """
        excluded = self.removed | self._lost
        mine = [t for t in known if t not in excluded and self._task.policy(t).level >= MEDIUM]
        if not self._taken.keys() >= set(mine):
            return None
        return min((self._taken[t].after for t in mine), default=None)

    def _without_reader(self) -> set[str]:
        """Tables that were dropped at the source before they had a baseline, in a task with baselines. If one
        is created again, its baseline needs none of these changes."""
        if not self._task.baseline.enabled:
            return set()
        last = {one.table: one.kind for one in ddl.events(self._task.control_path("ddl_events"))}
        dropped = {t for t, kind in last.items() if kind == "drop_table"}
        return dropped - self._taken.keys() - self._open

    def _pending_baselines(self, table: str, state: TableLifecycle) -> list[str]:
        """The baselines that are requested, being read, or not closed, as the subject of a `Need`."""
        found = []
        if self._task.baseline.enabled and table not in self._taken and table not in self._open:
            found.append("its first baseline")
        if table in self._open:
            found.append("its baseline, whose window is open")
        elif state.wanted or state.landing:
            found.append("its new baseline")
        return found

    def _reached(self, table: str) -> ChangeNumber | None:
        with self._progress() as progress:
            return progress(table)

    @contextmanager
    def _progress(self) -> Iterator[Callable[[str], ChangeNumber | None]]:
        """A function that returns the progress of a table's target, over one connection."""
        task = self._task

        def in_folder(table: str) -> ChangeNumber | None:
            at = self._place(table)
            tables = target_tables(task)
            return progress_of(tables, tables.name(at.target), at.app(table, task.apply_app))

        if not task.target.database:
            yield in_folder
            return
        from ..targets.postgresql.connection import Database, open_session
        from ..targets.postgresql.progress import ProgressTable

        database = Database.of(task.target.database)
        with open_session(database, database.label) as session:
            progress = ProgressTable(database, task.name, self._place)
            yield (
                lambda table: (
                    ChangeNumber(found.number)
                    if (found := progress.read(session, table)) and found.number >= 0
                    else None
                )
            )

    def _place(self, table: str) -> TargetLocation:
        return place_of(task_map(self._task, table), self._names)
