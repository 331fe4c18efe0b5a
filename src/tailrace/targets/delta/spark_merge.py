"""Merges by Spark, for Delta tables whose files tailrace may not write because of partitions, constraints, a
change feed or deletion vectors. Spark reads the rows of the changes, and merges the resulting images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ...engine.columns import ADD, KEPT, OP, TAKE
from ...errors import ConcurrentCommitError
from ...execution import map_partitions
from ...lake import delta as lake
from ...lake.data_files import DataFiles
from ...lake.failpoints import reach
from ...lake.opened import open_table
from ...lake.table import LakeTable
from ...model.change import DELETE, Relation
from ...model.positions import order_key
from ...model.types import schema_of
from ..change_batch import ChangeBatch
from ..images import col, shaped
from ..lake.rewrite import TargetVersion
from ..merge_result import ApplyOutcome
from ..multi_source import rows_in_partition
from ..plans import FoldedChanges, has_special_names
from ..scratch import ScratchFile, WriteRows
from ..spark_fold import BROADCAST, copies, repeated
from . import spark_io
from .layout import refuse_lost_columns
from .table_info import has_vectors
from .tables import DeltaLakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRUNED_FILES = 16
"""A MERGE into at least this number of files is restricted to the batch's key range, which costs a job to
find."""
_SAME_ROWS = {"SET TBLPROPERTIES", "UPGRADE PROTOCOL"}
"""Operations that leave a table's rows as they are."""


@dataclass(frozen=True)
class DeltaSparkPlan:
    """Merges batches into Delta tables by Spark, see `SparkPlan`.

    Attributes:
        spark: the session.
        merge_session: returns the session of a table's MERGE.
    """

    spark: SparkSession
    merge_session: Callable[[str], SparkSession]

    def target_rows(
        self, table: LakeTable, one: ChangeBatch, changes: Sequence[ScratchFile], folder: str
    ) -> TargetVersion:
        """Writes the rows of a table that changes may affect to files, by Spark."""
        assert isinstance(table, DeltaLakeTable)  # noqa: S101 - the tables of this plan
        return target_rows(self.spark, table.delta, one, changes, folder)

    def merge(
        self,
        table: LakeTable,
        one: ChangeBatch,
        files: Sequence[ScratchFile],
        end: int,
        outcome: ApplyOutcome,
        *,
        partial: bool,
        emptied: bool,
        marks: bool,
    ) -> ApplyOutcome:
        """Merges the resulting images of a batch and commits."""
        assert isinstance(table, DeltaLakeTable)  # noqa: S101 - the tables of this plan
        work = SparkMerge(
            self.spark, self.merge_session, table.delta, one, files, end,
            partial=partial, emptied=emptied, marks=marks,
        )  # fmt: skip
        return work.run(outcome)


def target_rows(
    spark: SparkSession, table: DeltaTable, one: ChangeBatch, changes: Sequence[ScratchFile], folder: str
) -> TargetVersion:
    """Writes the rows of a table that changes may affect to files, by Spark: their keys, and all columns if
    images may need them."""
    relation = one.layout or one.relation
    whole = not relation.key or bool(one.counts.get("absent") and one.counts.get("key_changes"))
    marks = {one.audit.rules.soft_column} if one.audit and one.audit.rules.mode == "soft_delete" else set()
    names = [c for c in relation.columns if whole or c.key or c.name in marks]
    target = shaped(
        rows_in_partition(spark_io.rows_of(spark, one.target, table), one.partition),
        relation.with_columns(names),
    )
    found: list[ScratchFile | None] = []
    if changes:
        by = relation.key or [c.name for c in relation.columns]
        count = sum(file.rows for file in changes)
        rows = map_partitions(
            _matching(target, _read(spark, changes), by, count), WriteRows(folder, schema_of(names))
        )
        found += rows
    files = tuple(
        {"path": file.path.rpartition("/")[2], "size_bytes": file.bytes, "num_records": file.rows}
        for file in found
        if file is not None
    )
    return TargetVersion(DataFiles(folder), table.version(), files, schema_of(names))


def _read(spark: SparkSession, files: Sequence[ScratchFile]) -> DataFrame:
    return spark.read.parquet(*(file.path for file in files))


def _matching(target: DataFrame, changes: DataFrame, by: Sequence[str], count: int) -> DataFrame:
    """Returns the rows of the target with the keys of changes; `count`: the number of changes."""
    from pyspark.sql import functions as F

    keys = changes.select(*[col(n).alias(f"header__by{i}") for i, n in enumerate(by)])
    keys = F.broadcast(keys) if count <= BROADCAST else keys
    same = [col(n).eqNullSafe(col(f"header__by{i}")) for i, n in enumerate(by)]
    return target.join(keys, reduce(and_, same), "left_semi")


