"""Loads rows into Iceberg targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from ...lake.failpoints import reach
from ...lake.iceberg.partitions import PhysicalLayout
from ...lake.iceberg.tables import IcebergTables
from ...lake.table import LakeTable
from ...model.change import Relation
from ...model.types import schema_of, spark_type
from ..lake.load import PartTask, write_parts
from ..lake.multi_source import exchange_partition
from ..multi_source import refuse_columns
from ..parts import Parts
from .layout import Replacement, create

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def load(
    tables: IcebergTables,
    name: str,
    app: str,
    relation: Relation,
    rows: DataFrame | Parts,
    after: int,
    physical: PhysicalLayout,
) -> int:
    """Replaces all rows of a table, in one commit with its progress, and returns the version."""
    work = Replacement.of(tables, name, relation, physical)
    files, _ = write_parts(rows, PartTask(work.files, schema_of(relation.columns)))
    reach("delta.load")
    return work.commit(tables, files, {app: max(after, 0)})


def load_partition(
    tables: IcebergTables,
    name: str,
    app: str,
    relation: Relation,
    rows: DataFrame | Parts,
    after: int,
    partition: Mapping[str, str],
    rule_columns: Mapping[str, str],
    physical: PhysicalLayout,
) -> int:
    """Replaces the rows of one source in a shared target, and returns the version; arguments and errors as in
    the same function for Delta."""
    create(tables, name, relation, physical)
    want = {c.name: c.type for c in relation.columns}

    def checked_schema(now: LakeTable) -> pa.Schema:
        have = {f.name: spark_type(f.type) for f in now.schema}
        refuse_columns(relation.table, name, have, want, rule_columns)
        return now.schema

    now = tables.open(name)
    checked_schema(now)
    files, _ = write_parts(rows, PartTask(now.files, schema_of(relation.columns)))
    return exchange_partition(tables, name, app, files, after, partition, checked_schema)
