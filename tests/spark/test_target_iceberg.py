"""The conformance suite on Iceberg targets: merged in one task, and by shards."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from tailrace.formats.shape import arrow_rows
from tailrace.lake.iceberg.partitions import UNPARTITIONED, PhysicalLayout
from tailrace.lake.iceberg.tables import IcebergTables
from tailrace.targets.base import Target
from tailrace.targets.iceberg.target import IcebergTarget
from tailrace.testing.images import ID, RELATION, V, W
from tailrace.testing.mapped_targets import MappedTargetConformance, locations
from tailrace.testing.target_case import TargetCase
from tailrace.testing.target_plans import KeylessConformance, PlanConformance
from tailrace.testing.targets import TargetConformance

from .literal_tables import INSERT, UPDATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def tables_in(folder: Path) -> IcebergTables:
    """An SQL catalog on SQLite in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}
    return IcebergTables("test", tuple(sorted(properties.items())), warehouse=str(folder))


def read(catalog: Catalog, name: str) -> pa.Table:
    """The rows of a table, read by pyiceberg."""
    return catalog.load_table(name).scan().to_arrow()


def by_another(catalog: Catalog, name: str, statement: str) -> None:
    """Another writer's INSERT or UPDATE of a small table, which is `{}` in it, by pyiceberg."""
    table = catalog.load_table(name)
    insert, update = INSERT.fullmatch(statement), UPDATE.fullmatch(statement)
    if update:
        rows = table.scan(row_filter=update[3]).to_arrow()
        value = pa.array([ast.literal_eval(update[2])] * rows.num_rows, rows.schema.field(update[1]).type)
        at = rows.schema.get_field_index(update[1])
        table.overwrite(rows.set_column(at, rows.schema.field(at), value), overwrite_filter=update[3])
        return
    assert insert, statement
    kinds = table.schema().as_arrow()
    names = insert[1].split(", ") if insert[1] else kinds.names
    rows = [dict(zip(names, map(str, row), strict=True)) for row in ast.literal_eval(f"[{insert[2]}]")]
    made = [pa.array([row[kind.name] for row in rows]).cast(kind.type) for kind in kinds]
    table.append(pa.Table.from_arrays(made, schema=kinds))


class _Iceberg:
    """An Iceberg target, read and written by pyiceberg."""

    limit = 1 << 30

    @pytest.fixture
    def target(self, spark: SparkSession, tmp_path: Path) -> Target:
        return IcebergTarget(
            spark,
            tables_in(tmp_path / "lake"),
            app_id="test",
            local_limit_bytes=self.limit,
            locations=self.places(),
            physical=self.physical,
        )

    def places(self) -> Any:
        return None

    def physical(self, _: str) -> PhysicalLayout:
        return UNPARTITIONED

    def catalog(self, target: Target) -> Catalog:
        assert isinstance(target, IcebergTarget)
        return target._tables.catalog

    def rows(self, spark: SparkSession, target: Target, table: str) -> DataFrame:
        return arrow_rows(spark, read(self.catalog(target), target.path(table)))

    def sql(self, spark: SparkSession, target: Target, table: str, statement: str) -> None:
        by_another(self.catalog(target), target.path(table), statement)


class TestTaskLocal(_Iceberg, TargetConformance):
    def test_layout_changes_that_readers_follow_by_field_id_write_no_file(
        self, spark: SparkSession, filled: Target
    ) -> None:
        before = files(self.catalog(filled), filled.path(RELATION.table))
        other = RELATION.with_columns(
            [
                replace(ID, type="bigint", kind="int8"),
                replace(W, type="decimal(14,2)"),
                replace(V, name="v", attnum=9),
            ]
        )
        filled.alter(RELATION.table, RELATION, other)
        assert files(self.catalog(filled), filled.path(RELATION.table)) == before
        self.same(spark, filled, *[(n, 1.5, None) for n in (1, 2, 3)], of=other)
        self.run(spark, filled, (4, "U", {"id": 1, "v": "new"}), (5, "D", {"id": 2}), of=other)
        self.same(spark, filled, (1, 1.5, "new"), (3, 1.5, None), of=other)


@pytest.mark.slow
class TestSharded(_Iceberg, PlanConformance, KeylessConformance, TargetCase):
    limit = 0

    def test_plan(self, spark: SparkSession, filled: Target) -> None:
        done = self.run(
            spark, filled, (4, "D", {"id": 1}), (5, "U", {"id": 2, "Wide_Word": 2}), (6, "D", {"id": 8})
        )
        assert (done.plan, done.inserted, done.updated, done.deleted) == ("rewrite", 0, 1, 1)
        self.same(spark, filled, (2, "b", 2), (3, "c", 1.5))


@pytest.mark.slow
class TestPartitioned(_Iceberg, TargetConformance):
    def physical(self, _: str) -> PhysicalLayout:
        return PhysicalLayout(("id",), ("id",))


class TestMapped(_Iceberg, MappedTargetConformance):
    def places(self) -> Any:
        return locations


def files(catalog: Catalog, name: str) -> set[str]:
    """The paths of a table's data files."""
    return {task.file.file_path for task in catalog.load_table(name).scan().plan_files()}
