"""Rows of a target in a folder with a blank and a letter beyond ASCII in its name, as Spark reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailrace.lake import delta as lake
from tailrace.targets.delta.spark_io import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_rows_of_a_target(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "my Größe" / "item")
    lake.append(path, pa.table({"id": [1], "name": ["nut"]}))
    assert [tuple(r) for r in rows_of(spark, path, DeltaTable(path)).collect()] == [(1, "nut")]
