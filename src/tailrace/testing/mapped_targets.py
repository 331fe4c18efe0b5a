"""The conformance suite for targets of mapped tables: several sources in one target, and loads.

As for `TargetConformance`, subclass it, create a target with `locations`, define how to read it, and run
pytest.

    class TestMine(MappedTargetConformance):
        @pytest.fixture
        def target(self, spark, tmp_path): return MyTarget(..., locations=locations)
        def rows(self, spark, target, table): return spark.read....load(...)
        def sql(self, spark, target, table, statement): spark.sql(statement.format(...))
"""

# ruff: noqa: S101 - a test suite

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ..errors import ApplyError, BaselineNeededError
from ..formats.shape import few_rows
from ..model.change import Column, Relation
from ..model.types import schema_of
from ..targets.base import Target
from ..targets.multi_source import TargetLocation
from ..targets.parts import Parts
from .concurrent_step import Wait
from .images import ID, RELATION, Image, V, merge_images
from .target_case import TargetHooks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SITE = Column("site", 1 << 20, "@SCHEMA", "constant", "string", key=True)
EU = Relation(1, "eu", "item", "f", (SITE, ID, V))
US = Relation(2, "us", "item", "f", (replace(V, attnum=7), SITE, replace(ID, attnum=8)))
MARK = Column("gone", 99, "string", "string", "string")
"""A column that rules add."""


def locations(table: str) -> TargetLocation:
    """Returns a table's target: `all.item` for `eu.item` and `us.item`, a separate one for other tables.

    >>> locations("us.item"), locations("shop.item").target
    (TargetLocation(target='all.item', partition={'site': 'us'}), 'shop.item')
    """
    schema = table.partition(".")[0]
    return TargetLocation("all.item", {"site": schema}) if schema in ("eu", "us") else TargetLocation(table)


