"""One Spark session for all tests: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tailrace.spark import session

    made = session("tests", master="local[2]", conf={"spark.driver.memory": "2g"})
    yield made
    made.stop()
