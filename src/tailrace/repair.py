"""`tailrace validate --repair`: what differs is written to the target as changes, by the same apply.

The changes say what the target lacks of the source's rows at the validated position and of the source's
changes that were applied since, so the target is afterwards where those changes bring it. They are no changes
of the source: its progress stays where it is, and what comes later is applied in its order. They have numbers
and a progress of their own, a change table that keeps them (`<home>/repairs/<table>__ct`, the last repair of
each table), and a run of their own in the key log.

The order is: change table, target, key log. A crash before the target has them leaves a difference that the
next repair finds again; after it, the next repair logs what the key log lacks.
"""

from __future__ import annotations

import getpass
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from . import lake, log, sequence
from .apply.expect import Expected
from .apply.keylog import KeyLog, Stretch
from .apply.plan import SPECIAL, TableBatch
from .apply.reading import read_changes
from .apply.rules import Rules
from .apply.segment import Segment, segments
from .apply.shared import Place
from .apply.table_map import task_map
from .apply.targets import delta_spark
from .apply.targets.base import Target
from .apply.targets.delta import DeltaTarget
from .apply.targets.delta_local import PartTask, write_parts
from .apply.targets.postgresql import PostgresTarget
from .change import PREFIX, ChangeTable, Relation
from .control import ledger, live
from .control.tables import of_task, target_names
from .control.task import Task
from .laketypes import header_schema, schema_of
from .operate.runs import REPAIR, Runs
from .operate.task_runs import group_of, subscriptions
from .query.state import state_at
from .repair_changes import Mark, difference
from .validate import Difference, readers, rows_of_files
from .validate_postgresql import hold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP = "tailrace/repair"
"""App id under which a change table of repairs keeps the number of its last change."""
_AFTER = f"{APP}/after"


@dataclass(frozen=True)
class Repaired:
    """What a repair did to a table, or would do: changes by kind; why it did nothing, when it could not; the
    run in the key log."""

    table: str
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    refused: str | None = None
    run_id: str | None = None

    @property
    def changes(self) -> int:
        """Changes in all."""
        return self.inserts + self.updates + self.deletes

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


