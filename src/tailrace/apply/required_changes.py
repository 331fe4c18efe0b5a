"""What a task's targets and its key log still need of the change tables; no JVM, running or not.

A table needs its changes behind the number that its target has reached, whatever keeps it there: an order, a
suspension, an error that is tried again, an interval. A baseline that is on its way needs more than anybody
can tell before it has landed: it puts the target back to where LOG was when it began. So nothing of such a
table goes until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ..config.policies import MEDIUM
from ..config.task import Task
from ..keylog.key_log import KeyLog
from ..lake import delta as lake
from ..model.positions import ChangeNumber
from ..state import ddl, lifecycle
from ..state.lifecycle import TableLifecycle
from ..targets.multi_source import TargetLocation
from .mapped_snapshots import loaded, waits_in_staging
from .mapping.table_map import place_of, task_map
from .table_progress import lacks_baseline


@dataclass(frozen=True)
class Need:
    """Somebody needs all changes behind a change number (None: every one there is)."""

    who: str
    after: ChangeNumber | None


class Needs:
    """The needs of a task's tables as of now; `of` tells those of one."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._states = lifecycle.read(task)
        self._taken = self._states.baselines
        self._open = {t for t, one in self._states.items() if one.loading is not None}
        self._lost = self._never_to_be_read()
        self._loaded = loaded(task.control_path("mapped"))
        self._names = self._states.target_names
        logged = task.keylog.mode != "off" and lake.exists(task.keylog_path)
        self._keylog = KeyLog(task.keylog_path, app_id=task.name, run_id="") if logged else None

    @property
    def removed(self) -> set[str]:
        """Tables that were removed: nobody waits for their changes."""
        return self._states.removed

    def of(self, table: str) -> list[Need]:
        """What a table's target and key log need."""
        if table in self.removed | self._lost or self._task.policy(table).level < MEDIUM:
            return []
        state = self._states[table]
        found = [Need(who, None) for who in self._on_its_way(table, state)]
        taken = self._taken.get(table)
        if taken is not None and waits_in_staging(taken, self._loaded):
            found.append(Need("its baseline, which waits to be mapped", taken.after))
        why = state.held or ("missing changes" if state.gap else "")
        found.append(Need(f"its target ({why})" if why else "its target", self._reached(table)))
        if self._keylog is not None and (reached := self._keylog.state(table).progress) is not None:
            found.append(Need("the key log", ChangeNumber(reached)))
        return found

    def gone(self, tables: Iterable[str]) -> list[str]:
        """Those of the tables whose target lacks their baseline: it is gone, was made anew, or the task
        looks for it elsewhere now. Those that get a new baseline are not among them, nor those whose name
        another table has: `adoption_checks` names these."""
        landed = [t for t in tables if self.landed(t)]
        if not landed:
            return []
        with self._standing() as standing:
            return [t for t in landed if self._lacks(t, standing)]

    def _lacks(self, table: str, standing: Callable[[str], int | None]) -> bool:
        return lacks_baseline(self._taken[table], standing(table))

    def written(self, tables: Iterable[str]) -> set[str]:
        """Those of the tables whose target this task has written to, whether it has a baseline or not.

        Raises:
            ApplyError: the target cannot be asked.
        """
        with self._standing() as standing:
            return {t for t in tables if standing(t) is not None}

    def filled(self, tables: Iterable[str]) -> set[str]:
        """Those that a baseline or changes have filled; errors as `written`."""
        rest = [t for t in tables if t not in self._taken]
        return {t for t in tables if t in self._taken} | (self.written(rest) if rest else set())

    def landed(self, table: str) -> bool:
        """Whether the newest baseline of a table is the one that its target is to have."""
        taken, state = self._taken.get(table), self._states[table]
        if (
            taken is None
            or waits_in_staging(taken, self._loaded)
            or self._on_its_way(table, state)
            or state.moving
        ):
            return False
        return table not in self.removed and self._task.policy(table).level >= MEDIUM

    def passed(self, known: Mapping[str, object]) -> ChangeNumber | None:
        """The change number that LOG had reached when the oldest baseline of the `known` tables began; None:
        some table has none. Targets need nothing of LOG up to there; one that is on its way began later."""
        out = self.removed | self._lost
        mine = [t for t in known if t not in out and self._task.policy(t).level >= MEDIUM]
        if not self._taken.keys() >= set(mine):
            return None
        return min((self._taken[t].after for t in mine), default=None)

    def _never_to_be_read(self) -> set[str]:
        """Tables that are gone at the source and had no baseline, where targets begin with one: made again,
        one gets a baseline that needs no more of these changes."""
        if not self._task.baseline.enabled:
            return set()
        last = {one.table: one.kind for one in ddl.events(self._task.control_path("ddl_events"))}
        gone = {t for t, kind in last.items() if kind == "drop_table"}
        return gone - self._taken.keys() - self._open

    def _on_its_way(self, table: str, state: TableLifecycle) -> list[str]:
        """The baselines that are asked for, being read, or not closed."""
        found = []
        if self._task.baseline.enabled and table not in self._taken and table not in self._open:
            found.append("its first baseline")
        if table in self._open:
            found.append("its baseline, whose window is open")
        elif state.wanted or state.landing:
            found.append("its new baseline")
        return found

    def _reached(self, table: str) -> ChangeNumber | None:
        with self._standing() as standing:
            return standing(table)

    @contextmanager
    def _standing(self) -> Iterator[Callable[[str], ChangeNumber | None]]:
        """What gives the change number that a table's target has reached (None: it is not there), over one
        connection."""
        task = self._task

        def in_folder(table: str) -> ChangeNumber | None:
            at = self._place(table)
            path = task.target_path(at.target)
            return lake.progress(path, at.app(table, task.apply_app)) if lake.exists(path) else None

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
