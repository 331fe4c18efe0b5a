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
        target = DeltaTarget(spark, str(tmp_path), app_id="test", merge_memory_bytes=1 << 20)
        self.run(spark, target, (1, "I", image(-1, "a")), (2, "I", image(5, "b")))
        assert self.run(spark, target, (3, "U", image(5, "c"))).plan == "task_local"
        done = self.run(spark, target, *[(n, "I", image(n, "x" * 99)) for n in range(4, 30_000)])
        assert (done.plan, done.inserted, done.updated) == ("merge", 29_995, 1)
        assert not target.size(self.relation.table).vectors
        assert target.progress(self.relation.table) == 29_999


class TestDistributed(_Delta):
    limit = 0

    def test_plans(self, spark: SparkSession, filled: Target) -> None:
        assert self.run(spark, filled, (4, "U", image(1, "A"))).plan == "replace_keys"
        assert self.run(spark, filled, (5, "U", {"id": 1, "Wide_Word": 2})).plan == "merge"
        assert filled.size(self.relation.table).vectors
