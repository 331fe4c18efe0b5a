"""Writes by Spark for targets that tasks of tailrace cannot write: MERGE, and overwrites.

Each write is one commit, keeps deletion vectors and carries the progress (`txnAppId`, `txnVersion`). MERGE
has no options, only settings of its session, so it runs in a separate session. `unmoved` makes a write commit
on the version that the batch was made from, or not at all.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from ...engine.columns import KEPT, OP
from ...errors import ConcurrentCommitError, from_spark
from ...execution import has_started, over_rows
from ...lake import delta as lake
from ...lake import guards
from ...model.change import Relation
from ...model.quoting import quoted
from ..images import col
from ..merge_result import ApplyOutcome
from ..plans import FoldedChanges
from .table_info import has_vectors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TXN = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
_SAME = "header__same"
_CONFLICT = re.compile(r"DELTA_(CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)|Concurrent\w+Exception")
_SHARED = (
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.ansi.enabled",
    "spark.databricks.delta.snapshotPartitions",
    "spark.sql.parquet.datetimeRebaseModeInRead",
    "spark.sql.parquet.datetimeRebaseModeInWrite",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
)


def forget(spark: SparkSession) -> None:
    """Makes Spark look anew at every Delta table: it keeps what it knows of a path, and another table may
    have been moved there."""
    if not has_started(spark):
        return
    jvm = spark.sparkContext._jvm
    assert jvm is not None  # noqa: S101 - a session has one
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def merge_session(spark: SparkSession) -> SparkSession:
    """A session of our own in the same application, with the settings that results and speed depend on."""
    mine = spark.newSession()
    for name in _SHARED:
        value = spark.conf.get(name, None)
        if value is not None:
            mine.conf.set(name, value)
    return mine


def enable_vectors(spark: SparkSession, path: str, version: int) -> None:
    """Upgrades a table to deletion vectors, for good: delta-rs appends to it and overwrites it, no more."""
    guards.check()
    with conflicts_as_errors(path, version):
        spark.sql(
            f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )


@dataclass(frozen=True)
class _VersionCheck:
    """Looks in a Spark task whether a table still has a version; ConcurrentCommitError when it has not."""

    path: str
    version: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and (now := lake.version(self.path)) != self.version:
                raise ConcurrentCommitError.at(self.path, self.version, now)
            yield pa.record_batch([pa.array([1] * batch.num_rows, pa.int32())], [_SAME])


def guard_version(rows: DataFrame, path: str, version: int) -> DataFrame:
    """The rows, read by a job that fails with ConcurrentCommitError when the table has another version.

    A Delta write opens its transaction before its job runs, and refuses by itself what others commit from
    then on in its way. The job's look tells that nobody did between `version` and that moment. Spark commits
    by itself; so the guards are asked here, directly before it.
    """
    from pyspark.sql import functions as F

    guards.check()
    one = over_rows(rows.sparkSession.range(0, 1, 1, 1), _VersionCheck(path, version), f"{_SAME} int")
    return rows.crossJoin(F.broadcast(one)).drop(_SAME)


@contextmanager
def conflicts_as_errors(path: str, version: int) -> Iterator[None]:
    """Turns what Spark says of others' commits into ConcurrentCommitError."""
    try:
        yield
    except Exception as error:
        if isinstance(found := from_spark(error, where=path), ConcurrentCommitError):
            raise found from error
        if not _CONFLICT.search(str(error)):
            raise
        raise ConcurrentCommitError.at(path, version) from error


def write(rows: DataFrame, path: str, version: int, mode: str, **options: str) -> None:
    """Spark's append to that version alone, or its overwrite, of what `options` say (`replaceUsing`,
    `replaceWhere`).

    Raises:
        ConcurrentCommitError: somebody else committed since.
    """
    with conflicts_as_errors(path, version):
        guard_version(rows, path, version).write.format("delta").mode(mode).options(**options).save(path)


def merge(
    spark: SparkSession,
    folded: FoldedChanges,
    path: str,
    version: int,
    relation: Relation,
    app_id: str,
    upto: int,
    *,
    pruned: bool,
) -> ApplyOutcome:
    """Spark's MERGE, `pruned` to the batch's range of keys; `spark` is from `merge_session`.

    Raises:
        ConcurrentCommitError: the table has not that version any more.
    """
    from delta.tables import DeltaTable as SparkTable

    names = [c.name for c in relation.columns]
    same = " AND ".join([f"t.{quoted(k)} = s.{quoted(k)}" for k in relation.key])
    if pruned and folded.keys is not None:
        same = " AND ".join([same, *key_range(folded.keys, relation)])
    new: dict[str, str | Column] = {quoted(n): f"s.{quoted(n)}" for n in names}
    changed: dict[str, str | Column] = {
        quoted(n): _update(i, n, folded.partial) for i, n in enumerate(names) if n not in relation.key
    }
    for name, value in zip(_TXN, (app_id, str(upto)), strict=True):
        spark.conf.set(name, value)
    try:
        source = guard_version(folded.df, path, version).alias("s")
        merging = SparkTable.forPath(spark, path).alias("t").merge(source, same)
        merging = merging.whenMatchedDelete(f"s.{OP} = 'D'")
        merging = merging.whenMatchedUpdate(
            set=changed or {quoted(relation.key[0]): f"s.{quoted(relation.key[0])}"}
        )
        with conflicts_as_errors(path, version):
            rows = merging.whenNotMatchedInsert(condition=f"s.{OP} <> 'D'", values=new).execute().collect()
    finally:
        for name in _TXN:
            spark.conf.unset(name)
    done = rows[0].asDict() if rows else {}
    return ApplyOutcome(
        int(done.get("num_inserted_rows", 0)),
        int(done.get("num_updated_rows", 0)),
        int(done.get("num_deleted_rows", 0)),
        DeltaTable(path).version(),
        "merge",
    )


def _update(index: int, name: str, partial: bool) -> str:
    value = f"s.{quoted(name)}"
    if not partial:
        return value
    return f"CASE WHEN substring(s.{KEPT}, {index + 1}, 1) = '1' THEN t.{quoted(name)} ELSE {value} END"


def key_range(keys: DataFrame, relation: Relation) -> list[str]:
    """Conditions on the first key column that let Delta pass over files: its range in the batch, old keys
    included. None for types whose order or literal is not the same everywhere."""
    from pyspark.sql import functions as F

    first = relation.key[0]
    if relation.column(first).type not in ("smallint", "int", "bigint", "date"):
        return []
    found = keys.agg(F.min(col(first)), F.max(col(first))).first()
    if found is None or found[0] is None:
        return []
    low, high = (f"DATE'{v}'" if isinstance(v, dt.date) else str(v) for v in found)
    return [f"t.{quoted(first)} >= {low}", f"t.{quoted(first)} <= {high}"]


def rows_of(spark: SparkSession, path: str, table: DeltaTable) -> DataFrame:
    """The target's rows as of a version that delta-rs has opened.

    Without deletion vectors and partitions Spark reads the files as they are: no snapshot of the table is
    made in the JVM.
    """
    from pyspark.sql.types import StructType

    if has_vectors(table) or table.metadata().partition_columns:
        return spark.read.format("delta").option("versionAsOf", table.version()).load(path)
    shape = StructType.fromJson(json.loads(table.schema().to_json()))
    files = lake.paths(table)
    return spark.read.schema(shape).parquet(*files) if files else spark.createDataFrame([], shape)
