"""A task's tables, and questions to them, in Spark's SQL."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tailrace
from tailrace.errors import ConfigError, UnsupportedError

from ..unit.task_home import TaskHome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def home(folder: Path, name: str) -> tailrace.OpenTask:
    folder.mkdir()
    made = TaskHome(folder)
    one = {"id": 1, "name": name, "price": Decimal("1.00")}
    made.baseline([one], after=10)
    made.store((11, "U", one | {"name": f"hex {name}"}))
    return tailrace.open(made.file)


def test_tables_and_questions(spark: SparkSession, tmp_path: Path) -> None:
    task = home(tmp_path / "it's", "nut")
    said = (
        "SELECT t.name AS before, c.name AS after, header__change_oper AS oper FROM shop.item t"
        " JOIN current('shop.item') c USING (id) JOIN shop.item__ct USING (id)"
    )
    try:
        for _ in range(2):
            assert task.sql(said, spark).rows() == [{"before": "nut", "after": "hex nut", "oper": "U"}]
        with pytest.raises(ConfigError, match=r"cannot be run: \[UNRESOLVED"):
            task.sql("SELECT nothing FROM shop.item", spark)
        other = home(tmp_path / "other", "bolt")
        with pytest.raises(UnsupportedError, match=r"the Spark session has another table shop.item"):
            other.sql(said, spark)
    finally:
        spark.sql("DROP SCHEMA IF EXISTS shop CASCADE")
        spark.sql("DROP TABLE IF EXISTS tracking")
