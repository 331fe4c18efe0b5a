"""Answers to questions as Spark DataFrames."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tailrace
from tests.unit.task_home import ITEM, TaskHome, at

pytestmark = pytest.mark.spark


def test_an_answer_is_a_dataframe_with_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    home = TaskHome(tmp_path)
    home.store(
        (1, "I", {"id": 1, "name": "a", "price": Decimal("0.10")}),
        (2, "U", {"id": 1, "name": None, "price": None}),
    )
    table = tailrace.open(home.file).table(ITEM)
    net = table.net(2).spark(spark)
    assert dict(net.dtypes) | {"price": "decimal(8,2)", "_absent": "array<string>"} == dict(net.dtypes)
    assert [r["_change_type"] for r in net.collect()] == ["update_preimage", "update_postimage"]
    pairs = table.pairs().spark(spark).select("changed", "before.name", "after.id").collect()
    assert [tuple(r) for r in pairs] == [(None, None, 1), (["name", "price"], "a", 1)]
    assert (
        table.history().spark(spark).where("is_current").first()["__START_AT"]
        == table.changes(2).rows()[0]["header__change_seq"]
    )
    assert at(2).isoformat() in {r["_commit_timestamp"].isoformat() for r in table.net(2).rows()}
