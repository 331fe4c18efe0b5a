"""Tables of others under the name of a PostgreSQL target, through the target itself."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import psycopg
import pytest

from tailrace.apply.targets.postgresql.target import PostgresTarget
from tailrace.errors import ApplyError, OtherTableError
from tailrace.testing.images import RELATION, batch_of, image
from tests.spark.literal_tables import table

from .test_target_postgresql import content, target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["target"]
pytestmark = pytest.mark.db


def test_foreign_tables_are_left_alone(spark: SparkSession, database: str, target: PostgresTarget) -> None:
    with psycopg.connect(database) as db:
        db.execute("create schema shop; create table shop.item (id int)")
    with pytest.raises(ApplyError, match="did not make it"):
        target.apply(batch_of(spark, RELATION, [(1, "I", image(1, "a"))]))
    second = PostgresTarget(spark, f"{database}&schema=lake", task="test")
    second.apply(batch_of(spark, RELATION, [(1, "I", image(1, "a"))]))
    assert content(database, "lake.item") == [(1, "a", Decimal("1.50"))]
    with psycopg.connect(database) as db:  # as it was before sources could share a target
        progress = "alter table tailrace.tailrace_progress"
        db.execute(f"{progress} drop column part; {progress} add unique (target)")
    assert second.progress(RELATION.table) == 1
    second.apply(batch_of(spark, replace(RELATION, name="new"), [(1, "I", image(1, "a"))]))
    assert len(content(database, "lake.new")) == 1


def test_another_table_in_place_of_the_target_gets_no_changes(
    spark: SparkSession, database: str, target: PostgresTarget
) -> None:
    """Also where an earlier release has made the target: its number is noted with the next batch."""
    target.apply(batch_of(spark, RELATION, [(1, "I", image(1, "a"))]))
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("alter table tailrace.tailrace_progress drop column relid")
        assert target.progress(RELATION.table) == 1
        target.apply(batch_of(spark, RELATION, [(2, "I", image(2, "b"))]))
        db.execute(
            "alter table shop.item rename to was; create table shop.item (like shop.was including all)"
        )
        for call in (target.progress, target.exists, target.columns, target.demands):
            with pytest.raises(OtherTableError):
                call(RELATION.table)
        with pytest.raises(OtherTableError, match="is another table than the target"):
            target.apply(batch_of(spark, RELATION, [(3, "I", image(3, "c"))]))
        with pytest.raises(OtherTableError):
            target.alter(RELATION.table, RELATION, RELATION, dry_run=True)
        rows = table(spark, [(4, "d", Decimal(1))], "id int, v string, Wide_Word decimal(12,2)")
        with pytest.raises(OtherTableError):
            target.load(RELATION, rows, 4)
        assert content(database, "shop.item") == []
        db.execute("drop table shop.item; alter table shop.was rename to item")
    target.apply(batch_of(spark, RELATION, [(3, "I", image(3, "c"))]))
    assert [r[0] for r in content(database, "shop.item")] == [1, 2, 3]
