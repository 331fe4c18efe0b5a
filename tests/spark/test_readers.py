"""What docs/readers.md says of tables with deletion vectors, and of plain Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ..readers import READERS

pytestmark = pytest.mark.spark

ROWS = [{"id": 1, "v": "a"}, {"id": 3, "v": "c"}]


@pytest.mark.slow
def test_deletion_vectors(tmp_path: Path, spark: SparkSession) -> None:
    """A reader that does not know them refuses the table; none gives rows that are gone."""
    path = str(tmp_path / "t")
    df = spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], "id int, v string").coalesce(1)
    df.write.format("delta").option("delta.enableDeletionVectors", "true").save(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")
    assert [r.asDict() for r in spark.read.format("delta").load(path).orderBy("id").collect()] == ROWS
    found = {}
    for name, read in READERS.items():
        try:
            found[name] = sorted(read(path), key=lambda r: r["id"]) == ROWS
        except Exception:  # noqa: BLE001 - each refuses in its own words
            found[name] = None  # type: ignore[assignment]
    assert found == {
        "deltalake, Arrow": None,
        "deltalake, pandas": None,
        "polars": True,
        "DuckDB over Arrow": None,
        "DuckDB, delta_scan": True,
    }
