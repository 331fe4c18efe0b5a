"""Folds of whole batches: from a change table to what any plan writes. What images come to is in
tests/unit/test_shards.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tailrace.engine.columns import KEPT, OP
from tailrace.targets import spark_fold as shards
from tailrace.targets.images import last_truncate, refused
from tailrace.targets.plans import UNKNOWN, FoldedChanges
from tailrace.targets.spark_fold import fold
from tailrace.testing.images import RELATION, Image, batch_of, change_table, image, move

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def fold_of(
    spark: SparkSession, *rows: Image, counts: Mapping[str, int] | None = None, after: int = -1
) -> FoldedChanges:
    batch, changes = batch_of(RELATION, rows), change_table(spark, RELATION, rows)
    batch = batch if counts is None else replace(batch, counts=counts)
    truncate = last_truncate(changes, batch.counts, after)
    there = spark.createDataFrame([(5, "theirs", None)], "id int, v string, Wide_Word decimal(12,2)")
    return fold(changes, batch, after=after, truncate=truncate, read_rows=lambda _: there)


def held(made: FoldedChanges) -> dict[Any, tuple[Any, ...]]:
    """Key -> (operation, v), and what is kept when the fold is partial."""
    found = {}
    for r in made.df.collect():
        assert r["id"] not in found
        found[r["id"]] = (r[OP], r["v"] if r[OP] == "U" else None, *([r[KEPT]] if made.partial else []))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "few"), [(None, 50_000), (UNKNOWN, 0)], ids=["counted, one shard", "unknown, several"]
)
def test_a_batch_is_one_row_a_key(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, counts: Mapping[str, int] | None, few: int
) -> None:
    """Keys that changes of keys link go together; a row that moves brings what its image lacks."""
    monkeypatch.setattr(shards, "FEW", few)
    rows = [
        (4, "D", {"id": 1}), (2, "I", image(1, "a")), (3, "U", image(1, "b")), (5, "I", image(2, "B")),
        *move(6, 5, {"id": 6, "Wide_Word": 1}), *move(7, 6, {"id": 7, "Wide_Word": 2}), (8, "U", image(6, "c")),
    ]  # fmt: skip
    found = {key: row[:2] for key, row in held(fold_of(spark, *rows, counts=counts)).items()}
    assert found == {1: ("D", None), 2: ("U", "B"), 5: ("D", None), 6: ("U", "c"), 7: ("U", "theirs")}


@pytest.mark.slow
def test_shards_are_sized_by_the_memory_that_a_task_may_take(spark: SparkSession) -> None:
    rows: list[Image] = [(n, "I", image(n, "x" * 1000)) for n in range(1, 100)]
    batch, changes = batch_of(RELATION, rows), change_table(spark, RELATION, rows)
    assert fold(changes, batch).df.rdd.getNumPartitions() == 1
    made = fold(changes, batch, memory=10_000).df
    assert made.rdd.getNumPartitions() > 5
    assert made.count() == 99


@pytest.mark.slow
def test_shards_of_joined_rows_are_sized_by_what_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Spark says that a join takes the product of its sides."""
    path = str(tmp_path / "rows")
    spark.range(20_000).write.parquet(path)
    rows = spark.read.parquet(path)
    joined = rows.join(rows.withColumnRenamed("id", "b"), F.col("id") == F.col("b"), "left")
    counts = {"I": 20_000}
    alone, both = (shards.sharded(df, ["id"], counts, links=False, memory=1 << 20) for df in (rows, joined))
    assert alone.rdd.getNumPartitions() <= both.rdd.getNumPartitions() <= 2 * alone.rdd.getNumPartitions()


def test_changes_up_to_a_number_are_passed_over(spark: SparkSession) -> None:
    assert held(fold_of(spark, (9, "D", {"id": 1}), (10, "I", image(2, "x")), after=9)) == {2: ("U", "x")}


def test_nothing_before_a_truncate_counts(spark: SparkSession) -> None:
    rows = [(3, "I", image(1, "a")), (4, "T", {}), (5, "U", {"id": 2, "Wide_Word": 1})]
    made = fold_of(spark, *rows)
    assert made.replaces and held(made) == {2: ("U", None)}
    again = fold_of(spark, *rows, (6, "I", image(3, "c")), after=4)
    assert not again.replaces and held(again) == {2: ("U", None, "010"), 3: ("U", "c", None)}


def test_other_failures_are_not_of_a_mapping() -> None:
    assert refused(ValueError("disk full"), "s.t") is None
