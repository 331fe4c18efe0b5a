"""A batch on its way into a Delta table: the plans, each one commit on the version that it was made from.

When somebody else commits before that, ConcurrentCommitError: whoever began it begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from ...errors import ConcurrentCommitError
from ...lake import delta as lake
from ...lake import guards
from ...lake.failpoints import reach
from ...model.types import schema_of
from .. import bag
from ..fold import Folded, Images, fold, relevant, weights
from ..plan import TableBatch
from . import delta_spark
from .base import Outcome
from .delta_local import NET, MergeTask, PartTask, append, info, merge_local, write_parts
from .delta_size import actions, rows_in
from .delta_whole import WholeTask, joined, write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRUNED_FILES = 16
"""From so many files on, a MERGE is told the batch's range of keys: finding it costs a job of its own."""


@dataclass(frozen=True)
class Job:
    """A batch: where to, the open table, the change rows made ready.

    Attributes:
        spark: the session of the batch's DataFrames.
        beside: gives the session of a table's MERGEs.
        app: under which name the progress stands.
        memory: what a merge inside one task may hold.
    """

    spark: SparkSession
    beside: Callable[[str], SparkSession]
    batch: TableBatch
    path: str
    app: str
    table: DeltaTable
    made: Images
    memory: int | None

    @property
    def schema(self) -> pa.Schema:
        """The schema to write."""
        return schema_of(self.batch.relation.columns)

    def _fold(self, *, fresh: bool = False) -> Folded:
        """`fresh`: the target has no rows that could give absent columns."""
        needed = self.batch.may("key_changes") and self.batch.may("absent") and not fresh
        target = delta_spark.rows_of(self.spark, self.path, self.table) if needed else None
        return fold(self.made, self.batch.counts, target)

    def task_local(self) -> Outcome:
        """The plan `task_local`; one that the task has not the memory for becomes `merge`."""
        folds = not self.batch.may("absent")
        folded = None if folds else self._fold()
        df = folded.df if folded else relevant(self.made, self.batch.counts)
        partial = folded is not None and folded.partial
        task = MergeTask(
            self.path,
            self.app,
            self.batch.upto,
            tuple(self.made.key),
            self.schema,
            partial,
            folds,
            self.memory,
            # Values of rows that moved are those of this version.
            None if folds and self.batch.looked is None else self.table.version(),
        )
        with delta_spark.naming_conflicts(self.path, self.table.version()):
            done = merge_local(df, task)
        # Spark's MERGE sorts and spills; the table itself stays small, so it gets no deletion vectors.
        return done or self.distributed("merge", folded)

    def parts(self, plan: str) -> Outcome:
        """Plans that write whole parts: tasks side by side, one commit by the driver."""
        key = self.made.key
        task = PartTask(self.path, self.schema, bag=not key and plan != "append")
        if key:
            df = self._fold(fresh=True).df
        elif task.bag:
            there = None if self.made.replaces else delta_spark.rows_of(self.spark, self.path, self.table)
            df = bag.copies(there, self.made)
        else:
            df = weights(self.made).drop(NET)
        files, done = write_parts(df, task)
        deleted = done.deleted + (rows_in(self.table) if plan == "replace_all" else 0)
        reach("delta.parts")
        # Copies are added to whatever is there; rows with a key to none, or they would be there twice.
        adds = plan == "append" and not key and self.batch.looked is None
        return self._committed(replace(done, deleted=deleted, plan=plan), files, adds=adds)

    def whole(self) -> Outcome:
        """The plan `rewrite`."""
        folded = self._fold()
        size = sum(actions(self.table)["size_bytes"].to_pylist())
        there = delta_spark.rows_of(self.spark, self.path, self.table)
        df = joined(there, folded, self.made.key, self.made.columns, size)
        files, counts = write_whole(df, WholeTask(self.path, self.schema))
        reach("delta.whole")
        return self._committed(Outcome(**counts, plan="rewrite"), files)

    def _committed(self, done: Outcome, files: list[lake.AddedFile], *, adds: bool = False) -> Outcome:
        """Commits parts, which are to be all of the table or, by the plan `append`, more of it; `adds`:
        whatever it has by now, as long as nobody else has applied to it."""
        progress, words = {self.app: self.batch.upto}, info(plan=done.plan)
        now = self.table.version()
        if adds:
            reached = self.table.transaction_version(self.app)
            follows = -1 if reached is None else int(reached)
            return replace(done, version=append(self.path, files, self.app, self.batch.upto, follows, words))
        if done.plan == "append":
            version = lake.commit(self.path, files, progress=progress, info=words, only_after=now)
        else:
            version = lake.overwrite(
                self.path, files, schema=self.schema, progress=progress, only_after=now, info=words
            )
        if version is not None:
            return replace(done, version=version)
        if lake.progress(self.path, self.app) >= self.batch.upto:
            return Outcome(version=now)
        raise ConcurrentCommitError.at(self.path, now)

    def distributed(self, plan: str, folded: Folded | None = None) -> Outcome:
        """The plans `replace_keys` and `merge`."""
        folded = folded or self._fold()
        guards.check()  # Spark commits by itself; Delta tells its transactions apart by progress
        relation, upto, now = self.batch.relation, self.batch.upto, self.table.version()
        reach("delta.distributed")
        if plan == "replace_keys":
            done = delta_spark.replace_keys(folded, self.path, now, relation, self.app, upto)
        else:
            beside = self.beside(self.batch.table)
            pruned = self.made if len(self.table.file_uris()) >= PRUNED_FILES else None
            done = delta_spark.merge(beside, folded, pruned, self.path, now, relation, self.app, upto)
        reach("delta.distributed.done")
        if lake.progress(self.path, self.app) < upto:  # a MERGE that changes no row may leave no commit
            version = lake.commit(self.path, [], progress={self.app: upto})
            done = replace(done, version=version or done.version)
        return done
