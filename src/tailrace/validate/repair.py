"""`tailrace validate --repair`: applies the differences to the target as changes.

The changes turn the target into the source's rows at the validated position plus the changes applied since.
They are not changes of the source, so the target's progress stays, and later changes are applied as usual.
Repairs have their own numbers, progress, change table (`<home>/repairs/<table>__ct`, the last repair of each
table) and run in the key log.

The order of writes is: change table, target, key log. After a crash before the target was written, the next
repair finds the difference again. After a later crash, the next repair completes the key log.
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

from ..apply import audits, target_mode
from ..apply.mapping.table_map import place_of, task_map
from ..config.task import Task
from ..engine.columns import typed
from ..engine.rules import Rules
from ..errors import ApplyError, TailraceError, TargetLostError
from ..execution import Job, described
from ..keylog.control_tables import ApplyExceptions
from ..keylog.key_log import KeyLog
from ..lake import delta as lake
from ..lake.opened import open_table
from ..model import sequence
from ..model.change import Relation
from ..model.positions import ChangeRange, order_key
from ..model.steps import Steps
from ..model.types import header_schema, schema_of
from ..operate.keylog_runs import REPAIR, Runs, group_of, subscriptions
from ..state import lifecycle, live
from ..state.baselines import read_baselines
from ..targets.auditor import log_without_conflicts
from ..targets.base import Target
from ..targets.change_batch import ChangeBatch
from ..targets.delta.target import DeltaTarget
from ..targets.multi_source import TargetLocation
from ..targets.plans import UNKNOWN
from ..targets.postgresql.target import PostgresTarget
from ..targets.rule_columns import rules_of
from ..targets.task_tables import iceberg_tables, physical_layout
from . import repair_sides as sides
from .compare import Comparison, TableResult
from .differences import ChangeStamp, Differences, count_changes
from .scratch import scratch_folder
from .sessions import Sessions
from .table_errors import TableErrors
from .validation import TableDifference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = "tailrace/repair"
"""Application id under which a repair's change table records the number of its last change."""
_AFTER, _LAYOUT = f"{APP}/after", "tailrace.layout"


@dataclass(frozen=True)
class RepairResult:
    """A repair of a table, executed or planned: changes by kind, the reason if it was refused, and the run in
    the key log."""

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
        """Returns a dictionary for `--json`."""
        return asdict(self)


