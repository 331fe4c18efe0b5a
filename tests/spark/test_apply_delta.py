"""The conformance suite on Delta targets: merged in one task, and distributed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tailrace.lake import delta as lake
from tailrace.targets.base import Target
from tailrace.targets.delta import layout as delta_layout
from tailrace.targets.delta import spark_io, table_info
from tailrace.targets.delta.spark_merge import SparkMerge
from tailrace.targets.delta.target import DeltaTarget
from tailrace.targets.lake.task_local_merge import TaskLocalMerge
from tailrace.targets.multi_source import TargetLocation
from tailrace.testing.images import ID, RELATION, Image, V, W, image, merge_images
from tailrace.testing.mapped_targets import MappedTargetConformance, locations
from tailrace.testing.target_case import TargetCase
from tailrace.testing.target_plans import KeylessConformance, PlanConformance
from tailrace.testing.targets import TargetConformance

from .literal_tables import by_another, rows_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def three(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `filled` begins with: no plan writes into an empty table in a way of its own."""
    folder = tmp_path_factory.mktemp("three")
    rows: list[Image] = [(n, "I", image(n, w)) for n, w in ((1, "a"), (2, "b"), (3, "c"))]
    merge_images(spark, DeltaTarget(spark, str(folder), app_id="test"), RELATION, rows)
    return folder


