"""Caches of what apply needs of the tables of a task: layouts and baselines, and progress."""

from __future__ import annotations

from collections.abc import Iterable

from ..lake import delta as lake
from ..lake import log
from ..model.positions import ChangeNumber
from ..state.baselines import Baseline, read_baselines
from ..targets.base import Target, missing_baseline
from .reading import ApplyPaths
from .task_rules import TaskRules


class TableHistory:
    """Layouts and baselines by table, as of the last `refresh`."""

    def __init__(self, paths: ApplyPaths) -> None:
        self._paths = paths
        self._versions: tuple[int | None, int | None] | None = None
        self.layouts: dict[str, list[log.Layout]] = {}
        self.baselines: dict[str, Baseline] = {}

    def refresh(self) -> set[str] | None:
        """Reads the control tables again if they have changed. Returns the tables with a new baseline (none
        the first time); None if nothing has changed."""
        versions = (lake.version(self._paths.relations), lake.version(self._paths.baselines))
        if versions == self._versions:
            return None
        layouts, fresh = log.history(self._paths.relations), read_baselines(self._paths.baselines)
        changed = {t for t, one in fresh.items() if self._versions and self.baselines.get(t) != one}
        self.layouts, self.baselines, self._versions = layouts, fresh, versions
        return changed


def lacks_baseline(baseline: Baseline, progress: int | None) -> bool:
    """Whether a target no longer has the newest baseline of its table, which was loaded into it.

    `progress`: the target's progress, which a baseline sets to `after`; None if the target does not exist.
    """
    return progress is None or progress < baseline.after


class TableProgress:
    """The last change numbers that tables have in their target and their key log.

    They are read from the target once, until `forget`. Any thread may use it, but only one at a time for a
    table.
    """

    def __init__(self, target: Target, rules: TaskRules | None, history: TableHistory) -> None:
        self._target, self._rules, self._history = target, rules, history
        self._known: dict[str, ChangeNumber | None] = {}

    def of(self, table: str) -> ChangeNumber | None:
        """The last change number that a table has in its target and its key log; None if nothing was applied.

        Raises:
            BaselineNeededError: the target does not have the rows of the table's baseline.
        """
        if table not in self._known:
            progress = self._target.progress(table)
            self._refuse_lost_baseline(table, progress)
            if self._rules:
                baseline = self._history.baselines.get(table)
                self._rules.found(table, progress, baseline.after if baseline else None)
            # Changes that a crash has kept from the key log are read again, only to log them.
            logged = self._logged(table)
            self._known[table] = progress if logged is None or progress is None else min(progress, logged)
        return self._known[table]

    def _refuse_lost_baseline(self, table: str, progress: int | None) -> None:
        baseline = self._history.baselines.get(table)
        if baseline is None:
            return
        if lacks_baseline(baseline, progress):
            raise missing_baseline(table)

    def _logged(self, table: str) -> ChangeNumber | None:
        logged = self._rules.logged(table) if self._rules else None
        baseline = self._history.baselines.get(table)
        if self._rules is None or logged is None or baseline is None or logged >= baseline.after:
            return logged
        # The baseline has these changes: they are not logged, and may have been removed.
        self._rules.passed(table, baseline.after)
        return baseline.after

    def forget(self, tables: Iterable[str] | None = None) -> None:
        """Discards the progress of tables (by default of all), so that it is read again."""
        for table in list(self._known) if tables is None else tables:
            self._known.pop(table, None)

    def advance(self, table: str, number: ChangeNumber) -> None:
        """Notes that a table has all changes up to a number."""
        self._known[table] = number

    def has(self, table: str, number: ChangeNumber) -> bool:
        """Whether a table is known to have all changes up to a number."""
        known = self._known.get(table)
        return known is not None and known >= number