@dataclass
class Repair:
    """Repairs tables of a task that stands still; `validate` calls it with what differs.

    Args:
        task, spark: of the validation.
        dry_run: says what there is to do, and does nothing.

    Attributes:
        done: what was done, a table each.
    """

    task: Task
    spark: SparkSession
    dry_run: bool = False
    progress: Callable[[str], None] = lambda _: None
    done: list[Repaired] = field(default_factory=list)

    def __call__(self, found: Sequence[Difference]) -> None:
        with live.lock(self.task.run_path, "pipeline"):  # nobody applies meanwhile
            for one in found:
                self.progress(one.result.table)
                self.done.append(self._table(one))

    def finish(self, tables: Sequence[str]) -> None:
        """Logs what a crash kept from the key log after the target had it; all tables, when none is named."""
        known = ledger.read_baselines(self.task.control_path("baselines"))
        for table in tables or known:
            upto = lake.progress(self._kept(table), APP)
            logbook = self._keylog()
            if self.dry_run or logbook is None or upto < 0 or self._target().progress(table) < upto:
                continue
            if (logbook.standing(table).reached or -1) < upto:
                self._log(logbook, table, upto)

    def _table(self, one: Difference) -> Repaired:
        table = one.result.table
        if not task_map(self.task, table).plain:
            return Repaired(table, refused="its target is mapped: `tailrace resync` makes it anew")
        with tempfile.TemporaryDirectory(prefix="tailrace-repair-") as scratch:
            there, upto, relation = self._there(table, scratch)
            wanted = self._wanted(one, relation, upto)
            if not isinstance(wanted, str) and set(wanted.columns) != set(there.columns):
                wanted = "its target does not follow every DDL of the source: `tailrace resync` makes it anew"
            if isinstance(wanted, str):
                return Repaired(table, refused=wanted)
            mark = self._mark(one)
            changes = difference(wanted, there, relation, mark).persist()
            try:
                oper = PREFIX + "change_oper"
                counts = {r[oper]: int(r["count"]) for r in changes.groupBy(oper).count().collect()}
                inserts, updates, deletes = (counts.get(k, 0) for k in "IUD")
                said = Repaired(table, inserts, updates, deletes)
                if self.dry_run or not counts:
                    return said
                return self._made(said, changes, relation, mark.after)
            finally:
                changes.unpersist()

    def _there(self, table: str, scratch: str) -> tuple[DataFrame, int, Relation]:
        """The target's rows as they are now, the change number they have reached, their layout."""
        task = self.task
        with hold(task, [table]) as held:
            if held is not None:
                there = held.tables[table]
                with readers(task.baseline.workers) as pool:
                    files = held.files(table, scratch, pool)
                return rows_of_files(self.spark, there.layout, files), there.upto, there.layout
        path = task.target_path(self._names().get(table, table))
        rows = delta_spark.rows_of(self.spark, path, DeltaTable(path))
        taken = ledger.read_baselines(task.control_path("baselines"))[table]
        upto = max(lake.progress(path, task.apply_app), taken.after)
        return rows, upto, self._relation(table)

    def _wanted(self, one: Difference, relation: Relation, upto: int) -> DataFrame | str:
        """What the target's rows should be at that change number; or why nobody can tell."""
        task, table = self.task, one.result.table
        if one.result.columns:
            return f"its columns differ: {one.result.columns}"
        if (mode := task.table(table).rule_mode) in ("archive", "soft_delete"):
            return f"its target is no copy of the source under the mode {mode}"
        stored = [b for b in ledger.read_stored(task.control_path("stored")) if table in b.tables]
        if any(b.upto > upto for b in stored):
            return "changes of it wait (is it paused, or suspended?): they come first"
        seen = log.history(task.relations_path).get(table, [])
        if any(h.from_position.hex().upper() >= one.position for h in seen):
            return "its layout has changed since the snapshot: repair it again"
        before = max((b.upto for b in stored if b.position < one.position), default=-1)
        rows = one.source
        # A batch may hold changes from before and after the position: `before` is never too late.
        later = Segment(before, upto, one.position, relation, relation)
        found = read_changes(self.spark, task.changes_path(table), later) if upto > before else None
        if found is None:
            return rows
        counts = {k: sum(b.tables[table].get(k, 0) for b in stored if b.upto > before) for k in SPECIAL}
        return state_at(rows, found, relation, counts)

    def _mark(self, one: Difference) -> Mark:
        table, now = one.result.table, datetime.now(timezone.utc)
        after = max(lake.progress(self._kept(table), APP), self._target().progress(table), 0)
        time = int(sequence.time_parts(np.array([int(now.timestamp() * 1e6)]))[0])
        return Mark(time, after, one.position, f"{REPAIR} by {getpass.getuser()}", now)

    def _made(self, said: Repaired, changes: DataFrame, relation: Relation, after: int) -> Repaired:
        """Keeps the changes, applies and logs them."""
        table, upto = said.table, after + said.changes
        kept, schema = self._kept(table), pa.schema([*header_schema(), *schema_of(relation.columns)])
        lake.create(kept, schema)
        files, _ = write_parts(changes, PartTask(kept, schema))
        progress = {APP: upto, _AFTER: after}
        lake.commit(kept, files, progress=progress, schema=schema, overwrite=True)
        counts = dict.fromkeys(SPECIAL, 0) | {"I": said.inserts, "U": said.updates, "D": said.deletes}
        self._target().apply(TableBatch(table, relation, self._changes(table), upto, counts))
        logbook = self._keylog()
        return said if logbook is None else replace(said, run_id=self._log(logbook, table, upto))

    def _changes(self, table: str) -> ChangeTable:
        """The changes of a table's last repair."""
        kept, relation = DeltaTable(self._kept(table)), self._relation(table)
        df = delta_spark.rows_of(self.spark, self._kept(table), kept)
        return ChangeTable(df, relation.key, [c.name for c in relation.columns], name=table)

    def _relation(self, table: str) -> Relation:
        """The layout that the target of a table has once all that is stored is applied."""
        taken = ledger.read_baselines(self.task.control_path("baselines"))[table]
        history = log.history(self.task.relations_path).get(table, [])
        last = log.number(history[-1]) if history else -1
        found = segments(history, taken, last, last)[0].relation if history else taken.relation
        return replace(found, schema=taken.relation.schema, name=taken.relation.name)

    def _log(self, logbook: KeyLog, table: str, upto: int) -> str:
        """Logs a table's last repair in a run of its own; gives the run."""
        task, after = self.task, lake.progress(self._kept(table), _AFTER)
        runs = Runs(logbook.path, group_of(task), kind=REPAIR)
        logbook.runs |= runs.run_ids(subscriptions(task, [table], others=False))
        # Nobody else applies, and each change was made for the row that is there: it hits what it expects.
        one = Stretch(table, after, upto, 0)
        logbook.begin(table, after)
        logbook.commit(logbook.write(self._changes(table), Expected(), Rules.of("strict"), one), one)
        runs.end()
        return logbook.run_of(table)

    def _keylog(self) -> KeyLog | None:
        """The task's key log; None when it has none."""
        task = self.task
        if task.keylog.mode == "off":
            return None
        app = f"{task.name}/{REPAIR}"
        return KeyLog(task.keylog_path, app_id=app, run_id="", mode=task.keylog.mode, group_id=task.name)

    def _kept(self, table: str) -> str:
        return f"{self.task.home}/repairs/{lake.file_name(table)}__ct"

    def _target(self) -> Target:
        """The task's target, with the repairs' progress."""
        task = self.task
        names = self._names()

        def places(table: str) -> Place:
            return Place(names.get(table, table))

        if task.target.database:
            return PostgresTarget(
                self.spark, task.target.database, task=task.name, repairs=True, places=places
            )
        return DeltaTarget(
            self.spark,
            task.target.path,
            app_id=f"{task.apply_app}/{REPAIR}",
            local_limit_bytes=task.target.local_limit,
            merge_memory_bytes=task.apply.merge_memory,
            places=places,
        )

    def _names(self) -> dict[str, str]:
        """The names of targets that are called otherwise than their tables."""
        return target_names(of_task(self.task.orders_path, {}))
