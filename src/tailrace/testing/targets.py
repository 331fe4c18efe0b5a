"""The conformance suite for targets: subclass it, say how to make and read yours, run pytest.

    class TestMine(TargetConformance):
        @pytest.fixture
        def target(self, spark, tmp_path): return MyTarget(...)
        def rows(self, spark, target, table): return spark.read....load(...)
        def sql(self, spark, target, table, statement): spark.sql(statement.format(...))

`spark` is a fixture of yours: a session with Delta in it. `tailrace.testing.images` makes change
tables of literal images.
"""

# ruff: noqa: S101 - a test suite

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..apply.plan import TableBatch
from ..apply.targets.base import Target
from ..errors import ApplyError, BaselineNeededError
from ..model import sequence
from ..model.change import Column
from .images import ID, KEYLESS, Image, V, W, batch_of, change_table, count, image, move
from .target_capabilities import TargetCapabilities

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TargetConformance(TargetCapabilities):
    """What every target must do. Subclasses give the fixture `target` and the methods `rows` and `sql`."""

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

    def test_keys_that_are_there(self, spark: SparkSession, filled: Target) -> None:
        asked = spark.createDataFrame([(2,), (7,), (3,)], "id int")
        found = {r["id"] for r in filled.keys_there(self.relation, asked).collect()}
        assert found >= {2, 3} and 7 not in found
        rows = filled.rows_there(self.relation, asked).collect()
        assert {(2, "b"), (3, "c")} <= {(r["id"], r["v"]) for r in rows} and 7 not in {r["id"] for r in rows}

    def test_no_deletes(self, spark: SparkSession, filled: Target) -> None:
        done = self.run(spark, filled, (4, "I", image(4, None)), (5, "U", image(1, "A")))
        self.same(spark, filled, (1, "A", 1.5), (2, "b", 1.5), (3, "c", 1.5), (4, None, 1.5))
        assert (done.inserted, done.updated, done.deleted) == (1, 1, 0)

    def test_replay_and_overlap(self, spark: SparkSession, filled: Target) -> None:
        first = [(4, "U", image(1, "A")), (5, "D", {"id": 2})]
        self.run(spark, filled, *first)
        again = self.run(spark, filled, *first)
        assert again.plan == "none"
        # Rows at or below the reached number are skipped, even rows that would now do harm.
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

    def test_null_keys_are_refused(self, spark: SparkSession, filled: Target) -> None:
        with pytest.raises(ApplyError, match="NULL in the row key") as caught:
            self.run(spark, filled, (4, "U", image(1, "A")), (5, "I", image(None, "x")))
        assert sequence.make(2026010100000000, 5) in str(caught.value)
        assert self.relation.table in str(caught.value)
        self.same(spark, filled, (1, "a", 1.5), (2, "b", 1.5), (3, "c", 1.5))

    def test_empty_batch_moves_progress(self, spark: SparkSession, filled: Target) -> None:
        changes = change_table(spark, self.relation, [])
        filled.apply(TableBatch(self.relation.table, self.relation, changes, 8, count(self.relation, [])))
        self.run(spark, filled, (9, "D", {"id": 77}))
        self.same(spark, filled, (1, "a", 1.5), (2, "b", 1.5), (3, "c", 1.5))
        assert filled.progress(self.relation.table) == 9

    def test_one_that_had_a_baseline_is_not_made_anew(self, spark: SparkSession, target: Target) -> None:
        batch = batch_of(spark, self.relation, [(1, "I", image(1, "a"))])
        with pytest.raises(BaselineNeededError):
            target.apply(replace(batch, based=True))
        assert not target.exists(self.relation.table)

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
        """Whatever the before image says: it only counts if there is no row."""

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
        """Between the lookup in the target and the batch's own commit."""
        of = self.relation
        meanwhile = partial(self.run_meanwhile, spark, filled, tmp_path, of=of)
        meanwhile("INSERT INTO {} VALUES (70, 'theirs', 1.5)", (4, "U", image(1, "A")))
        meanwhile("UPDATE {} SET v = 'theirs' WHERE id = 3", *move(5, 3, {"id": 33, "Wide_Word": 5}))
        meanwhile("INSERT INTO {} VALUES (71, 'theirs', 1.5)", (6, "D", {"id": 2}))
        self.same(spark, filled, (1, "A", 1.5), (33, "theirs", 5.0), (70, "theirs", 1.5), (71, "theirs", 1.5))
        assert filled.progress(of.table) == 6

    def test_what_somebody_else_adds_to_a_bag_meanwhile_stays(
        self, spark: SparkSession, target: Target, tmp_path: Path
    ) -> None:
        one = {"id": 1, "v": "a"}
        self.run(spark, target, (1, "I", one), (2, "I", one), of=KEYLESS)
        theirs = "INSERT INTO {} VALUES (1, 'a'), (7, 'theirs')"
        self.run_meanwhile(spark, target, tmp_path, theirs, (3, "D", one), of=KEYLESS)
        self.same(spark, target, (1, "a"), (1, "a"), (7, "theirs"), of=KEYLESS)

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
        """Rows are there in the new layout, though."""
        new = self.relation.with_columns([*self.relation.columns, replace(V, name="w", attnum=5)])
        filled.alter(self.relation.table, self.relation, new, dry_run=True)
        filled.alter("shop.other", replace(new, name="other"), replace(new, name="other"), dry_run=True)
        assert not filled.exists("shop.other")
        assert list(filled.columns(self.relation.table)) == [c.name for c in self.relation.columns]
        keys = spark.createDataFrame([(1,)], "id int")
        found = filled.rows_there(new, keys).where("id = 1").collect()
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
        """The table lacks rows that changes take away; the same rows come after that, and stay."""
        one, gone = {"id": 1, "v": "a"}, {"id": 5, "v": "gone"}
        none: dict[str, object] = {"id": None, "v": None}
        self.run(spark, target, (1, "I", one), of=KEYLESS)
        more = [(2, "D", gone), (3, "I", gone), (4, "D", one), (5, "D", one), (6, "B", one), (6, "U", one)]
        assert self.run(spark, target, *more, of=KEYLESS).missing == 3
        self.same(spark, target, (1, "a"), (5, "gone"), of=KEYLESS)
        more = [(7, "I", one), (8, "T", {}), (9, "D", none), (10, "I", none), (11, "D", one), (12, "I", gone)]
        self.run(spark, target, *more, of=KEYLESS)
        self.same(spark, target, (5, "gone"), (None, None), of=KEYLESS)

    def test_maintenance_changes_no_row(self, spark: SparkSession, filled: Target) -> None:
        self.run(spark, filled, (4, "U", image(1, "A")), (5, "D", {"id": 2}))
        filled.maintain(self.relation.table, 2, 3600.0)
        assert filled.progress(self.relation.table) == 5
        self.run(spark, filled, (6, "I", image(6, "f")))
        self.same(spark, filled, (1, "A", 1.5), (3, "c", 1.5), (6, "f", 1.5))
