"""Columns that OpenEdge has no type for."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tailrace import formats
from tailrace.errors import UnsupportedError
from tailrace.model.change import ChangeTable

pytestmark = pytest.mark.spark


def test_a_struct_is_refused(spark: SparkSession) -> None:
    row = "repeat('1', 35) header__change_seq, 'I' header__change_oper, 1 id, named_struct('a', 1) odd"
    changes = ChangeTable(spark.sql(f"select {row}"), ["id"], ["id", "odd"], name="s.t")
    form = formats.get("openedge")
    with pytest.raises(UnsupportedError, match="OpenEdge has no type for struct<a:int>") as told:
        form.write({"s.t": changes}, form.options())
    assert "s.t, column odd" in str(told.value)
