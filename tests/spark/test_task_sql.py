"""A task's tables, and questions to them, in Spark's SQL."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tailrace
from tailrace.errors import ConfigError, UnsupportedError
from tailrace.query.spark_rows import stream_rows

from ..unit.task_home import TaskHome, with_tables

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_name_that_the_catalog_cannot_have_is_refused_where_it_stands(
    spark: SparkSession, tmp_path: Path
) -> None:
    odd = ["o.a b", "o.ü", "o.dot.name", "o b.t"]
    task = with_tables(tmp_path, {"o.other": 7, "o.t": 1, "o.T": 2, **dict.fromkeys(odd, 3)})
    try:
        assert task.sql("SELECT id FROM o.other", spark).rows() == [{"id": 7}]
        for table in ("o.`a b`", "o.`ü`", "o.`dot.name`", "`o b`.t", "spark_catalog.o.`a b`", "o.`a b__ct`"):
            with pytest.raises(
                UnsupportedError, match=r"names in Spark's catalog have ASCII letters"
            ) as caught:
                task.sql(f"SELECT id FROM {table}", spark)
            assert "run it without --spark" in str(caught.value)
        for table in ("o.t", "o.`T`", "O.t__ct"):
            with pytest.raises(ConfigError, match=r"has 2 meanings in SQL"):
                task.sql(f"SELECT id FROM {table}", spark)
        path = task.task.target_path("o.ü")
        assert task.sql(f"SELECT id FROM delta.`{path}`", spark).rows() == [{"id": 3}]
    finally:
        spark.sql("DROP SCHEMA IF EXISTS o CASCADE")


TYPES = """
    SELECT 1 AS a, CAST(2.50 AS decimal(12, 2)) AS a, 'x' AS `with.dot`, timestamp'2026-01-01 12:00:00+01:00' AS at,
    timestamp_ntz'2026-01-01 12:00:00' AS here, array(1, NULL) AS many, named_struct('a', 'b') AS one, X'00ff' AS raw,
    CAST(NULL AS int) AS nothing
"""


def test_rows_come_with_their_types_and_names(spark: SparkSession) -> None:
    found = stream_rows(spark.sql(TYPES), "types")
    assert found.schema.names == ["a", "a_1", "with.dot", "at", "here", "many", "one", "raw", "nothing"]
    (batch,) = found.batches()
    assert [c[0].as_py() for c in batch.columns] == [
        1, Decimal("2.50"), "x", dt.datetime(2026, 1, 1, 11, tzinfo=dt.timezone.utc), dt.datetime(2026, 1, 1, 12),
        [1, None], {"a": "b"}, b"\x00\xff", None,
    ]  # fmt: skip
    assert found.schema.types == spark.sql(TYPES).toArrow().schema.types


def test_rows_come_in_order_partition_by_partition_each_time_they_are_read(spark: SparkSession) -> None:
    found = stream_rows(spark.range(0, 1000, 1, 7).orderBy("id", ascending=False), "order")
    for _ in range(2):
        assert [n for b in found.batches() for n in b["id"].to_pylist()] == list(range(999, -1, -1))
    nothing = stream_rows(spark.range(0), "none").table()
    assert (nothing.num_rows, nothing.schema.field("id").type) == (0, pa.int64())


def test_a_statement_that_fails_on_a_value_says_so_without_javas_trace(spark: SparkSession) -> None:
    found = stream_rows(spark.sql("SELECT 1 / (id - 3) AS x FROM range(5)"), "the statement")
    with pytest.raises(ConfigError, match=r"cannot be run: \[DIVIDE_BY_ZERO") as caught:
        found.table()
    assert caught.value.where == "the statement"
    assert "at org.apache" not in str(caught.value)
