"""What the control tables say of a task's tables: their layouts and their baselines."""

from __future__ import annotations

from ..lake import delta as lake
from ..lake import log
from ..state.baselines import Baseline, read_baselines
from .reading import ApplyPaths


class TableHistory:
    """Layouts and baselines by table, as of the last `refresh`."""

    def __init__(self, paths: ApplyPaths) -> None:
        self._paths = paths
        self._versions: tuple[int | None, int | None] | None = None
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