@pytest.fixture(scope="module")
def markable(spark: SparkSession, three: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, where rows may be marked as gone."""
    folder = shutil.copytree(three, tmp_path_factory.mktemp("markable") / "targets")
    path = str(folder / RELATION.table)
    spark_io.enable_vectors(spark, path, lake.version(path))
    return folder


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for a target that two sources share."""
    folder = tmp_path_factory.mktemp("shared")
    kit = TestMapped()
    kit.fill(spark, DeltaTarget(spark, str(folder), app_id="test", locations=locations))
    return folder


class _Delta(TargetCase):
    limit: int
    share, rewritten = 0, 0

    @pytest.fixture
    def target(self, spark: SparkSession, tmp_path: Path) -> Target:
        return DeltaTarget(
            spark,
            str(tmp_path / "targets"),
            app_id="test",
            local_limit_bytes=self.limit,
            rewrite_share=self.share,
            rewrite_bytes=self.rewritten,
        )

    @pytest.fixture
    def filled(self, target: Target, three: Path, tmp_path: Path) -> Target:
        shutil.copytree(three, tmp_path / "targets")
        return target

    def rows(self, spark: SparkSession, target: Target, table: str) -> DataFrame:
        assert isinstance(target, DeltaTarget)
        return rows_at(spark, target.path(table))

    def marks(self, target: Target) -> bool:
        """Whether rows may be marked as gone."""
        assert isinstance(target, DeltaTarget)
        return table_info.has_vectors(DeltaTable(target.path(self.relation.table)))

    def sql(self, spark: SparkSession, target: Target, table: str, statement: str) -> None:
        assert isinstance(target, DeltaTarget)
        by_another(spark, target.path(table), statement)


class TestTaskLocal(_Delta, TargetConformance):
    limit = 1 << 30

    def test_spark_reads_what_a_task_wrote(self, spark: SparkSession, filled: Target) -> None:
        renamed = RELATION.with_columns([ID, replace(V, name="word"), W])
        filled.alter(RELATION.table, RELATION, renamed)
        self.run(spark, filled, (4, "U", {"id": 1, "word": "A"}), (5, "D", {"id": 2}), of=renamed)
        assert isinstance(filled, DeltaTarget)
        df = spark.read.format("delta").load(filled.path(RELATION.table))
        found = sorted((r["id"], r["word"], float(r["Wide_Word"])) for r in df.collect())
        assert found == [(1, "A", 1.5), (3, "c", 1.5)]

    def test_a_batch_too_large_for_a_task_is_merged_by_shards(
        self, spark: SparkSession, filled: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(TaskLocalMerge, "run", lambda _: None)
        done = self.run(spark, filled, (4, "U", image(1, "A")), (5, "D", {"id": 2}))
        assert (done.plan, done.updated, done.deleted) == ("rewrite", 1, 1)
        self.same(spark, filled, (1, "A", 1.5), (3, "c", 1.5))
        assert filled.progress(self.relation.table) == 5

    @pytest.mark.slow
    def test_what_comes_to_an_empty_table_meanwhile_is_seen(
        self, spark: SparkSession, target: Target, tmp_path: Path
    ) -> None:
        target.alter(RELATION.table, RELATION, RELATION)
        meanwhile = partial(self.run_meanwhile, spark, target, tmp_path, of=RELATION)
        done = meanwhile("INSERT INTO {} VALUES (1, 'theirs', 2), (7, 'g', 2)", (1, "I", image(1, "a")))
        assert (done.plan, done.updated) == ("task_local", 1)
        self.same(spark, target, (1, "a", 1.5), (7, "g", 2.0))
        done = meanwhile("INSERT INTO {} VALUES (8, 'theirs', 2)", (2, "T", {}), (3, "I", image(3, "c")))
        assert (done.plan, done.inserted, done.deleted) == ("replace_all", 1, 3)
        self.same(spark, target, (3, "c", 1.5))

    @pytest.mark.slow
    def test_what_comes_while_a_layout_is_changed_stays(
        self, spark: SparkSession, filled: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write, calls = delta_layout.parts, []

        def meanwhile(*given: Any) -> Any:
            done = write(*given)
            if not calls:
                self.sql(spark, filled, RELATION.table, "INSERT INTO {} VALUES (70, 'theirs', 1.5)")
            calls.append(1)
            return done

        monkeypatch.setattr(delta_layout, "parts", meanwhile)
        renamed = RELATION.with_columns([ID, replace(V, name="word"), W])
        filled.alter(RELATION.table, RELATION, renamed)
        rows = [(1, "a", 1.5), (2, "b", 1.5), (3, "c", 1.5), (70, "theirs", 1.5)]
        self.same(spark, filled, *rows, of=renamed)
        assert len(calls) == 2


class TestMapped(MappedTargetConformance):
    @pytest.fixture
    def target(self, spark: SparkSession, tmp_path: Path) -> Target:
        return DeltaTarget(spark, str(tmp_path / "targets"), app_id="test", locations=locations)

    @pytest.fixture
    def filled(self, target: Target, shared: Path, tmp_path: Path) -> Target:
        shutil.copytree(shared, tmp_path / "targets")
        return target

    def rows(self, spark: SparkSession, target: Target, table: str) -> DataFrame:
        assert isinstance(target, DeltaTarget)
        return rows_at(spark, target.path(table))

    def sql(self, spark: SparkSession, target: Target, table: str, statement: str) -> None:
        assert isinstance(target, DeltaTarget)
        by_another(spark, target.path(table), statement)


@pytest.mark.slow
class TestDistributed(_Delta, PlanConformance, KeylessConformance):
    """The whole suite is TestTaskLocal's. Of what hangs on no plan here is what deletion vectors change; how a table
    gets them is TestMarked's."""

    limit = 0

    @pytest.fixture
    def filled(self, target: Target, markable: Path, tmp_path: Path) -> Target:
        shutil.copytree(markable, tmp_path / "targets")
        return target

    test_maintenance_changes_no_row = TargetConformance.test_maintenance_changes_no_row

    def test_plans(self, spark: SparkSession, filled: Target) -> None:
        assert self.run(spark, filled, (4, "U", image(1, "A"))).plan == "merge"
        assert self.run(spark, filled, (5, "U", {"id": 1, "Wide_Word": 2})).plan == "merge"
        assert self.marks(filled)


@pytest.mark.slow
class TestRewritten(_Delta, PlanConformance):
    limit = 0
    rewritten = 1 << 30

    def test_plan(self, spark: SparkSession, filled: Target) -> None:
        done = self.run(
            spark, filled, (4, "D", {"id": 1}), (5, "U", {"id": 2, "Wide_Word": 2}), (6, "D", {"id": 8})
        )
        assert (done.plan, done.inserted, done.updated, done.deleted) == ("rewrite", 0, 1, 1)
        assert not self.marks(filled)
        self.same(spark, filled, (2, "b", 2), (3, "c", 1.5))


@pytest.mark.slow
class TestMarked(_Delta):
    """How a table gets deletion vectors."""

    limit = 0

    def test_another_writer_in_between_is_not_written_over(
        self, spark: SparkSession, filled: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(filled, DeltaTarget)
        path, merge, calls = filled.path(self.relation.table), SparkMerge.run, []

        def late(work: SparkMerge, *given: Any) -> Any:
            if not calls:
                by_another(spark, path, "INSERT INTO {} VALUES (70, 'theirs', 1.5)")
            calls.append(1)
            return merge(work, *given)

        monkeypatch.setattr(SparkMerge, "run", late)
        assert self.run(spark, filled, (4, "U", image(1, "A")), (5, "D", {"id": 2})).plan == "merge"
        self.same(spark, filled, (1, "A", 1.5), (3, "c", 1.5), (70, "theirs", 1.5))
        assert len(calls) == 2
        assert self.marks(filled)


@pytest.mark.slow
def test_tables_that_exchange_places_are_known_anew(spark: SparkSession, tmp_path: Path) -> None:
    """What Spark knows of a path is of the table that was there."""
    names: dict[str, str] = {}
    target = DeltaTarget(
        spark,
        str(tmp_path),
        app_id="test",
        local_limit_bytes=0,
        rewrite_share=0,
        rewrite_bytes=0,
        locations=lambda table: TargetLocation(names.get(table, table)),
    )

    def apply(name: str, *rows: Image) -> str:
        return merge_images(spark, target, replace(RELATION, name=name), rows).plan

    for name in "ab":
        apply(name, (1, "I", image(1, name)), (2, "I", image(2, name)))
    for old, new in (("shop.a", "tmp"), ("shop.b", "shop.a"), ("tmp", "shop.b")):
        (tmp_path / old).rename(tmp_path / new)
    names |= {"shop.a": "shop.b", "shop.b": "shop.a"}
    assert apply("a", (50, "I", image(5, "a")), (51, "D", {"id": 1})) == "merge"
    rows = rows_at(spark, f"{tmp_path}/shop.b").select("id", "v").collect()
    assert sorted((r["id"], r["v"]) for r in rows) == [(2, "a"), (5, "a")]
