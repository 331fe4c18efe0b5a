"""The part of the conformance suite for targets that compares a target's declaration with its behaviour."""

# ruff: noqa: S101 - a test suite

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..apply.rules import RulesApplier
from ..apply.vendor.applier import VendorApplier
from ..engine.rules import Rules
from ..keylog.key_log import KeyLog
from ..lake import delta as lake
from ..targets.base import Target
from .images import change_table, image, move
from .target_case import TargetCase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_COMPARED = ["change_row_counter", "action_taken", "result_row_count", "flagged_count"]
_LOGGED = [
    (1, "I", 1, 0), (2, "I", 1, 0), (3, "I", 1, 0), (4, "I", 0, 1), (5, "M", 0, 2), (6, "D", 1, 2),
    (7, "M", 1, 2), (8, "M", 0, 3), (9, "M", 1, 3), (10, "M", 1, 3), (11, "T", None, 3), (12, "I", 1, 3),
    (13, "D", 0, 4), (14, "I", 1, 4), (15, "M", 1, 4),
]  # fmt: skip


class TargetCapabilities(TargetCase):
    """Tests of the capabilities that a target declares."""

    def test_outcomes_are_those_of_the_changes_one_by_one(
        self, spark: SparkSession, target: Target, tmp_path: Path
    ) -> None:
        """Rows, and key log if it can have one."""
        able = target.capabilities
        if able.notes is None and not able.versions:
            pytest.skip("it has no key log")
        images = [(n, "I", image(n, w)) for n, w in ((1, "a"), (2, "b"), (3, "c"))]
        odd = [
            (4, "I", image(1, "there")), (5, "U", image(9, "missing")), (6, "D", {"id": 2}),
            *move(7, 3, image(30, "moved")), *move(8, 2, image(20, "gone")), (9, "U", {"id": 30, "v": "C"}),
        ]  # fmt: skip
        cut = [
            (10, "U", image(1, "A")), (11, "T", {}), (12, "I", image(1, "again")), (13, "D", {"id": 30}),
            (14, "I", image(30, "new")), (15, "U", {"id": 1, "v": "last"}),
        ]  # fmt: skip
        log = KeyLog(str(tmp_path / "log"), app_id="t", run_id="1")
        under = RulesApplier(target, Rules.of("strict"), root=str(tmp_path), task="t", keylog=log)
        applier = VendorApplier(under, str(tmp_path))
        for some, flagged, rows in (
            (images, 0, [(1, "a", 1.5), (2, "b", 1.5), (3, "c", 1.5)]),
            (odd, 3, [(1, "a", 1.5), (30, "C", 1.5)]),
            (cut, 1, [(1, "last", 1.5), (30, "new", 1.5)]),
        ):
            changes = replace(change_table(spark, self.relation, some), name=self.relation.table)
            assert applier.apply(changes).flagged == flagged
            self.same(spark, target, *rows)
        logged = lake.read(log.path).sort_by("keylog_sort").select(_COMPARED)
        assert [tuple(row.values()) for row in logged.to_pylist()] == _LOGGED

    def test_notes_are_kept_with_batches_when_it_declares_them(
        self, spark: SparkSession, target: Target, tmp_path: Path
    ) -> None:
        """A note stays until a later batch finds that the key log has its rows."""
        if (notes := target.capabilities.notes) is None:
            pytest.skip("it declares none")
        table = self.relation.table
        log = KeyLog(str(tmp_path / "log"), app_id="t", run_id="1")
        under = RulesApplier(target, Rules.of("strict"), root=str(tmp_path), task="t", keylog=log)
        applier = VendorApplier(under, str(tmp_path))
        for number in (1, 2):
            changes = change_table(spark, self.relation, [(number, "I", image(number, "A"))])
            applier.apply(replace(changes, name=table))
            assert [(name, upto) for name, upto, _ in notes.notes()] == [(table, number)]