@dataclass(frozen=True)
class SparkMerge:
    """Merges the resulting images of a batch into the open version of a table.

    Attributes:
        spark: the session.
        merge_session: returns the session of a table's MERGE.
        table: the table.
        one: the batch.
        files: the resulting images, see `ShardResult`.
        end: the progress of the table afterwards.
        partial: some images leave columns out.
        emptied: a truncate removes all rows of the source.
        marks: MERGE marks rows in deletion vectors, which are enabled for the table.
    """

    spark: SparkSession
    merge_session: Callable[[str], SparkSession]
    table: DeltaTable
    one: ChangeBatch
    files: Sequence[ScratchFile]
    end: int
    partial: bool
    emptied: bool
    marks: bool = True

    def run(self, outcome: ApplyOutcome) -> ApplyOutcome:
        """Merges and commits; returns the outcome with plan and version.

        Raises:
            ConcurrentCommitError: another process committed since the table was opened.
        """
        plan = "none"
        reach("delta.distributed")
        if self.files or self.emptied:
            plan = self._merge() if self._relation.key else self._copies()
        reach("delta.distributed.done")
        path, app = self.one.target, self.one.app_id
        version = lake.version(path)
        if order_key(lake.progress(path, app)) < self.end:  # a MERGE that changes no row may leave no commit
            version = lake.commit(path, [], progress={app: self.end}) or version
        return replace(outcome, plan=plan, version=version)

    @property
    def _relation(self) -> Relation:
        return self.one.layout or self.one.relation

    def _merge(self) -> str:
        relation, one = self._relation, self.one
        rows = self._rows()
        if self.emptied and not one.partition:
            self._write(rows.where(col(OP) != DELETE).drop(OP, KEPT), "overwrite")
            return "replace_all"
        rows = self._without_own(rows) if self.emptied else rows
        folded = FoldedChanges(
            rows, (OP, KEPT) if self.partial else (OP,), keys=rows.select(*map(col, relation.key))
        )
        version, pruned = self._mergeable_version(), len(self.table.file_uris()) >= PRUNED_FILES
        spark_io.merge(
            self.merge_session(one.table), folded, one.target, version, relation, one.app_id, self.end,
            pruned=pruned,
        )  # fmt: skip
        return "merge"

    def _rows(self) -> DataFrame:
        """Returns the resulting images: one row per key."""
        relation = self._relation
        if not self.files:
            rows = spark_io.rows_of(self.spark, self.one.target, self.table).limit(0)
            return shaped(rows, relation).selectExpr(f"'' AS {OP}", f"CAST(NULL AS STRING) AS {KEPT}", "*")
        return _read(self.spark, self.files).select(OP, KEPT, *[col(c.name) for c in relation.columns])

    def _without_own(self, rows: DataFrame) -> DataFrame:
        """Adds the deletes of a truncate of one source of a shared target: its rows that `rows` does not
        have."""
        from pyspark.sql import functions as F

        key = list(self._relation.key)
        rows_of_source = rows_in_partition(
            spark_io.rows_of(self.spark, self.one.target, self.table), self.one.partition
        )
        rows = rows.where(col(OP) != DELETE)
        deleted = shaped(rows_of_source, self._relation).join(rows.select(*map(col, key)), key, "left_anti")
        deleted = deleted.withColumns({OP: F.lit(DELETE), KEPT: F.lit(None).cast("string")})
        return rows.unionByName(deleted)

    def _mergeable_version(self) -> int:
        """Enables deletion vectors if needed, and returns the version that a MERGE changes."""
        path, before = self.one.target, self.table.version()
        if not self.marks or has_vectors(self.table) or has_special_names(self._relation):
            return before
        spark_io.enable_vectors(self.spark, path, before)
        now = open_table(path)
        if now.version() != before + 1 or now.history(1)[0].get("operation") not in _SAME_ROWS:
            raise ConcurrentCommitError.at(path, before, now.version())
        return now.version()

    def _copies(self) -> str:
        """Adds and removes copies of rows of a keyless table, which is written again."""
        from pyspark.sql import functions as F

        names = [c.name for c in self._relation.columns]
        rows = self._rows()
        target = None if self.emptied else spark_io.rows_of(self.spark, self.one.target, self.table)
        if self.emptied and self.one.partition:
            every = spark_io.rows_of(self.spark, self.one.target, self.table)
            target = every.exceptAll(rows_in_partition(every, self.one.partition))
        one, none = (F.lit(n).cast("bigint") for n in (1, 0))
        deletes = F.when(col(OP) == DELETE, one).otherwise(none)
        rows = rows.select(deletes.alias(TAKE), (one - deletes).alias(ADD), *map(col, names))
        if not self.emptied and rows.where(col(TAKE) > 0).isEmpty():
            self._write(rows.drop(TAKE, ADD), "append")
            return "append"
        refuse_lost_columns(self.one.target, self.table, self._relation)
        self._write(repeated(copies(target, FoldedChanges(rows, (TAKE, ADD)), names), names), "overwrite")
        return "keyless"

    def _write(self, rows: DataFrame, mode: str) -> None:
        progress = {"txnAppId": self.one.app_id, "txnVersion": str(self.end)}
        spark_io.write(rows, self.one.target, self.table.version(), mode, **progress)
