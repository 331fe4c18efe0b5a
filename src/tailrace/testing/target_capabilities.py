"""The part of the conformance suite for targets that holds what a target declares against what it does."""

# ruff: noqa: S101 - a test suite

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..apply.keylog.key_log import KeyLog
from ..apply.rules_apply import RulesApply
from ..apply.targets.base import Target
from ..apply.targets.capabilities import Capabilities
from ..engine.rules import Rules
from ..formats.shape import few_rows
from ..lake import delta as lake
from .images import change_table, image, move
from .target_case import TargetCase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_COMPARED = [
    "change_row_counter", "action_taken", "result_row_count", "flagged_count", "result_error",
    "before_key", "after_key",
]  # fmt: skip


@dataclass(frozen=True)
class Declares:
    """A target that declares other capabilities."""

    target: Target
    capabilities: Capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


class TargetCapabilities(TargetCase):
    """What a target that declares something must do."""

    def test_outcomes_are_the_same_without_what_it_declares(
        self, spark: SparkSession, target: Target, tmp_path: Path
    ) -> None:
        """Rows and key log, by one task or by jobs side by side."""
        able = target.capabilities
        if not able.versions:
            pytest.skip("it has no key log, or needs its audits for it")
        images = [(n, "I", image(n, w)) for n, w in ((1, "a"), (2, "b"), (3, "c"))]
        odd = [
            (4, "I", image(1, "there")), (5, "U", image(9, "missing")), (6, "D", {"id": 2}),
            *move(7, 3, image(30, "moved")), *move(8, 2, image(20, "gone")), (9, "U", {"id": 30, "v": "C"}),
        ]  # fmt: skip
        cut = [
            (10, "U", image(1, "A")), (11, "T", {}), (12, "I", image(1, "again")), (13, "D", {"id": 30}),
            (14, "I", image(30, "new")), (15, "U", {"id": 1, "v": "last"}),
        ]  # fmt: skip
        found = []
        for name, declared in (("able", able), ("plain", replace(able, audits=None, shares=None))):
            to: Any = Declares(target, declared)
            relation = replace(self.relation, name=name)
            log = KeyLog(str(tmp_path / name / "log"), app_id="t", run_id="1")
            applier = RulesApply(to, Rules.of("strict"), root=str(tmp_path / name), task="t", keylog=log)
            for some, flagged, rows in (
                (images, 0, [(1, "a", 1.5), (2, "b", 1.5), (3, "c", 1.5)]),
                (odd, 3, [(1, "a", 1.5), (30, "C", 1.5)]),
                (cut, 1, [(1, "last", 1.5), (30, "new", 1.5)]),
            ):
                changes = replace(change_table(spark, relation, some), name=relation.table)
                assert applier.apply(changes).flagged == flagged
                self.same(spark, target, *rows, of=relation)
            logged = lake.read(log.path).sort_by("keylog_sort").select(_COMPARED)
            found.append([tuple(row.values()) for row in logged.to_pylist()])
        assert found[0] == found[1]

    def test_versions_are_there_when_it_declares_them(self, spark: SparkSession, filled: Target) -> None:
        if not filled.capabilities.versions:
            pytest.skip("it declares none")
        self.run(spark, filled, (4, "D", {"id": 2}), (5, "I", image(7, "g")))
        asked = few_rows(spark, {"id": "int"}, [{"id": n} for n in (2, 7)])
        for reached, there in ((3, 2), (5, 7)):
            keys = filled.keys_there(self.relation, asked, reached=reached)
            assert {r["id"] for r in keys.collect()} & {2, 7} == {there}

    def test_notes_are_kept_with_batches_when_it_declares_them(
        self, spark: SparkSession, target: Target, tmp_path: Path
    ) -> None:
        """A note stays until a later batch finds that the key log has its rows."""
        if (notes := target.capabilities.notes) is None:
            pytest.skip("it declares none")
        table = self.relation.table
        log = KeyLog(str(tmp_path / "log"), app_id="t", run_id="1")
        applier = RulesApply(target, Rules.of("strict"), root=str(tmp_path), task="t", keylog=log)
        for number in (1, 2):
            changes = change_table(spark, self.relation, [(number, "I", image(number, "A"))])
            applier.apply(replace(changes, name=table))
            assert [(name, upto) for name, upto, _ in notes.notes()] == [(table, number)]
