"""A task that does not run is brought up to date without Spark, where there is little to store and nothing to
apply: the same `Store` over the same functions, called by this process instead of by Spark's tasks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ..apply.loading import loaded
from ..config.task import Task
from ..lake import delta as lake
from ..lake import log
from ..operate.status import status
from ..state import ledger, live
from ..state.upgrades import upgrade
from ..store import tracking
from ..store.kept import files_between, spans
from ..store.writer import Store
from .pipeline import store_paths

MOST_BYTES = 32 << 20
"""So much of LOG, which is compressed, is stored by this process at most."""


@dataclass
class Records:
    """Records of LOG in the place of a DataFrame: what a store batch asks of it, done by this process."""

    data: ds.Dataset
    columns: Sequence[str] = ()
    found: list[dict[str, Any]] = field(default_factory=list)

    def select(self, *columns: str) -> Records:
        """Those columns."""
        return Records(self.data, columns)

    def mapInArrow(  # noqa: N802 - Spark's name
        self, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _schema: str
    ) -> Records:
        """What a function makes of the batches."""
        batches = self.data.to_batches(columns=list(self.columns))
        return Records(self.data, (), [row for one in work(iter(batches)) for row in one.to_pylist()])

    def collect(self) -> list[dict[str, Any]]:
        """The rows."""
        return self.found


def store_here(task: Task) -> str | None:
    """Stores what LOG has; gives why the rest needs Spark, None when nothing is left to do.

    Raises:
        PositionError: LOG lacks records.
    """
    if task.store.openedge:
        return "its tables in OpenEdge's layout are written by Spark"
    with live.lock(task.run_path, "pipeline"):
        upgrade(task)
        lake.create(task.tracking_path, tracking.SCHEMA)
        lake.create(task.relations_path, log.RELATIONS_SCHEMA)
        store = Store(store_paths(task), keep_bad=task.on_bad_value == "quarantine")
        reached, newest = store.begin(), log.state(task.log_path).number
        if newest > reached:
            size = sum(s.size for s in spans(DeltaTable(task.log_path), "CHANGE_SEQ") if s.high > reached)
            if size > MOST_BYTES:
                return "much of its LOG is to be stored"
            files = files_between(task.log_path, "CHANGE_SEQ", reached, newest)
            store.batch(Records(ds.dataset(files, log.SCHEMA)))  # type: ignore[arg-type]
            # Its query would go on behind what it read last, and maintenance may take what is stored.
            shutil.rmtree(task.checkpoint_path("store"), ignore_errors=True)
    return _left(task)


def _left(task: Task) -> str | None:
    """What only Spark can do now."""
    if late := [t.table for t in status(task).tables if t.behind]:
        return f"changes of {', '.join(late[:3])} wait to be applied"
    made = loaded(task.control_path("mapped"))
    for table, taken in ledger.read_baselines(task.control_path("baselines")).items():
        if taken.version < 0 and made.get(table, (0, "", 0))[0] != taken.number:
            return f"the baseline of {table} waits to be mapped"
    return None
