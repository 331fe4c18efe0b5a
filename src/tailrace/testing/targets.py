"""The conformance suite for targets: subclass it, define how to create and read yours, and run pytest.

    class TestMine(TargetConformance):
        @pytest.fixture
        def target(self, spark, tmp_path): return MyTarget(...)
        def rows(self, spark, target, table): return spark.read....load(...)
        def sql(self, spark, target, table, statement): spark.sql(statement.format(...))

`spark` is your fixture: a session with Delta Lake. `tailrace.testing.images` builds change tables from
literal images.
"""

# ruff: noqa: S101 - a test suite

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ..errors import ApplyError, BaselineNeededError
from ..formats.shape import few_rows
from ..lake.thinning import Past
from ..model.change import Column
from ..targets.base import Target
from .images import ID, KEYLESS, Image, V, W, batch_of, change_rows, image, merge_images
from .target_capabilities import TargetCapabilities
from .target_plans import KeylessConformance, PlanConformance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TargetConformance(PlanConformance, KeylessConformance, TargetCapabilities):
    """The tests that every target must pass. Subclasses define the fixture `target` and the methods `rows`
    and `sql`."""

    def test_rows_that_are_there(self, spark: SparkSession, filled: Target) -> None:
        asked = few_rows(spark, {"id": "int"}, [{"id": n} for n in (2, 7, 3)])
        rows = filled.rows_with_keys(self.relation, asked).collect()
        assert {(2, "b"), (3, "c")} <= {(r["id"], r["v"]) for r in rows} and 7 not in {r["id"] for r in rows}

    def test_truncate(self, spark: SparkSession, filled: Target) -> None:
        done = self.run(
            spark,
            filled,
            (4, "I", image(4, "d")),
            (5, "T", {}),
            (6, "I", image(6, "f")),
            (7, "U", image(6, "F")),
        )
        self.same(spark, filled, (6, "F", 1.5))
        assert done.plan == "replace_all"
        self.run(spark, filled, (8, "T", {}))
        self.same(spark, filled)
        assert filled.progress(self.relation.table) == 8

    def test_empty_batch_moves_progress(self, spark: SparkSession, filled: Target) -> None:
        merge_images(spark, filled, self.relation, [], 8)
        self.run(spark, filled, (9, "D", {"id": 77}))
        self.same(spark, filled, (1, "a", 1.5), (2, "b", 1.5), (3, "c", 1.5))
        assert filled.progress(self.relation.table) == 9

    def test_one_that_had_a_baseline_is_not_made_anew(self, spark: SparkSession, target: Target) -> None:
        images: list[Image] = [(1, "I", image(1, "a"))]
        rows, path = change_rows(self.relation, images), target.path(self.relation.table)
        batch = replace(batch_of(self.relation, images), rows=rows, columns=rows.schema, target=path)
        (refused,) = target.merge([batch])
        assert isinstance(refused, BaselineNeededError)
        assert not target.exists(self.relation.table)

    def test_column_added_renamed_widened_dropped(self, spark: SparkSession, filled: Target) -> None:
        n = Column("n", 4, "integer", "int4", "int", missing="7")
        added = self.relation.with_columns([*self.relation.columns, replace(V, name="w", attnum=5), n])
        other = self.relation.with_columns(
            [
                replace(ID, type="bigint", kind="int8"),
                replace(V, name="word"),
                replace(n, type="string", kind="text"),
            ]
        )
        for _ in range(2):
            filled.alter(self.relation.table, self.relation, added)
            self.same(
                spark, filled, *[(k, v, 1.5, None, 7) for k, v in ((1, "a"), (2, "b"), (3, "c"))], of=added
            )
        for _ in range(2):
            filled.alter(self.relation.table, added, other)
            self.same(spark, filled, (1, "a", "7"), (2, "b", "7"), (3, "c", "7"), of=other)
        assert filled.progress(self.relation.table) == 3
        self.run(spark, filled, (4, "U", {"id": 1, "word": "A", "n": "x"}), (5, "D", {"id": 2}), of=other)
        self.same(spark, filled, (1, "A", "x"), (3, "c", "7"), of=other)

    def test_retype_is_refused(self, spark: SparkSession, filled: Target) -> None:
        after = self.relation.with_columns(
            [ID, replace(V, type="int", kind="int4", source_type="integer"), W]
        )
        for dry_run in (True, False):
            with pytest.raises(ApplyError, match="new baseline"):
                filled.alter(self.relation.table, self.relation, after, dry_run=dry_run)

    def test_a_dry_run_of_a_layout_changes_nothing(self, spark: SparkSession, filled: Target) -> None:
        """The dry run changes no table, but returns rows in the new layout."""
        new = self.relation.with_columns([*self.relation.columns, replace(V, name="w", attnum=5)])
        filled.alter(self.relation.table, self.relation, new, dry_run=True)
        filled.alter("shop.other", replace(new, name="other"), replace(new, name="other"), dry_run=True)
        assert not filled.exists("shop.other")
        assert list(filled.columns(self.relation.table)) == [c.name for c in self.relation.columns]
        keys = few_rows(spark, {"id": "int"}, [{"id": 1}])
        found = filled.rows_with_keys(new, keys).where("id = 1").collect()
        assert [(r["v"], r["w"]) for r in found] == [("a", None)]

    def test_keyless_appends(self, spark: SparkSession, target: Target) -> None:
        rows = [
            (1, "I", {"id": 1, "v": "a"}),
            (2, "I", {"id": 1, "v": "a"}),
            (3, "I", {"id": None, "v": None}),
        ]
        for _ in range(2):
            self.run(spark, target, *rows, of=KEYLESS)
        self.same(spark, target, (1, "a"), (1, "a"), (None, None), of=KEYLESS)

    def test_maintenance_changes_no_row(self, spark: SparkSession, filled: Target) -> None:
        self.run(spark, filled, (4, "U", image(1, "A")), (5, "D", {"id": 2}))
        filled.maintain(self.relation.table, 2, Past(3600.0))
        assert filled.progress(self.relation.table) == 5
        self.run(spark, filled, (6, "I", image(6, "f")))
        self.same(spark, filled, (1, "A", 1.5), (3, "c", 1.5), (6, "f", 1.5))
