"""Layouts of Delta targets: create tables, follow the source's layout, compact files.

`attnum` identifies a column, so a renamed column stays, and a column that was dropped and created again is
new. Columns that another process added to a target belong to neither layout; they stay with their values.
Adding nullable columns is a commit of metadata. Any other change rewrites the table in one commit (delta-rs
has no column mapping, which would make renames cheap). The progress stays in the log, which an overwrite
continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from ...errors import ApplyError
from ...lake import delta as lake
from ...lake import guards
from ...lake.failpoints import reach
from ...lake.opened import open_table
from ...lake.vacuum import DURATION
from ...model.change import Column, Relation
from ...model.quoting import quoted
from ...model.types import arrow_type, plain_schema, schema_of
from ..lake.layout import extended_layouts, fits, has_values, mark
from ..rule_columns import RULE
from . import spark_io
from .reshape import parts
from .table_info import ADDED, INVARIANT, actions
from .tables import DeltaLakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROPERTIES = {"delta.enableDeletionVectors": "false"}


def create(path: str, relation: Relation) -> None:
    """Creates an empty target if it does not exist."""
    lake.create(path, pa.schema(_fields(relation.columns)), PROPERTIES)


def _fields(columns: Sequence[Column]) -> list[pa.Field]:
    """Returns the fields of columns, with metadata on columns that rules add."""
    fields = zip(columns, schema_of(columns), strict=True)
    return [f.with_metadata({ADDED: RULE}) if c.kind == RULE else f for c, f in fields]


def refuse_lost_columns(path: str, table: DeltaTable, relation: Relation) -> None:
    """Raises ApplyError if a keyless table has values in a column that another process added, because the
    rewritten copies of rows would lose them."""
    known = {c.name for c in relation.columns}
    for name in (f.name for f in table.schema().fields if f.name not in known):
        if has_values(DeltaLakeTable(path, table), name):
            raise ApplyError(
                f"the target {path} has values in the column {name!r} that another process added; a batch "
                "of a keyless table that is too large for one task would lose them",
                where=relation.table,
                hint="move the column to another table, then `tailrace resume` the table; or give the table "
                "a key",
            )


def alter(spark: SparkSession, path: str, before: Relation, after: Relation, *, shared: bool = False) -> None:
    """Changes a target from one layout to another, which `lake.layout.refuse_layout` has accepted. Does
    nothing if it has the new layout already. `shared`: columns of other sources stay."""
    if not lake.exists(path):
        create(path, after)
        return

    def once(now: DeltaTable) -> int | None:
        layouts = extended_layouts(DeltaLakeTable(path, now), before, after, shared=shared)
        return _altered(spark, path, now, *layouts)

    lake.on_newest(path, once)


def _altered(
    spark: SparkSession, path: str, table: DeltaTable, before: Relation, after: Relation
) -> int | None:
    """Returns the version with the new layout; None if another process committed first."""
    old = {c.attnum: c for c in before.columns}
    have = {f.name: f.type for f in plain_schema(pa.schema(table.schema().to_arrow()))}
    if fits(DeltaLakeTable(path, table), before, after):
        return int(table.version())
    new = [c for c in after.columns if c.attnum not in old]
    stays = [c for c in after.columns if c.attnum in old]
    same = {c.name: arrow_type(c.type) for c in stays} == have
    renamed = any(old[c.attnum].name != c.name for c in stays)
    if same and not renamed and all(c.missing is None and c.name not in have for c in new):
        lake.add_columns(path, _fields(new))
        return lake.version(path)
    return _rewrite(spark, path, table, before, after)


def _rewrite(
    spark: SparkSession, path: str, table: DeltaTable, before: Relation, after: Relation
) -> int | None:
    files = parts(spark, path, table, before, after)
    reach("delta.rewrite")
    now, schema = table.version(), _schema_of(table, before, after)
    return lake.overwrite(path, files, schema=schema, progress={}, only_after=now, info=mark(after))


def _schema_of(table: DeltaTable, before: Relation, after: Relation) -> pa.Schema:
    """Returns the schema of a new layout. Columns that stay keep their constraints; unchanged ones keep all
    of their metadata."""
    names = {c.attnum: c.name for c in before.columns}
    old_fields, have = {f.name: f for f in table.schema().fields}, lake.arrow_schema(table)
    fields = []
    for one, new in zip(after.columns, _fields(after.columns), strict=True):
        old = old_fields.get(names.get(one.attnum, ""))
        metadata = dict(new.metadata or {})
        if old and old.name == new.name and arrow_type(one.type) == have.field(new.name).type:
            metadata |= {key: str(text) for key, text in old.metadata.items()}
        elif old and INVARIANT in old.metadata:
            metadata[INVARIANT] = str(old.metadata[INVARIANT])
        fields.append(pa.field(new.name, new.type, old is None or old.nullable, metadata))
    return pa.schema(fields)


def maintain_distributed(spark: SparkSession, path: str, small_files: int, vacuum_after: float) -> None:
    """Compacts and vacuums a table with deletion vectors by Spark, which also writes log checkpoints."""
    guards.check()
    sizes = actions(open_table(path))["size_bytes"].to_pylist()
    session = spark_io.merge_session(spark)
    if sum(size < lake.SMALL_FILE for size in sizes) >= max(small_files, 2):
        session.sql(f"OPTIMIZE delta.{quoted(path)}").collect()
    if open_table(path).metadata().configuration.get(DURATION) == lake.PROPERTIES[DURATION]:
        # Spark deletes the removed files that are in the log, and cannot read versions before their removal.
        text = f"interval {lake.hours(vacuum_after) + 24} hours"
        session.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('{DURATION}' = '{text}')")
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # The number of tasks in which VACUUM lists files; the default of 10,000 takes a minute for one folder.
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "8")
    session.sql(f"VACUUM delta.{quoted(path)} RETAIN {lake.hours(vacuum_after)} HOURS")
