"""The part of the conformance suite for targets that must pass with each plan by which a target merges a
batch."""

# ruff: noqa: S101 - a test suite

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..errors import ApplyError
from ..model import sequence
from ..targets.base import Target
from .images import KEYLESS, Image, image, move
from .target_case import TargetCase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PlanConformance(TargetCase):
    """The results of a batch by any plan.

    Run it once for each plan of your target, and `TargetConformance` for one of them.
    """

    def test_insert_update_delete(self, spark: SparkSession, filled: Target) -> None:
        done = self.run(
            spark,
            filled,
            (4, "I", image(4, "d")),
            (5, "U", image(1, "A")),
            (6, "U", image(1, "AA")),
            (7, "D", {"id": 2}),
        )
        self.same(spark, filled, (1, "AA", 1.5), (3, "c", 1.5), (4, "d", 1.5))
        assert (done.inserted, done.updated, done.deleted) == (1, 1, 1)
        assert filled.progress(self.relation.table) == 7

    def test_no_deletes(self, spark: SparkSession, filled: Target) -> None:
        done = self.run(spark, filled, (4, "I", image(4, None)), (5, "U", image(1, "A")))
        self.same(spark, filled, (1, "A", 1.5), (2, "b", 1.5), (3, "c", 1.5), (4, None, 1.5))
        assert (done.inserted, done.updated, done.deleted) == (1, 1, 0)

    def test_replay_and_overlap(self, spark: SparkSession, filled: Target) -> None:
        first = [(4, "U", image(1, "A")), (5, "D", {"id": 2})]
        self.run(spark, filled, *first)
        again = self.run(spark, filled, *first)
        assert again.plan == "none"
        # Rows up to the target's progress are skipped, even if they would change rows now.
        self.run(spark, filled, (3, "D", {"id": 3}), *first, (6, "U", image(3, "C")))
        self.same(spark, filled, (1, "A", 1.5), (3, "C", 1.5))
        assert filled.progress(self.relation.table) == 6

    def test_same_rows_twice_and_out_of_order(self, spark: SparkSession, filled: Target) -> None:
        rows = [
            (9, "U", image(1, "last")),
            (4, "D", {"id": 1}),
            (5, "I", image(1, "first")),
            (6, "D", {"id": 2}),
        ]
        self.run(spark, filled, *rows, *rows)
        self.same(spark, filled, (1, "last", 1.5), (3, "c", 1.5))

    def test_conflicts_are_upserts(self, spark: SparkSession, filled: Target) -> None:
        self.run(spark, filled, (4, "I", image(1, "A")), (5, "U", image(7, "g")), (6, "D", {"id": 99}))
        self.same(spark, filled, (1, "A", 1.5), (2, "b", 1.5), (3, "c", 1.5), (7, "g", 1.5))

    def test_key_change_chain_and_swap(self, spark: SparkSession, filled: Target) -> None:
        self.run(
            spark,
            filled,
            *move(4, 3, image(9, "c")),
            *move(5, 9, image(3, "cc")),
            *move(6, 3, image(30, "cc")),
        )
        self.same(spark, filled, (1, "a", 1.5), (2, "b", 1.5), (30, "cc", 1.5))
        self.run(
            spark, filled, *move(7, 1, image(0, "a")), *move(8, 2, image(1, "b")), *move(9, 0, image(2, "a"))
        )
        self.same(spark, filled, (2, "a", 1.5), (1, "b", 1.5), (30, "cc", 1.5))

    def test_delete_then_insert(self, spark: SparkSession, filled: Target) -> None:
        self.run(
            spark,
            filled,
            (4, "D", {"id": 1}),
            (5, "I", image(1, "new")),
            (6, "I", image(8, "x")),
            (7, "D", {"id": 8}),
        )
        self.same(spark, filled, (1, "new", 1.5), (2, "b", 1.5), (3, "c", 1.5))

    def test_null_keys_are_refused(self, spark: SparkSession, filled: Target) -> None:
        with pytest.raises(ApplyError, match="NULL in the row key") as caught:
            self.run(spark, filled, (4, "U", image(1, "A")), (5, "I", image(None, "x")))
        assert sequence.make(2026010100000000, 5) in str(caught.value)
        assert self.relation.table in str(caught.value)
        self.same(spark, filled, (1, "a", 1.5), (2, "b", 1.5), (3, "c", 1.5))

    def test_absent_columns(self, spark: SparkSession, filled: Target) -> None:
        rows = [
            (4, "U", {"id": 1, "Wide_Word": 2}),  # v from the target
            (5, "U", {"id": 2, "v": "B"}),
            (6, "U", {"id": 2, "Wide_Word": 3}),  # v from the image before
            (7, "D", {"id": 3}),
            (8, "I", image(3, None)),
            (9, "U", {"id": 3, "Wide_Word": 4}),  # v is NULL since the insert
        ]
        self.run(spark, filled, *rows)
        self.same(spark, filled, (1, "a", 2.0), (2, "B", 3.0), (3, None, 4.0))

    def test_absent_columns_follow_key_changes(self, spark: SparkSession, filled: Target) -> None:
        rows = [
            *move(4, 1, {"id": 10, "Wide_Word": 2}),  # v of 1, in the target
            *move(5, 10, {"id": 11, "Wide_Word": 3}),
            *move(6, 2, {"id": 1, "Wide_Word": 4}),  # v of 2 under the key that 1 had
            (7, "U", {"id": 3, "v": "C"}),
            *move(8, 3, {"id": 33, "Wide_Word": 5}),  # v of the image before
            (9, "U", {"id": 33, "Wide_Word": 6}),
        ]
        self.run(spark, filled, *rows)
        self.same(spark, filled, (11, "a", 3.0), (1, "b", 4.0), (33, "C", 6.0))

    def test_what_an_image_lacks_is_the_rows_that_it_meets(self, spark: SparkSession, filled: Target) -> None:
        """Absent columns come from the target's row; the before image counts only if there is no row."""

        def known(number: int, old: int, new: Mapping[str, Any]) -> list[Image]:
            return [(number, "B", {"id": old, "v": "before", "Wide_Word": 9}), (number, "U", new)]

        rows = [
            *known(4, 1, {"id": 10, "Wide_Word": 2}),  # v of 1
            *known(5, 10, {"id": 11}),
            *known(6, 2, {"id": 1}),
            *known(7, 1, {"id": 2}),  # and back again
            *known(8, 7, {"id": 70, "Wide_Word": 3}),  # there is no 7
            *known(9, 8, {"id": 8, "Wide_Word": 4}),  # nor an 8
            (10, "U", {"id": 70, "Wide_Word": 5}),
            (11, "D", {"id": 3}),
            *known(12, 3, {"id": 30, "Wide_Word": 6}),  # there is no 3 any more
            *known(13, 70, {"id": 8}),  # over a row
        ]
        self.run(spark, filled, *rows)
        self.same(spark, filled, (11, "a", 2.0), (2, "b", 1.5), (8, "before", 5.0), (30, "before", 6.0))

    def test_what_somebody_else_commits_meanwhile_is_seen(
        self, spark: SparkSession, filled: Target, tmp_path: Path
    ) -> None:
        """Another writer commits between the lookup in the target and the batch's own commit."""
        of = self.relation
        meanwhile = partial(self.run_meanwhile, spark, filled, tmp_path, of=of)
        meanwhile("INSERT INTO {} VALUES (70, 'theirs', 1.5)", (4, "U", image(1, "A")))
        meanwhile("UPDATE {} SET v = 'theirs' WHERE id = 3", *move(5, 3, {"id": 33, "Wide_Word": 5}))
        meanwhile("INSERT INTO {} VALUES (71, 'theirs', 1.5)", (6, "D", {"id": 2}))
        self.same(spark, filled, (1, "A", 1.5), (33, "theirs", 5.0), (70, "theirs", 1.5), (71, "theirs", 1.5))
        assert filled.progress(of.table) == 6