@dataclass
class Repair:
    """Repairs tables of a task; `validate` calls it with the differences.

    Args:
        task, sessions: those of the validation.
        dry_run: only reports the changes.
        held: context manager in which no other process applies or loads baselines; None if the task is
            stopped and cannot start in the meantime.
        who: the user who requested the repair.

    Attributes:
        done: the result per table.
    """

    task: Task
    sessions: Sessions
    dry_run: bool = False
    steps: Steps = field(default_factory=Steps)
    done: list[RepairResult] = field(default_factory=list)
    held: Callable[[], AbstractContextManager[None]] | None = None
    who: str = field(default_factory=getpass.getuser)

    def __call__(self, found: Sequence[TableDifference]) -> None:
        errors = TableErrors()
        with (self.held or self._stopped)():
            for one in found:
                self.steps.now(f"repairing {one.result.table}")
                done = errors.attempt(one.result.table, partial(self._table, one))
                self.done.append(
                    done or RepairResult(one.result.table, refused=errors.messages[one.result.table])
                )

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        """SuspensionStore the locks of capture and pipeline, so that the task cannot start."""
        path = self.task.run_path
        with live.lock(path, "capture"), live.lock(path, "pipeline"):
            yield

    def add_not_compared(self, found: Sequence[TableResult]) -> None:
        """Adds results for tables that could not be compared and so are not repaired."""
        these = [t for t in found if t.not_compared is not None]
        self.done += [RepairResult(t.table, refused=f"not compared: {t.not_compared}") for t in these]

    def finish(self, tables: Sequence[str]) -> None:
        """Completes the key log of repairs that a crash interrupted after the target; for all tables if none
        is given."""
        known = read_baselines(self.task.control_path("baselines"))
        for table in tables or known:
            upto = lake.progress(self._kept(table), APP)
            logbook = self._keylog()
            if (
                self.dry_run
                or logbook is None
                or upto is None
                or order_key(self._target(None).progress(table)) < upto
            ):
                continue
            if (logbook.state(table).progress or -1) < upto:
                with (self.held or self._stopped)():
                    self._log(logbook, table, upto)

    def _table(self, one: TableDifference, *, again: bool = False) -> RepairResult:
        """Repairs a table, twice if its target had duplicate keys: their rows are missing after the first
        repair."""
        task, table = self.task, one.result.table
        with scratch_folder(task) as scratch:
            there = sides.current_rows(task, table, scratch, self.sessions)
            wanted = sides.wanted_rows(task, one, there.upto, there.columns)
            if isinstance(wanted, str):
                return RepairResult(table, refused=wanted)
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

    def _mark(self, one: TableDifference) -> ChangeStamp:
        table, now = one.result.table, datetime.now(timezone.utc)
        after = max(
            lake.progress(self._kept(table), APP) or 0, order_key(self._target(None).progress(table)), 0
        )
        time = int(sequence.time_parts(np.array([int(now.timestamp() * 1e6)]))[0])
        return ChangeStamp(time, after, one.position, f"{REPAIR} by {self.who}", now)

    def _made(self, table: str, changes: Iterable[pa.Table], relation: Relation, after: int) -> RepairResult:
        """Stores the changes and their layout, then applies and logs them."""
        kept, schema = self._kept(table), pa.schema([*header_schema(), *schema_of(relation.columns)])
        counts, files = Counter[str](), list[lake.AddedFile]()
        for some in changes:
            counts += count_changes(some)
            if self.dry_run or not some.num_rows:
                continue
            if not files:
                lake.create(kept, schema)
            files += lake.write_pieces(
                kept, schema, (pa.Table.from_batches([typed(one, schema)]) for one in some.to_batches())
            )
        said, upto = RepairResult(table, counts["I"], counts["U"], counts["D"]), after + counts.total()
        if not files:
            return said
        progress = {APP: upto, _AFTER: after}
        info = {_LAYOUT: relation.to_json()}
        lake.replace_all(kept, files, schema=schema, progress=progress, info=info)
        try:
            with described(self.sessions.tasks, self._job(said)):
                return replace(said, run_id=self._applied(table, relation, after, upto))
        except TargetLostError:  # it is unknown whether the target was written
            raise
        except ApplyError as error:  # nothing was written; other tables may be repaired
            return RepairResult(table, refused=f"the target refuses the missing rows: {error.what}")

    @staticmethod
    def _job(said: RepairResult) -> Job:
        return Job(sides.KIND, f"{sides.KIND} {said.table}: apply {said.changes:,} changes", said.changes)

    def _applied(self, table: str, relation: Relation, after: int, upto: int) -> str | None:
        """Merges the kept changes into the target, and logs them; returns the run in the key log, if there is
        one."""
        target = self._target(self.sessions.waiting(f"changes are brought to {table}"))
        rules, logbook = rules_of(self.task, table), self._keylog()
        if target_mode.relation_of(relation, rules) != relation:  # a target without changes yet has no marks
            target_mode.alter(target, table, relation, relation, rules)
        batch = self._batch(target, table, relation, after, upto)
        if self.task.target.database and logbook is not None:  # its notes are those of the source's changes
            self._merged(target, batch, rules, None)
            return self._log(logbook, table, upto)
        if logbook is None:
            self._merged(target, batch, rules, None)
            return None
        runs = self._begun(logbook, table, after)
        try:
            self._merged(target, batch, rules, logbook)
        finally:
            runs.end()
        return logbook.run_of(table)

    def _batch(self, target: Target, table: str, relation: Relation, after: int, upto: int) -> ChangeBatch:
        counts = {**UNKNOWN, "T": 0}  # no difference is a truncate
        numbers = ChangeRange(None if after < 0 else after, upto)
        return ChangeBatch(
            table, relation, numbers, self._kept(table), counts=counts, target=target.path(table)
        )

    def _merged(self, target: Target, batch: ChangeBatch, rules: Rules, logbook: KeyLog | None) -> None:
        """Merges changes, each made for the existing row: there are no conflicts unless another process has
        changed it."""
        rules = replace(rules, on={**rules.on, "data_error": "stop"})  # a refused row is not repaired
        if not (rules.plain and logbook is None):
            # A separate name: the numbers of a repair's changes are not the source's.
            exceptions = ApplyExceptions(f"{self.task.home}/control", f"{self.task.name}/repair")
            batch = audits.prepared(batch, target, rules, exceptions, logbook)
        (done,) = target.merge([batch])
        if isinstance(done, TailraceError):
            raise done
        if done is None:
            raise ApplyError("the repair needs more memory than a merge has", where=batch.table)
        _, ends, why = audits.finished(done, batch.table, rules, logbook)
        if ends is not None:
            what = why or f"another process changed it meanwhile ({ends[1]})"
            raise ApplyError(what, where=batch.table)

    def _log(self, logbook: KeyLog, table: str, upto: int) -> str:
        """Logs a table's last repair in its own run, and returns the run."""
        task, after = self.task, order_key(lake.progress(self._kept(table), _AFTER))
        relation = Relation.from_json(open_table(self._kept(table)).history(1)[0][_LAYOUT])
        runs, rules = self._begun(logbook, table, after), rules_of(task, table)
        exceptions = ApplyExceptions(f"{task.home}/control", task.name)
        batch = self._batch(self._target(None), table, relation, after, upto)
        ready = audits.prepared(batch, self._target(None), rules, exceptions, logbook)
        logbook.commit(table, upto, files=log_without_conflicts(ready))
        runs.end()
        return logbook.run_of(table)

    def _begun(self, logbook: KeyLog, table: str, after: int) -> Runs:
        """Starts a run for a table's repair."""
        runs = Runs(logbook.path, group_of(self.task), kind=REPAIR)
        logbook.runs |= runs.run_ids(subscriptions(self.task, [table], others=False))
        logbook.begin(table, after)
        return runs

    def _keylog(self) -> KeyLog | None:
        """Returns the task's key log; None if it has none."""
        task = self.task
        if task.keylog.mode == "off":
            return None
        app = f"{task.name}/{REPAIR}"
        return KeyLog(task.keylog_path, app_id=app, run_id="", mode=task.keylog.mode, group_id=task.name)

    def _kept(self, table: str) -> str:
        return f"{self.task.home}/repairs/{lake.file_name(table)}__ct"

    def _target(self, spark: SparkSession | None) -> Target:
        """Returns the task's target with the progress of repairs; `spark` is None for work in
        this process."""
        task, session = self.task, cast("SparkSession", spark)
        names = lifecycle.read(task).target_names

        def places(table: str) -> TargetLocation:
            return place_of(task_map(task, table), names)

        if task.target.database:
            return PostgresTarget(
                session, task.target.database, task=task.name, repairs=True, locations=places
            )
        if task.target.type == "iceberg":
            from ..targets.iceberg.target import IcebergTarget

            return IcebergTarget(
                session,
                iceberg_tables(task),
                app_id=f"{task.apply_app}/{REPAIR}",
                local_limit_bytes=task.target.one_task,
                merge_memory_bytes=task.apply.merge_memory,
                locations=places,
                physical=partial(physical_layout, task),
            )
        return DeltaTarget(
            session,
            task.target.path,
            app_id=f"{task.apply_app}/{REPAIR}",
            local_limit_bytes=task.target.one_task,
            rewrite_bytes=task.target.rewrite_limit,
            merge_memory_bytes=task.apply.merge_memory,
            locations=places,
        )
