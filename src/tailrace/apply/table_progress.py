"""The change number that each table has reached."""

from __future__ import annotations

from collections.abc import Iterable

from ..lake import delta as lake
from ..lake import log
from ..state.baselines import Baseline, read_baselines
from ..state.ledger import Stored
from ..targets.base import Target, gone
from .reading import ApplyPaths
from .task_rules import TaskRules


class TableHistory:
    """Layouts and baselines by table, as of the last `refresh`."""

    def __init__(self, paths: ApplyPaths) -> None:
        self._paths = paths
        self._versions: tuple[int, int] | None = None
        self.history: dict[str, list[log.Layout]] = {}
        self.baselines: dict[str, Baseline] = {}

    def refresh(self) -> set[str] | None:
        """Looks again; gives the tables whose baseline is another one than at the last look (none, at the
        first), None when nothing is new."""
        versions = (lake.version(self._paths.relations), lake.version(self._paths.baselines))
        if versions == self._versions:
            return None
        history, fresh = log.history(self._paths.relations), read_baselines(self._paths.baselines)
        changed = {t for t, one in fresh.items() if self._versions and self.baselines.get(t) != one}
        self.history, self.baselines, self._versions = history, fresh, versions
        return changed


def lacks_baseline(baseline: Baseline, standing: int | None) -> bool:
    """Whether a target cannot have the rows of a table's newest baseline, which has landed in it; `standing`:
    the change number that it has reached (None: it is not there). A baseline sets it to `after`."""
    return standing is None or standing < baseline.after


class Reach:
    """The change numbers that tables have reached; looked up in the target once, until `forget`. Any thread
    may call it, about a table one at a time."""

    def __init__(self, target: Target, rules: TaskRules | None, known: TableHistory) -> None:
        self._target, self._rules, self._known = target, rules, known
        self._at: dict[str, int] = {}

    def of(self, table: str) -> int:
        """The change number that a table has reached, in its target and its key log.

        Raises:
            BaselineNeededError: its target lacks what the table's baseline brought.
        """
        if table not in self._at:
            reached = self._target.progress(table)
            self._refuse_gone(table, reached)
            if self._rules:
                baseline = self._known.baselines.get(table)
                self._rules.found(table, reached, baseline.after if baseline else -1)
            # What a crash kept from the key log comes again, for it alone.
            logged = self._logged(table)
            self._at[table] = reached if logged is None else min(reached, logged)
        return self._at[table]

    def _refuse_gone(self, table: str, reached: int) -> None:
        baseline = self._known.baselines.get(table)
        if baseline is None:
            return
        there = reached >= 0 or self._target.exists(table)
        if lacks_baseline(baseline, reached if there else None):
            raise gone(table)

    def _logged(self, table: str) -> int | None:
        logged = self._rules.logged(table) if self._rules else None
        baseline = self._known.baselines.get(table)
        if self._rules is None or logged is None or baseline is None or logged >= baseline.after:
            return logged
        # The baseline has these changes: none of them is logged, and they may be gone.
        self._rules.passed(table, baseline.after)
        return baseline.after

    def forget(self, tables: Iterable[str] | None = None) -> None:
        """Has tables (None: all) looked up again."""
        for table in list(self._at) if tables is None else tables:
            self._at.pop(table, None)

    def came(self, table: str, last: Stored) -> None:
        """Notes that a table has all changes up to the end of a store batch."""
        self._at[table] = last.upto

    def has(self, table: str, upto: int) -> bool:
        """Whether it is known that a table has come to a change number."""
        return self._at.get(table, -1) >= upto
