"""Iceberg targets: one table of a catalog per source table, with the progress in its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...lake.iceberg.maintenance import maintain, sweep
from ...lake.iceberg.partitions import UNPARTITIONED, PhysicalLayout
from ...lake.iceberg.tables import IcebergTables
from ...lake.thinning import Past
from ...model.change import Relation
from ..base import Constraints
from ..lake.layout import refuse_layout
from ..lake.target import LakeTarget
from ..multi_source import TargetLocation
from ..parts import Parts
from ..plans import Limits
from ..spark_rows import spark_rows
from . import layout
from .load import load, load_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class IcebergTarget(LakeTarget[IcebergTables]):
    """Applies changes to the tables of an Iceberg catalog; see `Target` for its promises. Rows are never
    marked as deleted: files are replaced, which every reader supports.

    Args:
        spark: the session of the batches' DataFrames; `merge` does not need one.
        tables: the tables of the catalog.
        app_id: the application id of the progress in the snapshots.
        local_limit_bytes, merge_memory_bytes, locations: see `DeltaTarget`.
        physical: returns the partitions and the order of a table that is created.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: IcebergTables,
        *,
        app_id: str,
        local_limit_bytes: int = Limits.local_bytes,
        merge_memory_bytes: int | None = 1 << 30,
        locations: Callable[[str], TargetLocation] | None = None,
        physical: Callable[[str], PhysicalLayout] = lambda _: UNPARTITIONED,
    ) -> None:
        self._physical = physical
        super().__init__(
            spark, tables, app_id=app_id, limits=Limits(local_limit_bytes), memory_bytes=merge_memory_bytes,
            locations=locations,
        )  # fmt: skip

    def rule_columns(self, table: str) -> set[str]:
        """Returns the columns that rules have added; empty if other sources may have added them."""
        if self.location(table).partition:
            return set()
        return self._tables.open(self.path(table)).rule_columns

    def _rows(self, path: str) -> DataFrame:
        return spark_rows(self._spark, self._tables.open(path))

    def constraints(self, table: str) -> Constraints:
        """Returns the constraints of the table: its required columns; empty if it does not exist."""
        if not self.exists(table):
            return Constraints()
        fields = self._tables.open(self.path(table)).iceberg_schema.fields
        return Constraints(frozenset(one.name for one in fields if one.required))

    def load(
        self, relation: Relation, rows: DataFrame | Parts, after: int, rule_columns: Mapping[str, str] = {}
    ) -> int:
        """Replaces the rows of a table."""
        name, app = self.path(relation.table), self.app(relation.table)
        physical = self._physical(relation.table)
        with self._locks[name]:
            if partition := self.location(relation.table).partition:
                return load_partition(
                    self._tables, name, app, relation, rows, after, partition, rule_columns, physical
                )
            return load(self._tables, name, app, relation, rows, after, physical)

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        """Changes the layout; creates the table if it does not exist."""
        name, shared = self.path(table), bool(self.location(table).partition)
        with self._locks[name]:
            if self.exists(table):
                refuse_layout(self._tables.open(name), before, after, shared=shared)
            if not dry_run:
                physical = self._physical(table)
                layout.alter(self._spark, self._tables, name, before, after, physical, shared=shared)

    def maintain(self, table: str, small_files: int, past: Past) -> None:
        """Joins small files, expires snapshots, and deletes files that no snapshot has."""
        name = self.path(table)
        if not self._tables.exists(name):
            return
        with self._locks[name]:
            maintain(self._tables, name, small_files, past)

    def sweep(self, table: str) -> None:
        """Deletes files that no snapshot has, once they are three days old."""
        if self.exists(table):
            sweep(self._tables.open(self.path(table)))

    def loads_parts(self, table: str) -> bool:
        """Whether the table is loaded without the JVM: always."""
        return True
