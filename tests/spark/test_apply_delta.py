"""The conformance suite on Delta targets: merged in one task, and distributed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace.apply.targets.base import Target
from tailrace.apply.targets.delta import DeltaTarget
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


class TestDistributed(_Delta):
    limit = 0