class KeylessConformance(TargetCase):
    """The results of a batch of a keyless table, by any plan."""

    def test_what_somebody_else_adds_to_a_bag_meanwhile_stays(
        self, spark: SparkSession, target: Target, tmp_path: Path
    ) -> None:
        one = {"id": 1, "v": "a"}
        self.run(spark, target, (1, "I", one), (2, "I", one), of=KEYLESS)
        theirs = "INSERT INTO {} VALUES (1, 'a'), (7, 'theirs')"
        self.run_meanwhile(spark, target, tmp_path, theirs, (3, "D", one), of=KEYLESS)
        self.same(spark, target, (1, "a"), (1, "a"), (7, "theirs"), of=KEYLESS)

    def test_keyless_bags(self, spark: SparkSession, target: Target) -> None:
        one, none = {"id": 1, "v": "a"}, {"id": None, "v": None}
        rows = [(1, "I", one), (2, "I", one), (3, "I", one), (4, "I", none), (5, "I", none)]
        self.run(spark, target, *rows, of=KEYLESS)
        more = [
            (6, "D", one),
            (7, "B", none),
            (7, "U", {"id": None, "v": "x"}),
            (8, "D", {"id": 5, "v": "gone"}),
        ]
        for again in range(2):
            done = self.run(spark, target, *more, of=KEYLESS)
            if not again:
                assert (done.inserted, done.deleted, done.missing) == (1, 2, 1)
            self.same(spark, target, (1, "a"), (1, "a"), (None, None), (None, "x"), of=KEYLESS)
        self.run(spark, target, (9, "T", {}), (10, "I", one), (11, "I", one), (12, "D", one), of=KEYLESS)
        self.same(spark, target, (1, "a"), of=KEYLESS)

    def test_a_copy_that_is_not_there_cannot_be_taken(self, spark: SparkSession, target: Target) -> None:
        """Rows that the table does not have are deleted; the same rows are inserted later, and stay."""
        one, gone = {"id": 1, "v": "a"}, {"id": 5, "v": "gone"}
        none: dict[str, object] = {"id": None, "v": None}
        self.run(spark, target, (1, "I", one), of=KEYLESS)
        more = [(2, "D", gone), (3, "I", gone), (4, "D", one), (5, "D", one), (6, "B", one), (6, "U", one)]
        assert self.run(spark, target, *more, of=KEYLESS).missing == 3
        self.same(spark, target, (1, "a"), (5, "gone"), of=KEYLESS)
        more = [(7, "I", one), (8, "T", {}), (9, "D", none), (10, "I", none), (11, "D", one), (12, "I", gone)]
        self.run(spark, target, *more, of=KEYLESS)
        self.same(spark, target, (5, "gone"), (None, None), of=KEYLESS)