class MappedTargetConformance(TargetHooks):
    """The tests that every target must pass for mapped tables.

    Subclasses define the fixture `target`, whose tables are at `locations`, and the methods `rows` and `sql`;
    both take the name of a source table.
    """

    def run(self, spark: SparkSession, target: Target, of: Relation, *rows: Image) -> str:
        """Applies one batch of images with the source's constant, and returns the plan."""
        images = [(n, oper, _placed(of, values) if values else values) for n, oper, values in rows]
        return merge_images(spark, target, of, images).plan

    def same(
        self, spark: SparkSession, target: Target, *want: Sequence[Any], more: Sequence[str] = ()
    ) -> None:
        """Asserts that the shared target has exactly these rows: site, id, v, and `more` columns."""
        df = self.rows(spark, target, "eu.item")
        names = ["site", "id", "v", *more]
        assert sorted(df.columns) == sorted(names)
        have = sorted((tuple(r[n] for n in names) for r in df.collect()), key=repr)
        assert have == sorted(want, key=repr)

    def fill(self, spark: SparkSession, target: Target) -> None:
        """Writes the rows of `filled`."""
        self.run(spark, target, EU, (1, "I", {"id": 1, "v": "a"}), (2, "I", {"id": 2, "v": "b"}))
        assert (target.exists("eu.item"), target.progress("us.item")) == (True, None)
        self.run(spark, target, US, (5, "I", {"id": 1, "v": "x"}), (6, "I", {"id": 3, "v": "y"}))

    @pytest.fixture
    def filled(self, spark: SparkSession, target: Target) -> Target:
        """Returns a target with the rows eu 1 a, eu 2 b (change number 2) and us 1 x, us 3 y (6)."""
        self.fill(spark, target)
        return target

    def test_sources_of_one_target_have_rows_and_progress_of_their_own(
        self, spark: SparkSession, filled: Target
    ) -> None:
        assert [filled.progress(t) for t in ("eu.item", "us.item")] == [2, 6]
        assert self.run(spark, filled, US, (6, "D", {"id": 1})) == "none"
        # Columns missing from an image come from its own source's row, even if another source has the same
        # key.
        moved: list[Image] = [(3, "B", {"id": 1}), (3, "U", {"id": 9}), (4, "D", {"id": 3})]
        self.run(spark, filled, EU, *moved)
        self.same(spark, filled, ("eu", 9, "a"), ("eu", 2, "b"), ("us", 1, "x"), ("us", 3, "y"))
        asked = few_rows(spark, {"site": "string", "id": "int"}, [{"site": "eu", "id": n} for n in (2, 3)])
        found = {tuple(r) for r in filled.rows_with_keys(EU, asked).select("site", "id").collect()}
        assert ("eu", 2) in found and ("eu", 3) not in found

        cut: list[Image] = [(7, "I", {"id": 5, "v": "no"}), (8, "T", {}), (9, "I", {"id": 3, "v": "again"})]
        self.run(spark, filled, US, *cut)
        assert self.run(spark, filled, US, *cut) == "none"
        self.same(spark, filled, ("eu", 9, "a"), ("eu", 2, "b"), ("us", 3, "again"))
        assert [filled.progress(t) for t in ("eu.item", "us.item")] == [4, 9]

    def test_a_load_replaces_a_sources_own_rows(self, spark: SparkSession, filled: Target) -> None:
        loaded = _loaded(spark, (1, "A"), (7, "g"))
        filled.load(EU, loaded, 4)
        self.same(spark, filled, ("eu", 1, "A"), ("eu", 7, "g"), ("us", 1, "x"), ("us", 3, "y"))
        self.run(spark, filled, EU, (4, "D", {"id": 1}), (5, "U", {"id": 7, "v": "G"}))
        assert [filled.progress(t) for t in ("eu.item", "us.item")] == [5, 6]

        with pytest.raises(BaselineNeededError, match="has the columns"):
            filled.load(EU.with_columns([SITE, ID]), loaded.drop("v"), 6)
        with pytest.raises(ApplyError, match="v would be removed from"):
            filled.alter("eu.item", EU, EU.with_columns([SITE, ID]))
        for one in (EU, US):  # a column that rules add, and a wider type, for each source separately
            filled.alter(one.table, one, _wider(one).with_columns([*_wider(one).columns, MARK]))
        rows = [("eu", 1, "A", None), ("eu", 7, "G", None), ("us", 1, "x", None), ("us", 3, "y", None)]
        self.same(spark, filled, *rows, more=["gone"])
        loaded = loaded.selectExpr("v", "site", "cast(id as bigint) id")
        filled.load(_wider(EU), loaded, 3, {"gone": "string"})
        self.same(spark, filled, rows[0], ("eu", 7, "g", None), *rows[2:], more=["gone"])
        assert [filled.progress(t) for t in ("eu.item", "us.item")] == [3, 6]

    def test_a_column_that_one_source_made_wider_keeps_its_values(
        self, spark: SparkSession, filled: Target
    ) -> None:
        """The other source still has the narrow type."""
        filled.alter("eu.item", EU, _wider(EU))
        far = 5_000_000_000
        self.run(spark, filled, _wider(EU), (3, "I", {"id": far, "v": "far"}))
        self.run(spark, filled, US, (7, "U", {"id": 1, "v": "X"}), (8, "I", {"id": 2, "v": "z"}))
        self.run(spark, filled, _wider(EU), (4, "U", {"id": far, "v": "FAR"}), (5, "D", {"id": 2}))
        self.same(
            spark, filled, ("eu", 1, "a"), ("eu", far, "FAR"), ("us", 1, "X"), ("us", 2, "z"), ("us", 3, "y")
        )

    def test_what_another_source_commits_meanwhile_stays(
        self, spark: SparkSession, filled: Target, tmp_path: Path
    ) -> None:
        """The other source commits while the rows of one are loaded."""
        wait = Wait(str(tmp_path / "us"))
        loaded = _loaded(spark, (7, "g"))
        with ThreadPoolExecutor(1) as pool:
            statement = "INSERT INTO {} (site, id, v) VALUES ('us', 9, 'z')"
            other = pool.submit(wait.between, lambda: self.sql(spark, filled, "us.item", statement))
            filled.load(EU, loaded.mapInArrow(wait, loaded.schema), 4)
            other.result()
        self.same(spark, filled, ("eu", 7, "g"), ("us", 1, "x"), ("us", 3, "y"), ("us", 9, "z"))

    def test_a_load_makes_a_target_of_its_own_anew(self, spark: SparkSession, target: Target) -> None:
        first = _loaded(spark, (1, "a"), (2, "b")).drop("site")
        target.load(RELATION.with_columns([ID, V]), first, 7)
        target.load(RELATION.with_columns([ID]), first.select("id").where("id > 1"), 3)
        assert [tuple(r) for r in self.rows(spark, target, RELATION.table).collect()] == [(2,)]
        assert (target.columns(RELATION.table), target.progress(RELATION.table)) == ({"id": "int"}, 3)

    def test_a_load_of_parts_is_one_of_their_rows(self, spark: SparkSession, target: Target) -> None:
        """A table is loaded in parts without Spark."""
        relation = RELATION.with_columns([ID, V])
        if not target.loads_parts(relation.table):
            pytest.skip("it loads no parts")
        rows: dict[str, list[tuple[int, str | None]]] = {
            "one": [(1, "a"), (2, None)],
            "two": [],
            "three": [(3, "c")],
        }
        schema = schema_of(relation.columns)

        def read(name: str) -> list[pa.RecordBatch]:
            found = [{"id": key, "v": v} for key, v in rows[name]]
            return [pa.RecordBatch.from_pylist(found, schema)]

        for names, after in (("three",), 3), (tuple(rows), 7):
            target.load(relation, Parts(names, read), after)
        found = [tuple(r) for r in self.rows(spark, target, relation.table).select("id", "v").collect()]
        assert sorted(found) == [(1, "a"), (2, None), (3, "c")]
        assert target.progress(relation.table) == 7


def _loaded(spark: SparkSession, *rows: tuple[int, str]) -> DataFrame:
    """Returns rows of `EU`."""
    kinds = {"site": "string", "id": "int", "v": "string"}
    return few_rows(spark, kinds, [dict(zip(kinds, ("eu", *row), strict=True)) for row in rows])


def _wider(one: Relation) -> Relation:
    return one.with_columns([replace(c, type="bigint") if c.name == "id" else c for c in one.columns])


def _placed(of: Relation, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"site": of.schema, **values}
