"""The conformance suite on Delta targets: merged in one task, and distributed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.apply.targets.base import Target
from tailrace.apply.targets.delta import DeltaTarget
from tailrace.testing.images import image
from tailrace.testing.targets import TargetConformance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class _Delta(TargetConformance):
    limit: int

    @pytest.fixture
    def target(self, spark: SparkSession, tmp_path: Path) -> Target:
        return DeltaTarget(spark, str(tmp_path / "targets"), app_id="test", local_limit_bytes=self.limit)

    def rows(self, spark: SparkSession, target: Target, table: str) -> DataFrame:
        assert isinstance(target, DeltaTarget)
        return spark.read.format("delta").load(target.path(table))


class TestTaskLocal(_Delta):
    limit = 1 << 30

    def test_a_batch_too_large_for_a_task_is_merged_by_spark(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        target = DeltaTarget(spark, str(tmp_path), app_id="test", merge_memory_bytes=8 << 20)
        rows = [(n, "I", image(n, "x" * 300)) for n in range(1, 30_001)]
        self.run(spark, target, *rows)
        assert self.run(spark, target, (40_000, "U", image(5, "c"))).plan == "task_local"
        done = self.run(spark, target, *[(n + 50_000, "U", image(n, w["v"] + "y")) for n, _, w in rows])
        assert (done.plan, done.inserted, done.updated) == ("merge", 0, 30_000)
        assert not target.size(self.relation.table).vectors
        assert target.progress(self.relation.table) == 80_000


class TestDistributed(_Delta):
    limit = 0

    def test_plans(self, spark: SparkSession, filled: Target) -> None:
        assert self.run(spark, filled, (4, "U", image(1, "A"))).plan == "replace_keys"
        assert self.run(spark, filled, (5, "U", {"id": 1, "Wide_Word": 2})).plan == "merge"
        assert filled.size(self.relation.table).vectors
