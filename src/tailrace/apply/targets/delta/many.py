"""Batches that a task reads and merges by itself (`audit`), tables side by side: no row passes the JVM, and
no job or plan is spent on a single table.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ....config.spread import cluster, spread
from ....engine.columns import AT, LETTER, MASK, OPER, SEQ
from ....errors import ConcurrentCommitError, TailraceError, from_spark
from ....lake import delta as lake
from ....model.change import PREFIX, Column, Relation
from ....model.sequence import NUMBER_DIGITS, TIME_DIGITS
from ....model.types import arrow_type, schema_of
from ....store.kept import files_between
from ....store.tables import kept_as, widens
from ...images import ordinals
from ...plan import Limits, is_local
from ...tasks import RESULT, result
from ..audit import LOST, Audit, Audited, outcome_of, plain_audit
from ..base import ApplyOutcome
from .audit import AuditTask
from .local import TOO_LARGE
from .size import actions, is_plain, size_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1_000_000
"""A batch of more changes is a job of its own, which many tasks may do; so is one that the memory of a task
does not hold, but that shows only when it is read."""
MANY = 64
"""So many tables are worth Spark's tasks on one machine, too: in small merges Python itself has much to do,
which threads do one after the other."""
POSITION, FAILED = "header__position", "failed"
_HEADERS = {
    SEQ: "change_seq",
    OPER: "change_oper",
    LETTER: "change_oper",
    MASK: "column_mask",
    AT: "timestamp",
    POSITION: "stream_position",
}
_EXTRA = [pa.field(MASK, pa.binary()), pa.field(AT, pa.timestamp("us", "UTC"))]


@dataclass(frozen=True)
class TaskBatch:
    """A table's batch for one task: changes with numbers in (after, upto] at positions from `position` (hex)
    on, of one layout. `changes` and `target` are paths of Delta tables.

    `audit`: how it is audited, but for the places of columns; None: without rules and key log. `layout`: of
    the target, when that has more columns.
    """

    table: str
    changes: str
    target: str
    relation: Relation
    after: int
    upto: int
    position: str = ""
    audit: Audit | None = None
    layout: Relation | None = None

    @property
    def adds(self) -> bool:
        """Whether its changes are only added, whatever the target has."""
        return not self.relation.key or (self.audit is not None and self.audit.archives)

    @property
    def extra(self) -> pa.Schema:
        """The columns that a merge needs besides the data, see `engine.columns`."""
        letter = [pa.field(LETTER, pa.string())] if self.audit is not None and self.audit.archives else []
        return pa.schema([*_EXTRA, *letter])

    def read(self, wanted: pa.Schema, changes: DeltaTable) -> Iterator[pa.RecordBatch]:
        """The changes, in the columns and types that a merge wants; `changes`: their table, open."""
        kinds = pa.schema([*wanted, pa.field(POSITION, pa.string())])
        fs, _ = lake.filesystem(self.changes)
        column = PREFIX + _HEADERS[SEQ]
        for path in files_between(self.changes, changes, column, self.after, self.upto):
            with pq.ParquetFile(lake.filesystem(path)[1], filesystem=fs, buffer_size=1 << 20) as file:
                have = set(file.schema_arrow.names)
                names = {f.name: PREFIX + _HEADERS[f.name] if f.name in _HEADERS else f.name for f in kinds}
                there = [name for name in names.values() if name in have]
                for batch in file.iter_batches(columns=there, use_threads=False):
                    # Chosen first: rows of another layout may not be of these types.
                    mine = self._mine(batch, names)
                    yield from _typed(mine, names, kinds).select(wanted.names).to_batches()

    def _mine(self, rows: pa.RecordBatch, names: dict[str, str]) -> pa.RecordBatch:
        number = pc.utf8_slice_codeunits(rows[names[SEQ]], TIME_DIGITS, TIME_DIGITS + NUMBER_DIGITS)
        keep = pc.less_equal(number, f"{self.upto:0{NUMBER_DIGITS}d}")
        if self.after >= 0:
            keep = pc.and_(keep, pc.greater(number, f"{self.after:0{NUMBER_DIGITS}d}"))
        if self.position:
            keep = pc.and_(keep, pc.greater_equal(rows[names[POSITION]], self.position))
        return rows.filter(keep)


def _typed(batch: pa.RecordBatch, names: dict[str, str], kinds: pa.Schema) -> pa.Table:
    """A file's columns under a merge's names; those younger than the file are NULL."""
    have = set(batch.schema.names)
    arrays = [
        batch[names[f.name]].cast(f.type) if names[f.name] in have else pa.nulls(batch.num_rows, f.type)
        for f in kinds
    ]
    return pa.table(arrays, schema=kinds)


@dataclass(frozen=True)
class ManyTask:
    """The function of tasks whose rows are places in `todo`; gives one row of `RESULT` each, `table` of which
    is the place. `file` says `TOO_LARGE` for a table that needs a job of its own, `FAILED` when its changes
    were not applied, and `told` why. `alone`: there is no other machine."""

    todo: tuple[TaskBatch, ...]
    app_id: str
    limits: Limits
    memory_bytes: int | None
    alone: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield self._one(place)

    def _one(self, place: int) -> pa.RecordBatch:
        one, began = self.todo[place], time.monotonic()
        try:
            done = self._merged(one)
        except ConcurrentCommitError:
            return result(table=str(place), file=TOO_LARGE)  # a job of its own looks anew
        except Exception as error:  # noqa: BLE001 - the driver raises it; the other tables go on
            kind = type(error)
            text = f"{kind.__module__}.{kind.__name__}: {error}"
            return result(table=str(place), file=FAILED, told=text)
        if done is None:
            return result(table=str(place), file=TOO_LARGE)
        took = int((time.monotonic() - began) * 1e6)
        return result(**{**done.to_pylist()[0], "table": str(place), "took_us": took})

    def _merged(self, one: TaskBatch) -> pa.RecordBatch | None:
        """What was done; None when it is not for one task."""
        if not lake.exists(one.target):
            return None
        with lake.opened(one.changes) as changes, lake.opened(one.target) as table:
            if (task := self._task(one, changes, table)) is None:
                return None
            (done,) = task(one.read(task.wanted, changes))
            return done

    def _task(self, one: TaskBatch, changes: DeltaTable, table: DeltaTable) -> AuditTask | None:
        """The merge; None when the table, or its change table, is not for one task."""
        # What is only added to has nothing to do with its size.
        if not (one.adds or self._may(table)) or not is_plain(table):
            return None
        reached = table.transaction_version(self.app_id)
        if one.audit is not None and reached is not None and one.after < reached < one.upto:
            return None  # the key log is to be made good first
        made = (one.layout or one.relation).columns
        if {c.name for c in made} - {f.name for f in table.schema().fields}:
            return None
        if (audit := audit_of(one, changes)) is None:
            return None
        key = tuple(one.relation.key)
        schema = schema_of(made)
        follows = -1 if reached is None else int(reached)
        return AuditTask(
            one.target, self.app_id, one.upto, key, schema, one.extra, self.memory_bytes, audit, follows,
            table, self.limits.local_bytes,
        )  # fmt: skip

    def _may(self, table: DeltaTable) -> bool:
        """Whether one task may look for the rows: in large tables only if no other machine could help, and
        it may write a file of the table."""
        if is_local(size := size_of(table), self.limits):
            return True
        smallest = min(actions(table)["size_bytes"].to_pylist(), default=0)
        return self.alone and not size.vectors and smallest <= self.limits.local_bytes


def audit_of(one: TaskBatch, changes: DeltaTable) -> Audit | None:
    """How a batch is audited; None when its change table has columns that a task cannot take as they are."""
    columns, there = one.relation.columns, lake.arrow_schema(changes)
    if any(kept_as(there.names, c.name, one.upto) != c.name for c in columns):
        return None
    if (audit := one.audit) is not None:
        # A change table's column is only ever widened: what came before still has its own type's values.
        if not all(_holds(there.field(c.name).type, c) for c in columns if c.name in there.names):
            return None
        sheet = replace(audit.sheet, ordinals=ordinals(there.names, [c.name for c in columns]))
        log = replace(audit.keylog, sheet=sheet) if audit.keylog else None
        return replace(audit, sheet=sheet, keylog=log)
    return plain_audit(one.table, one.relation, there.names, one.after)


def _holds(kind: pa.DataType, column: Column) -> bool:
    """Whether a change table's column has a layout's values, unchanged."""
    mine = arrow_type(column.type)
    return bool(kind == mine or widens(mine, kind))


def merge_many(
    spark: SparkSession | None, todo: Sequence[TaskBatch], make: ManyTask
) -> list[Audited | TailraceError | None]:
    """Merges all batches, as many side by side as there are cores: by threads of this process, on a cluster
    and where they are `MANY` by Spark's tasks in one job.

    Gives for each, in their order, what was done, or the error of a table whose changes were not applied, or
    None: it needs a job of its own (nothing was done, or what was found is not known).
    """
    there = spark if len(todo) >= MANY else cluster(spark)
    rows = spread(make, len(todo), RESULT, there)
    found: dict[int, Audited | TailraceError | None] = {}
    for row in rows:
        one = todo[place := int(row["table"])]
        if row["file"] == FAILED:
            found[place] = from_spark(RuntimeError(row["told"]), where=f"apply {one.table}")
            continue
        done = outcome_of(row)
        if done == LOST and one.audit is None:
            outcome = ApplyOutcome(version=row["version"], plan="task_local")
            done = Audited(outcome, one.upto, dict.fromkeys("IUDT", 0), {}, None, None)
        if isinstance(done, Audited):
            seconds, plan = row["took_us"] / 1e6, "append" if one.adds else "task_local"
            done = replace(done, outcome=replace(done.outcome, plan=plan, seconds=seconds))
        found[place] = done if isinstance(done, Audited) else None
    return [found[place] for place in range(len(todo))]
