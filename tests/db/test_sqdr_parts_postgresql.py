"""An SQDR key log in parts, to a PostgreSQL database: names are kept in the folder next to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from ..spark.test_sqdr_parts import apply, delete, insert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.db, pytest.mark.spark]


@pytest.mark.slow
def test_deletes_go_to_the_target_that_has_the_rows(
    spark: SparkSession, tmp_path: Path, database: str
) -> None:
    for part in ([insert("31", 1, 1, "a"), insert("31", 2, 2, "b")], [delete("31", 3, 1)]):
        apply(spark, tmp_path, part, target=database, control=f"{tmp_path}/control")
    with psycopg.connect(database) as db:
        rows = db.execute('select "ID", "V" from "SHOP"."ITEM" order by 1').fetchall()
    assert rows == [("2", "b")]
