"""`tailrace validate --repair`: writes the differences to the target as changes, through the same apply.

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from ..apply import effects
from ..apply.expect import Expected
from ..apply.keylog import KeyLog, Stretch
from ..apply.plan import SPECIAL, TableBatch
from ..apply.shared import Place
from ..apply.table_map import place_of, task_map
from ..apply.targets import delta_spark
from ..apply.targets.base import Target
from ..apply.targets.delta import DeltaTarget
from ..apply.targets.delta_local import PartTask, write_parts
from ..apply.targets.postgresql import PostgresTarget
from ..apply.task_rules import rules_of
from ..config.task import Task
from ..errors import ApplyError
from ..lake import delta as lake
from ..model import sequence
from ..model.change import PREFIX, ChangeTable, Relation
from ..model.steps import Steps
from ..model.types import header_schema, schema_of
from ..operate.runs import REPAIR, Runs
from ..operate.task_runs import group_of, subscriptions
from ..state import ledger, live
from ..state.orders import of_task, target_names
from . import repair_sides as sides
from .repair_changes import Mark, difference
from .sides import Sessions
from .tables import Difference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP = "tailrace/repair"
"""App id under which a change table of repairs records the number of its last change."""
_AFTER, _LAYOUT = f"{APP}/after", "tailrace.layout"


@dataclass(frozen=True)
class Repaired:
    """The repair of a table, done or planned: changes by kind; why nothing was done, if it was not possible;
    the run in the key log."""

    table: str
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    refused: str | None = None
    run_id: str | None = None

    @property
    def changes(self) -> int:
        """The number of changes."""
        return self.inserts + self.updates + self.deletes

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


@dataclass
class Repair:
    """Repairs tables of a stopped task; `validate` calls it with the differences.

    Args:
        task, sessions: of the validation.
        dry_run: says what there is to do, and does nothing.

    Attributes:
        done: what was done, a table each.
    """

    task: Task
    sessions: Sessions
    dry_run: bool = False
    steps: Steps = field(default_factory=Steps)
    done: list[Repaired] = field(default_factory=list)

    def __call__(self, found: Sequence[Difference]) -> None:
        with live.lock(self.task.run_path, "pipeline"):  # nobody applies in the meantime
            for one in found:
                self.steps.now(f"repairing {one.result.table}")
                self.done.append(self._table(one))

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self.sessions("rows are repaired")

    def finish(self, tables: Sequence[str]) -> None:
        """Logs what a crash kept out of the key log after the target had it; for all tables if none is
        named."""
        known = ledger.read_baselines(self.task.control_path("baselines"))
        for table in tables or known:
            upto = lake.progress(self._kept(table), APP)
            logbook = self._keylog()
            if self.dry_run or logbook is None or upto < 0 or self._target().progress(table) < upto:
                continue
            if (logbook.standing(table).reached or -1) < upto:
                self._log(logbook, table, upto)

    def _table(self, one: Difference) -> Repaired:
        task, spark, table = self.task, self.spark, one.result.table
        with tempfile.TemporaryDirectory(prefix="tailrace-repair-") as scratch:
            there, upto = sides.there(task, spark, table, scratch)
            found = sides.wanted(task, spark, one, upto, there.columns)
            if isinstance(found, str):
                return Repaired(table, refused=found)
            (wanted, relation), mark = found, self._mark(one)
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

    def _mark(self, one: Difference) -> Mark:
        table, now = one.result.table, datetime.now(timezone.utc)
        after = max(lake.progress(self._kept(table), APP), self._target().progress(table), 0)
        time = int(sequence.time_parts(np.array([int(now.timestamp() * 1e6)]))[0])
        return Mark(time, after, one.position, f"{REPAIR} by {getpass.getuser()}", now)

    def _made(self, said: Repaired, changes: DataFrame, relation: Relation, after: int) -> Repaired:
        """Keeps the changes and their layout, applies and logs them."""
        table, upto = said.table, after + said.changes
        kept, schema = self._kept(table), pa.schema([*header_schema(), *schema_of(relation.columns)])
        lake.create(kept, schema)
        files, _ = write_parts(changes, PartTask(kept, schema))
        progress = {APP: upto, _AFTER: after}
        info = {_LAYOUT: relation.to_json()}
        lake.replace_all(kept, files, schema=schema, progress=progress, info=info)
        try:
            self._apply(said, relation, upto)
        except ApplyError as error:  # nothing was written; other tables may be repaired
            return Repaired(table, refused=f"the target refuses the rows that it lacks: {error.what}")
        logbook = self._keylog()
        return said if logbook is None else replace(said, run_id=self._log(logbook, table, upto))

    def _apply(self, said: Repaired, relation: Relation, upto: int) -> None:
        """Applies the kept changes to the target, as its rules apply changes that meet no conflict."""
        target, rules, changes = self._target(), rules_of(self.task, said.table), self._changes(said.table)
        counts = dict.fromkeys(SPECIAL, 0) | {"I": said.inserts, "U": said.updates, "D": said.deletes}
        layout = effects.relation_of(relation, rules)
        if layout != relation:  # a target without changes yet has no marks
            effects.alter(target, said.table, relation, relation, rules)
        nothing = changes.df.limit(0)  # rows are needed only for key changes, and there are none
        made = effects.effective(changes, Expected(), rules, counts, relation, lambda: nothing)
        target.apply(TableBatch(said.table, layout, made[0], upto, made[1]))

    def _changes(self, table: str) -> ChangeTable:
        """The changes of a table's last repair."""
        kept = DeltaTable(self._kept(table))
        relation = Relation.from_json(kept.history(1)[0][_LAYOUT])
        df = delta_spark.rows_of(self.spark, self._kept(table), kept)
        return ChangeTable(df, relation.key, [c.name for c in relation.columns], name=table)

    def _log(self, logbook: KeyLog, table: str, upto: int) -> str:
        """Logs a table's last repair in a run of its own; returns the run."""
        task, after = self.task, lake.progress(self._kept(table), _AFTER)
        runs = Runs(logbook.path, group_of(task), kind=REPAIR)
        logbook.runs |= runs.run_ids(subscriptions(task, [table], others=False))
        # Nobody else applies, and each change was made for the existing row: there are no conflicts.
        one = Stretch(table, after, upto, 0)
        logbook.begin(table, after)
        logbook.commit(logbook.write(self._changes(table), Expected(), rules_of(task, table), one), one)
        runs.end()
        return logbook.run_of(table)

    def _keylog(self) -> KeyLog | None:
        """The task's key log; None if it has none."""
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
        names = target_names(of_task(task.orders_path, {}))

        def places(table: str) -> Place:
            return place_of(task_map(task, table), names)

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
