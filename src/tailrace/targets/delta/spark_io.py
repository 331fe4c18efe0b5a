"""Reads and writes of Delta tables by Spark, for tables that only Spark may write: MERGE, append, overwrite.

Each write is one commit, keeps deletion vectors and has the progress (`txnAppId`, `txnVersion`). MERGE has no
options, only session settings, so it runs in a separate session. `guard_version` makes a write commit on the
version that was read, or not at all.
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
from ...lake.opened import open_table
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


def clear_cache(spark: SparkSession) -> None:
    """Clears Spark's cache of Delta logs, because another table may have been moved to the path of one."""
    if not has_started(spark):
        return
    jvm = spark.sparkContext._jvm
    assert jvm is not None  # noqa: S101 - a session has one
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def merge_session(spark: SparkSession) -> SparkSession:
    """Returns a new session of the same application with the settings that affect results and speed."""
    session = spark.newSession()
    for name in _SHARED:
        value = spark.conf.get(name, None)
        if value is not None:
            session.conf.set(name, value)
    return session


def enable_vectors(spark: SparkSession, path: str, version: int) -> None:
    """Enables deletion vectors of a table. This cannot be undone: afterwards delta-rs can only append to the
    table or overwrite it."""
    guards.check()
    with conflicts_as_errors(path, version):
        spark.sql(
            f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        )


@dataclass(frozen=True)
class _VersionCheck:
    """Checks in a Spark task that a table still has a version; otherwise raises ConcurrentCommitError."""

    path: str
    version: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and (now := lake.version(self.path)) != self.version:
                raise ConcurrentCommitError.at(self.path, self.version, now)
            yield pa.record_batch([pa.array([1] * batch.num_rows, pa.int32())], [_SAME])


def guard_version(rows: DataFrame, path: str, version: int) -> DataFrame:
    """Returns rows whose job fails with ConcurrentCommitError if the table has another version.

    A Delta write opens its transaction before its job runs, and from then on refuses conflicting commits
    itself. The check in the job proves that there was no commit between `version` and that moment. As Spark
    makes the commit, the guards are checked here, directly before the write.
    """
    from pyspark.sql import functions as F

    guards.check()
    one = over_rows(rows.sparkSession.range(0, 1, 1, 1), _VersionCheck(path, version), f"{_SAME} int")
    return rows.crossJoin(F.broadcast(one)).drop(_SAME)


@contextmanager
def conflicts_as_errors(path: str, version: int) -> Iterator[None]:
    """Turns Spark's errors about concurrent commits into ConcurrentCommitError."""
    try:
        yield
    except Exception as error:
        if isinstance(found := from_spark(error, where=path), ConcurrentCommitError):
            raise found from error
        if not _CONFLICT.search(str(error)):
            raise
        raise ConcurrentCommitError.at(path, version) from error


def write(rows: DataFrame, path: str, version: int, mode: str, **options: str) -> None:
    """Appends rows to a version of a table or overwrites it, with Spark's write `options` (`replaceWhere`).

    Raises:
        ConcurrentCommitError: another process has committed since that version.
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
    end: int,
    *,
    pruned: bool,
) -> ApplyOutcome:
    """Merges folded changes into a version of a table by Spark's MERGE.

    Args:
        spark: a session from `merge_session`.
        folded: the resulting images.
        path: the table.
        version: its version.
        relation: its layout.
        app_id: the application id of the progress.
        end: the progress after the merge.
        pruned: restrict MERGE to the key range of the batch.

    Raises:
        ConcurrentCommitError: the table does not have that version any more.
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
    for name, value in zip(_TXN, (app_id, str(end)), strict=True):
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
        open_table(path).version(),
        "merge",
    )


def _update(index: int, name: str, partial: bool) -> str:
    value = f"s.{quoted(name)}"
    if not partial:
        return value
    return f"CASE WHEN substring(s.{KEPT}, {index + 1}, 1) = '1' THEN t.{quoted(name)} ELSE {value} END"


def key_range(keys: DataFrame, relation: Relation) -> list[str]:
    """Returns conditions by which Delta skips files: the range of the first key column in the batch,
    including old keys. Empty for types whose order or literals differ between systems."""
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
    """Returns the rows of a version of the target that delta-rs has opened.

    Without deletion vectors and partitions Spark reads the Parquet files directly, so the JVM needs no
    snapshot of the table.
    """
    from pyspark.sql.types import StructType

    if has_vectors(table) or table.metadata().partition_columns:
        return spark.read.format("delta").option("versionAsOf", table.version()).load(path)
    shape = StructType.fromJson(json.loads(table.schema().to_json()))
    files = lake.paths(table)
    return spark.read.schema(shape).parquet(*files) if files else spark.createDataFrame([], shape)
