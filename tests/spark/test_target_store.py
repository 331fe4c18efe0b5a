"""A Delta target in an object store keeps every promise of a target."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tailrace.lake import storage
from tailrace.runtime import hadoop_storage
from tailrace.targets.base import Target
from tailrace.targets.delta.target import DeltaTarget
from tailrace.testing.targets import TargetConformance

from ..object_store import KEYS, object_store
from .literal_tables import by_another, rows_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def bucket(spark: SparkSession) -> Iterator[str]:
    """A bucket that this process and Spark know; Spark may know those of other test processes, too."""
    with object_store(f"lake-{uuid.uuid4().hex[:8]}") as store:
        address = f"s3://{store.bucket}"
        storage.register(address, storage.s3_options(endpoint=store.endpoint, **KEYS))
        hadoop_storage.tell(spark)
        yield address
        del storage._registered[address]


class TestInStore(TargetConformance):
    @pytest.fixture
    def target(self, spark: SparkSession, bucket: str) -> Target:
        folder = f"{bucket}/{uuid.uuid4().hex}"
        return DeltaTarget(spark, folder, app_id="test", local_limit_bytes=1 << 30)

    def rows(self, spark: SparkSession, target: Target, table: str) -> DataFrame:
        return rows_at(spark, target.path(table))

    def sql(self, spark: SparkSession, target: Target, table: str, statement: str) -> None:
        by_another(spark, target.path(table), statement)
