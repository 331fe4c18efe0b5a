"""A batch on its way into a Delta table: the plans, each one commit on the version that it was made from.

When somebody else commits before that, ConcurrentCommitError: whoever began it begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from ....engine.columns import HAVE, LEFT, OP, TAKE
from ....errors import ConcurrentCommitError
from ....execution import executor_of, slots
from ....lake import delta as lake
from ....lake.failpoints import reach
from ....model.change import BEFORE, DELETE, TRUNCATE
from ....model.types import schema_of
from ...fold import copies, fold, repeated
from ...images import col, images, masked, ordinals
from ...plan import Folded, TableBatch
from ...tasks import TOO_LARGE
from ..audit import Audited, plain_audit
from ..outcome import ApplyOutcome
from . import distributed
from .audit import audited
from .layout import takes_parts
from .local import MergeTask, PartTask, append, info, merge_local, write_parts
from .rewrite_tasks import RewriteTasks
from .size import rows_in
from .staged import StagedChanges, scratch, stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRUNED_FILES = 16
"""From so many files on, a MERGE is told the batch's range of keys: finding it costs a job of its own."""


@dataclass(frozen=True)
class DeltaBatch:
    """A batch: where to, the open table, what of it is new.

    Attributes:
        spark: the session of the batch's DataFrames.
        merge_session: gives the session of a table's MERGEs.
        app: under which name the progress stands.
        table: the open table; after: the change number that it has reached.
        truncate: the `change_seq` of the last truncate after that; None: there is none.
        memory: what a merge inside one task may hold.
    """

    spark: SparkSession
    merge_session: Callable[[str], SparkSession]
    batch: TableBatch
    path: str
    app: str
    table: DeltaTable
    after: int
    truncate: str | None
    memory: int | None

    @property
    def schema(self) -> pa.Schema:
        """The schema to write."""
        return schema_of(self.batch.relation.columns)

    @cached_property
    def folded(self) -> Folded:
        """What is left of the changes."""

        def there(_: DataFrame) -> DataFrame:
            return distributed.rows_of(self.spark, self.path, self.table)

        return fold(
            self.batch, after=self.after, truncate=self.truncate, there=there, memory=self.memory
        )  # fmt: skip

    def task_local(self) -> ApplyOutcome:
        """The plan `task_local`, unless the task has not the memory for it."""
        with distributed.naming_conflicts(self.path, self.table.version()):
            done = self._decided_there() if self.batch.folded is None else self._merged()
        return done or self.by_spark()

    def by_spark(self, plan: str = "") -> ApplyOutcome:
        """A batch for a small table that is not one task's, or, by one of the plans of `parts`, for a table
        whose parts Spark alone writes: it sorts and spills, knows partitions, and what a table demands."""
        # A MERGE gives a small table no deletion vectors.
        if self.batch.relation.key and plan != "replace_all":
            return self.distributed("merge")
        return (self.parts if takes_parts(self.table) else self._parts_by_spark)(plan or "bag")

    def _parts_by_spark(self, plan: str) -> ApplyOutcome:
        """The plans of `parts` as Spark's own writes."""
        rows, done = self._left(plan)
        progress = {"txnAppId": self.app, "txnVersion": str(self.batch.upto)}
        reach("delta.distributed")
        mode = "append" if plan == "append" else "overwrite"
        distributed.write(rows, self.path, self.table.version(), mode, **progress)
        now = DeltaTable(self.path)
        if done is None:
            written = int(now.history(1)[0].get("operationMetrics", {}).get("numOutputRows", 0))
            done = ApplyOutcome(written, deleted=rows_in(self.table) if plan == "replace_all" else 0)
        return replace(done, version=now.version(), plan=plan)

    def _left(self, plan: str) -> tuple[DataFrame, ApplyOutcome | None]:
        """The rows that such a plan writes; what comes and goes, when copies of rows do."""
        from pyspark.sql import functions as F

        folded, names = self.folded, self.schema.names
        if TAKE not in folded.extra and plan != "bag":
            rows = folded.df.where(col(OP) != DELETE) if OP in folded.extra else folded.df
            return rows.select(*map(col, names)), None
        there = distributed.rows_of(self.spark, self.path, self.table) if plan == "bag" else None
        many, comes, none = copies(there, folded, names), col(LEFT) - col(HAVE), F.lit(0).cast("bigint")
        found = many.agg(
            *(F.sum(F.greatest(n, none)) for n in (comes, -comes, col(TAKE) - col(HAVE)))
        ).first()  # fmt: skip
        assert found is not None  # noqa: S101 - an aggregate without groups has one row
        inserted, deleted, missing = (int(n or 0) for n in found)
        return repeated(many, names), ApplyOutcome(inserted, deleted=deleted, missing=missing)

    def _decided_there(self) -> ApplyOutcome | None:
        """The task that merges the changes folds them, too; None: it has not the memory."""
        batch, changes = self.batch, self.batch.changes
        places = ordinals(changes.df.columns, [c.name for c in batch.relation.columns])
        audit = plain_audit(batch.table, batch.relation, places, self.after)
        if batch.relation.key and not batch.may("key_changes", "absent"):  # old images tell nothing then
            changes = changes.with_df(changes.df.where(col(changes.header("change_oper")) != BEFORE))
        done = audited(
            replace(batch, changes=changes), audit, masked(changes) if batch.may("absent") else {},
            path=self.path, app_id=self.app, follows=self.after, memory_bytes=self.memory,
        )  # fmt: skip
        if isinstance(done, Audited):
            return replace(done.outcome, plan="task_local")
        return None if done == TOO_LARGE else ApplyOutcome(version=lake.version(self.path), plan="task_local")

    def _merged(self) -> ApplyOutcome | None:
        folded, key = self.folded, tuple(self.batch.relation.key)
        task = MergeTask(
            self.path, self.app, self.batch.upto, key, self.schema, folded.partial, self.memory,
            self.table.version(),
        )  # fmt: skip
        return merge_local(folded.df, task)

    def rewrite(self, most: int) -> ApplyOutcome | None:
        """The plan `rewrite`; None when the changes need more memory than a task has, or touch files of more
        than `most` bytes."""
        df, folded, partial = self._whole_images(), False, False
        if df is None:
            df, folded, partial = self.folded.df, True, self.folded.partial
        key = tuple(self.batch.relation.key)
        with scratch(self.path) as folder:
            none = StagedChanges(folder, self.batch.table, key, self.schema, folded, partial)
            # Half of the memory is for what is copied.
            staged = stage(df, none, None if self.memory is None else self.memory // 2)
            if staged is None:
                return None
            shards = slots(executor_of(self.spark, self.batch.rows))
            work = RewriteTasks(
                self.table, self.path, staged, self.spark, self.batch.rows, shards, self.memory, most
            )
            return work.merge(self.app, self.batch.upto)

    def _whole_images(self) -> DataFrame | None:
        """The change rows, when they need no fold before tasks write them: the last image of a key is what is
        left of its changes, whole."""
        batch, changes = self.batch, self.batch.changes
        if batch.folded is not None or batch.may("absent"):
            return None
        idle = [TRUNCATE, *([] if batch.may("key_changes") else [BEFORE])]  # old images tell nothing then
        changes = changes.with_df(changes.df.where(~col(changes.header("change_oper")).isin(idle)))
        return images(changes, batch.relation, after=self.after)

    def parts(self, plan: str) -> ApplyOutcome:
        """Plans that write whole parts: tasks side by side, one commit by the driver."""
        keyed, folded = bool(self.batch.relation.key), self.folded
        task, df = PartTask(self.path, self.schema, bag=TAKE in folded.extra or plan == "bag"), folded.df
        if task.bag:
            there = distributed.rows_of(self.spark, self.path, self.table) if plan == "bag" else None
            df = copies(there, folded, self.schema.names)
        files, done = write_parts(df, task)
        deleted = done.deleted + (rows_in(self.table) if plan == "replace_all" else 0)
        reach("delta.parts")
        # Copies are added to whatever is there; rows with a key to none, or they would be there twice.
        adds = plan == "append" and not keyed and self.batch.looked is None
        return self._committed(replace(done, deleted=deleted, plan=plan), files, adds=adds)

    def _committed(
        self, done: ApplyOutcome, files: list[lake.AddedFile], *, adds: bool = False
    ) -> ApplyOutcome:
        """Commits parts, which are to be all of the table or, by the plan `append`, more of it; `adds`:
        whatever it has by now, as long as nobody else has applied to it."""
        progress, words = {self.app: self.batch.upto}, info(plan=done.plan)
        now = self.table.version()
        if adds:
            follows = lake.reached(self.table, self.app)
            return replace(done, version=append(self.path, files, self.app, self.batch.upto, follows, words))
        if done.plan == "append":
            version = lake.commit(self.path, files, progress=progress, info=words, only_after=now)
        else:
            version = lake.overwrite(
                self.path, files, schema=None, progress=progress, only_after=now, info=words
            )
        if version is not None:
            return replace(done, version=version)
        if lake.progress(self.path, self.app) >= self.batch.upto:
            return ApplyOutcome(version=lake.version(self.path))
        raise ConcurrentCommitError.at(self.path, now)

    def distributed(self, plan: str) -> ApplyOutcome:
        """The plans `replace_keys` and `merge`."""
        folded = self.folded
        relation, upto, now = self.batch.relation, self.batch.upto, self.table.version()
        reach("delta.distributed")
        if plan == "replace_keys":
            done = distributed.replace_keys(folded, self.path, now, relation, self.app, upto)
        else:
            spark = self.merge_session(self.batch.table)
            pruned = len(self.table.file_uris()) >= PRUNED_FILES
            done = distributed.merge(spark, folded, self.path, now, relation, self.app, upto, pruned=pruned)
        reach("delta.distributed.done")
        if lake.progress(self.path, self.app) < upto:  # a MERGE that changes no row may leave no commit
            version = lake.commit(self.path, [], progress={self.app: upto})
            done = replace(done, version=version or done.version)
        return done
