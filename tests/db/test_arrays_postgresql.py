"""Array columns in PostgreSQL targets: typed arrays, as Delta has them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from ..spark.test_arrays import ROWS, applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.db, pytest.mark.spark]
KINDS = (
    "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = %s::regclass and attnum > 0"
)


@pytest.mark.slow
def test_applied(spark: SparkSession, tmp_path: Path, database: str) -> None:
    applied(spark, tmp_path, database, control=str(tmp_path / "control"))
    with psycopg.connect(database) as db:
        assert db.execute("select * from shop.item order by id").fetchall() == ROWS
        found = [kind for (kind,) in db.execute(KINDS, ("shop.item",)).fetchall()]
        assert found == ["integer", "text[]", "integer[]", "numeric(5,2)[]", "integer"]
