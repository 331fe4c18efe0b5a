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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from ..apply import effects, one_task
from ..apply.expect import Expected, expect
from ..apply.images import col
from ..apply.keylog.change_range import ChangeRange
from ..apply.keylog.exceptions import Exceptions
from ..apply.keylog.key_log import KeyLog
from ..apply.mapping.shared_rows import TargetPlace
from ..apply.mapping.table_map import place_of, task_map
from ..apply.plan import SPECIAL, UNKNOWN, TableBatch
from ..apply.rule_columns import rules_of
from ..apply.targets.audit import Audited
from ..apply.targets.delta import distributed
from ..apply.targets.delta.local import PartTask
from ..apply.targets.delta.many import ROWS
from ..apply.targets.delta.target import DeltaTarget
from ..apply.targets.postgresql.target import PostgresTarget
from ..apply.targets.task_batch import TaskBatch
from ..config.task import Task
from ..errors import ApplyError, TailraceError, TargetLostError
from ..execution import Job, described
from ..lake import delta as lake
from ..model import sequence
from ..model.change import ChangeTable, Relation
from ..model.steps import Steps
from ..model.types import header_schema, schema_of
from ..operate.runs import REPAIR, Runs
from ..operate.task_runs import group_of, subscriptions
from ..state import ledger, live
from ..state.orders import of_task, target_names
from . import repair_sides as sides
from .apart import Apart
from .compare import Comparison, TableResult
from .repair_changes import Differences, Mark, counted
from .scratch import scratch_folder
from .sessions import Sessions
from .tables import Difference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    """Repairs tables of a task; `validate` calls it with the differences.

    Args:
        task, sessions: of the validation.
        dry_run: says what there is to do, and does nothing.
        held: within its block nobody else applies, or makes a baseline a target; None: the task is stopped,
            and does not start in the meantime.
        who: the user who has asked for it.

    Attributes:
        done: what was done, a table each.
    """

    task: Task
    sessions: Sessions
    dry_run: bool = False
    steps: Steps = field(default_factory=Steps)
    done: list[Repaired] = field(default_factory=list)
    held: Callable[[], AbstractContextManager[None]] | None = None
    who: str = field(default_factory=getpass.getuser)

    def __call__(self, found: Sequence[Difference]) -> None:
        alone = Apart()
        with (self.held or self._stopped)():
            for one in found:
                self.steps.now(f"repairing {one.result.table}")
                done = alone.tried(one.result.table, partial(self._table, one))
                self.done.append(done or Repaired(one.result.table, refused=alone.why[one.result.table]))

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        """Nobody takes a new baseline, or applies, until the block ends."""
        path = self.task.run_path
        with live.lock(path, "capture"), live.lock(path, "pipeline"):
            yield

    def left_out(self, found: Sequence[TableResult]) -> None:
        """Says which tables could not be compared, and so are not repaired."""
        these = [t for t in found if t.not_compared is not None]
        self.done += [Repaired(t.table, refused=f"not compared: {t.not_compared}") for t in these]

    def finish(self, tables: Sequence[str]) -> None:
        """Logs what a crash kept out of the key log after the target had it; for all tables if none is
        named."""
        known = ledger.read_baselines(self.task.control_path("baselines"))
        for table in tables or known:
            upto = lake.progress(self._kept(table), APP)
            logbook = self._keylog()
            if self.dry_run or logbook is None or upto < 0 or self._target(None).progress(table) < upto:
                continue
            if (logbook.standing(table).reached or -1) < upto:
                with (self.held or self._stopped)():
                    self._log(logbook, table, upto)

    def _table(self, one: Difference, *, again: bool = False) -> Repaired:
        """Repairs a table; once more if keys were in its target twice, whose rows are missing then."""
        task, table = self.task, one.result.table
        with scratch_folder(task) as scratch:
            there = sides.there(task, table, scratch, self.sessions)
            wanted = sides.wanted(task, one, there.upto, there.columns)
            if isinstance(wanted, str):
                return Repaired(table, refused=wanted)
            left, right = (side.read(self.sessions, scratch) for side in (wanted, there))
            mark = self._mark(one)
            comparison = Comparison(self.sessions.tasks, scratch, sides.KIND)
            found = Differences(comparison, wanted.relation, task.apply.merge_memory)
            done = self._made(table, found.changes(left, right, mark), wanted.relation, mark.after)
        if again or not found.repeated or self.dry_run or done.refused is not None:
            return done
        more = self._table(one, again=True)
        return replace(
            more,
            inserts=done.inserts + more.inserts,
            updates=done.updates + more.updates,
            deletes=done.deletes + more.deletes,
        )

    def _mark(self, one: Difference) -> Mark:
        table, now = one.result.table, datetime.now(timezone.utc)
        after = max(lake.progress(self._kept(table), APP), self._target(None).progress(table), 0)
        time = int(sequence.time_parts(np.array([int(now.timestamp() * 1e6)]))[0])
        return Mark(time, after, one.position, f"{REPAIR} by {self.who}", now)

    def _made(self, table: str, changes: Iterable[pa.Table], relation: Relation, after: int) -> Repaired:
        """Keeps the changes and their layout, applies and logs them."""
        kept, schema = self._kept(table), pa.schema([*header_schema(), *schema_of(relation.columns)])
        counts, files = Counter[str](), list[lake.AddedFile]()
        for some in changes:
            counts += counted(some)
            if self.dry_run or not some.num_rows:
                continue
            if not files:
                lake.create(kept, schema)
            (row,) = next(PartTask(kept, schema)(some.to_batches())).to_pylist()
            files.append(lake.AddedFile.from_json(row["file"]))
        said, upto = Repaired(table, counts["I"], counts["U"], counts["D"]), after + counts.total()
        if not files:
            return said
        progress = {APP: upto, _AFTER: after}
        info = {_LAYOUT: relation.to_json()}
        lake.replace_all(kept, files, schema=schema, progress=progress, info=info)
        try:
            done = self._applied_here(table, relation, after, upto)
            if done is not None and not self.task.target.database:
                return replace(said, run_id=done or None)
            if done is None:
                with described(self.sessions.tasks, self._job(said, "apply")):
                    self._apply(said, relation, upto)
        except TargetLostError:  # whether it was written, nobody knows
            raise
        except ApplyError as error:  # nothing was written; other tables may be repaired
            return Repaired(table, refused=f"the target refuses the rows that it lacks: {error.what}")
        logbook = self._keylog()
        if logbook is None:
            return said
        with described(self.sessions.tasks, self._job(said, "log")):
            return replace(said, run_id=self._log(logbook, table, upto))

    @staticmethod
    def _job(said: Repaired, what: str) -> Job:
        return Job(sides.KIND, f"{sides.KIND} {said.table}: {what} {said.changes:,} changes", said.changes)

    def _applied_here(self, table: str, relation: Relation, after: int, upto: int) -> str | None:
        """Brings the kept changes to the target, and those of a Delta target to the key log, in this process,
        as one of Spark's tasks does with them; returns the run in the key log, empty without one. None: work
        for Spark."""
        target, rules, logbook = self._target(None), rules_of(self.task, table), self._keylog()
        if upto - after > ROWS:
            return None
        if self.task.target.database:
            logbook = None  # its notes for the key log are those of the source's changes
        if effects.relation_of(relation, rules) != relation:  # a target without changes yet has no marks
            there = target.columns(table)
            if any(there.get(c.name) != c.type for c in relation.columns):
                return None
            effects.alter(target, table, relation, relation, rules)
        counts = {**UNKNOWN, "T": 0}  # no difference is a truncate
        batch = TaskBatch(table, self._kept(table), target.path(table), relation, after, upto, counts=counts)
        if rules.plain and logbook is None:
            return None if self._together(target, batch) is None else ""
        # A name of its own: the numbers of a repair's changes are not the source's.
        exceptions = Exceptions(f"{self.task.home}/control", f"{self.task.name}/repair")
        runs = None if logbook is None else self._begun(logbook, batch.table, batch.after)
        try:
            audited = one_task.prepared(batch, target, rules, exceptions, logbook)
            done = None if audited is None else self._together(target, audited)
            if done is None:
                return None
            one = ChangeRange(batch.table, batch.after, batch.upto, 0)
            _, ends, why = one_task.finished(done, one, rules, logbook)
        finally:
            if runs is not None:
                runs.end()
        if ends is not None:
            raise ApplyError(f"somebody changed it meanwhile ({why or ends[1]})", where=batch.table)
        return "" if logbook is None else logbook.run_of(batch.table)

    @staticmethod
    def _together(target: DeltaTarget | PostgresTarget, batch: TaskBatch) -> Audited | None:
        shares = target.capabilities.shares
        (done,) = [None] if shares is None else shares.merge_many([batch])
        if isinstance(done, TailraceError):
            raise done
        return done

    def _apply(self, said: Repaired, relation: Relation, upto: int) -> None:
        """Brings the kept changes to the target, as its rules apply changes that meet no conflict."""
        spark = self.sessions.sql(f"changes are brought to {said.table}")
        target, rules, changes = (
            self._target(spark),
            rules_of(self.task, said.table),
            self._changes(said.table),
        )
        counts = dict.fromkeys(SPECIAL, 0) | {"I": said.inserts, "U": said.updates, "D": said.deletes}
        layout = effects.relation_of(relation, rules)
        if layout != relation:  # a target without changes yet has no marks
            effects.alter(target, said.table, relation, relation, rules)
        batch = TableBatch(said.table, layout, changes, upto, counts)
        if rules.mode == "soft_delete":
            keys = changes.df.select(*map(col, relation.key))
            there = target.keys_there(relation, keys, living=rules.soft_column)
            found = expect(changes, layout, rules.lenient, counts, there)
            batch = replace(batch, folded=found.folded, counts=found.counts)
        target.apply(batch)

    def _changes(self, table: str) -> ChangeTable:
        """The changes of a table's last repair."""
        kept = DeltaTable(self._kept(table))
        relation = Relation.from_json(kept.history(1)[0][_LAYOUT])
        spark = self.sessions.sql(f"the repair of {table} is applied and logged")
        df = distributed.rows_of(spark, self._kept(table), kept)
        return ChangeTable(df, relation.key, [c.name for c in relation.columns], name=table)

    def _log(self, logbook: KeyLog, table: str, upto: int) -> str:
        """Logs a table's last repair in a run of its own; returns the run."""
        task, after = self.task, lake.progress(self._kept(table), _AFTER)
        runs = self._begun(logbook, table, after)
        # Nobody else applies, and each change was made for the existing row: there are no conflicts.
        one = ChangeRange(table, after, upto, 0)
        logbook.commit(logbook.write(self._changes(table), Expected(), rules_of(task, table), one), one)
        runs.end()
        return logbook.run_of(table)

    def _begun(self, logbook: KeyLog, table: str, after: int) -> Runs:
        """A run of its own for a table's repair."""
        runs = Runs(logbook.path, group_of(self.task), kind=REPAIR)
        logbook.runs |= runs.run_ids(subscriptions(self.task, [table], others=False))
        logbook.begin(table, after)
        return runs

    def _keylog(self) -> KeyLog | None:
        """The task's key log; None if it has none."""
        task = self.task
        if task.keylog.mode == "off":
            return None
        app = f"{task.name}/{REPAIR}"
        return KeyLog(task.keylog_path, app_id=app, run_id="", mode=task.keylog.mode, group_id=task.name)

    def _kept(self, table: str) -> str:
        return f"{self.task.home}/repairs/{lake.file_name(table)}__ct"

    def _target(self, spark: SparkSession | None) -> DeltaTarget | PostgresTarget:
        """The task's target, with the repairs' progress; without a session for what this process does."""
        task, session = self.task, cast("SparkSession", spark)
        names = target_names(of_task(task.orders_path, {}))

        def places(table: str) -> TargetPlace:
            return place_of(task_map(task, table), names)

        if task.target.database:
            return PostgresTarget(session, task.target.database, task=task.name, repairs=True, places=places)
        return DeltaTarget(
            session,
            task.target.path,
            app_id=f"{task.apply_app}/{REPAIR}",
            local_limit_bytes=task.target.one_task,
            rewrite_bytes=task.target.rewrite_limit,
            merge_memory_bytes=task.apply.merge_memory,
            places=places,
        )
