"""Folds: literal images in, one row a key out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.apply.fold import fold, images, refused
from tailrace.apply.plan import UNKNOWN
from tailrace.engine.columns import KEPT, OP
from tailrace.testing.images import RELATION, Image, change_table, count, image, move

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def folded(
    spark: SparkSession, *rows: Image, counts: Mapping[str, int] | None = None, after: int = -1
) -> dict[Any, tuple[Any, ...]]:
    """Key -> (operation, v), and what is kept when the fold is partial."""
    counts = count(RELATION, rows) if counts is None else counts
    made = fold(images(change_table(spark, RELATION, rows), RELATION, counts, after=after), counts)
    found = {}
    for r in made.df.collect():
        assert r["id"] not in found
        found[r["id"]] = (r[OP], r["v"], *([r[KEPT]] if made.partial else []))
    return found


@pytest.mark.parametrize("counts", [None, UNKNOWN], ids=["counted", "unknown"])
def test_the_last_image_of_a_key_wins(spark: SparkSession, counts: Mapping[str, int] | None) -> None:
    rows = [(4, "D", {"id": 1}), (2, "I", image(1, "a")), (3, "U", image(1, "b")), (5, "I", image(2, None))]
    found = folded(spark, *rows, counts=counts)
    assert {k: v[:2] for k, v in found.items() if k == 2} == {2: ("U", None)}
    assert found[1][0] == "D"


def test_changes_up_to_a_number_are_passed_over(spark: SparkSession) -> None:
    assert folded(spark, (9, "D", {"id": 1}), (10, "I", image(2, "x")), after=9) == {2: ("U", "x")}


def test_a_key_change_deletes_the_old_key(spark: SparkSession) -> None:
    found = folded(spark, *move(3, 1, image(2, "a")), *move(4, 2, image(3, "b")), (5, "I", image(1, "c")))
    assert {k: v[0] for k, v in found.items()} == {1: "U", 2: "D", 3: "U"}
    assert found[3] == ("U", "b")
    assert found[1] == ("U", "c")


def test_a_before_image_of_the_same_key_changes_nothing(spark: SparkSession) -> None:
    rows = [(3, "B", image(1, "a")), (3, "U", image(1, "b")), *move(4, 7, image(8, "x"))]
    assert folded(spark, *rows) == {1: ("U", "b"), 7: ("D", None), 8: ("U", "x")}


def test_what_the_target_keeps(spark: SparkSession) -> None:
    rows = [(3, "U", {"id": 1, "Wide_Word": 1}), (4, "U", image(2, "x")), (5, "U", {"id": 3, "v": "y"})]
    found = folded(spark, *rows)
    assert found == {1: ("U", None, "010"), 2: ("U", "x", None), 3: ("U", "y", "001")}


def test_absent_after_a_delete_is_null_not_kept(spark: SparkSession) -> None:
    assert folded(spark, (3, "D", {"id": 1}), (4, "U", {"id": 1, "Wide_Word": 1})) == {1: ("U", None, None)}


def test_nothing_before_a_truncate_counts(spark: SparkSession) -> None:
    rows = [(3, "I", image(1, "a")), (4, "T", {}), (5, "U", {"id": 2, "Wide_Word": 1})]
    assert folded(spark, *rows) == {2: ("U", None)}


def test_other_failures_are_not_null_keys() -> None:
    assert refused(ValueError("disk full"), "s.t", ["id"]) is None
