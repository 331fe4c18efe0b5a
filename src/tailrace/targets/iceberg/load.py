"""Loads rows into Iceberg targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...lake.failpoints import reach
from ...lake.iceberg.partitions import PhysicalLayout
from ...lake.iceberg.tables import IcebergTables
from ...model.change import Relation
from ...model.types import schema_of
from ..lake.load import PartTask, write_parts
from ..lake.multi_source import column_check, exchange_partition
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
    checked_schema = column_check(name, relation, rule_columns)
    now = tables.open(name)
    checked_schema(now)
    files, _ = write_parts(rows, PartTask(now.files, schema_of(relation.columns)))
    return exchange_partition(tables, name, app, files, after, partition, checked_schema)
