"""Loads rows into Delta targets; into a shared one, those of one source, with its own progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from ...errors import ConcurrentCommitError
from ...lake import delta as lake
from ...lake.data_files import DataFiles
from ...lake.failpoints import reach
from ...lake.table import LakeTable
from ...model.change import Relation
from ...model.positions import order_key
from ...model.quoting import quoted
from ...model.types import schema_of, spark_type
from ..images import col
from ..lake.layout import mark
from ..lake.load import PartTask, write_parts
from ..lake.multi_source import column_check, exchange_partition
from ..parts import Parts
from . import spark_io
from .layout import create
from .tables import DeltaTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def load(path: str, app: str, relation: Relation, rows: DataFrame | Parts, after: int) -> int:
    """Replaces all rows of a table, in one commit with its progress, and returns the version."""
    create(path, relation)
    schema = schema_of(relation.columns)
    files, _ = write_parts(rows, PartTask(DataFiles(path), schema))
    progress = {app: max(after, 0)}
    reach("delta.load")
    return lake.replace_all(path, files, schema=schema, progress=progress, info=mark(relation))


def load_partition(
    tables: DeltaTables,
    path: str,
    app: str,
    relation: Relation,
    rows: DataFrame | Parts,
    after: int,
    partition: Mapping[str, str],
    rule_columns: Mapping[str, str],
) -> int:
    """Replaces the rows of one source, in one commit with its progress: files with such rows are rewritten
    without them. Returns the version.

    Args:
        tables: the tables.
        path: the target.
        app: the application id of the source's progress.
        relation: the layout of the rows.
        rows: the rows.
        after: the progress afterwards.
        partition: the constants of the source.
        rule_columns: the columns that rules may have added to the target.

    Raises:
        BaselineNeededError: the target has other columns than the rows and `rule_columns`.
    """
    create(path, relation)
    checked_schema = column_check(path, relation, rule_columns)
    now = tables.open(path)
    checked_schema(now)
    if not now.replaces_files:
        if isinstance(rows, Parts):  # `loads_parts` was called when files could be replaced
            raise ConcurrentCommitError.at(path, now.version)
        return _load_by_spark(tables, path, app, rows, after, partition, checked_schema)
    # Columns that are not in a file are NULL.
    files, _ = write_parts(rows, PartTask(now.files, schema_of(relation.columns)))
    return exchange_partition(tables, path, app, files, after, partition, checked_schema)


def _load_by_spark(
    tables: DeltaTables,
    path: str,
    app: str,
    rows: DataFrame,
    after: int,
    partition: Mapping[str, str],
    checked_schema: Callable[[LakeTable], pa.Schema],
) -> int:
    """Does `load_partition` for a table whose files only Spark may replace.

    The progress is a separate commit after the rows: after a crash between the two, the rows are loaded
    again.
    """
    from pyspark.sql import functions as F

    have = set(rows.columns)
    where = " AND ".join(f"{quoted(n)} = '{_escaped(v)}'" for n, v in partition.items())

    def once(now: DeltaTable) -> bool | None:
        kinds = {f.name: spark_type(f.type) for f in checked_schema(tables.open(path, int(now.version())))}
        cells = [col(n) if n in have else F.lit(None).cast(kind).alias(n) for n, kind in kinds.items()]
        try:
            spark_io.write(rows.select(*cells), path, now.version(), "overwrite", replaceWhere=where)
        except ConcurrentCommitError:
            return None
        return True

    lake.on_newest(path, once)
    reach("delta.load")
    version = lake.commit(path, [], progress={app: max(after, 0)}, begin=True)
    return order_key(lake.version(path)) if version is None else version


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
