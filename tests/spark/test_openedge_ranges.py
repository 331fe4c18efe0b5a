"""Parquet files are joined by ranges of numbers; anything else by Spark; the rows are the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tailrace import formats
from tailrace.formats import file_writer
from tailrace.formats.base import FILE, ROW
from tailrace.formats.openedge.ranges import joined
from tailrace.formats.openedge.reader import locate
from tailrace.testing.changes import TABLE, change_table, comparable_rows
from tailrace.testing.histories import HISTORIES, one_after_the_other

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
FORM = formats.get("openedge")


@pytest.mark.slow
def test_both_ways_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    options = FORM.options()
    ct = change_table(spark, one_after_the_other(list(HISTORIES)))
    other = change_table(spark, HISTORIES["deletes"], name="shop.other")
    written = FORM.write({TABLE: ct, "shop.other": other}, options)
    file_writer.save(written, str(tmp_path), "parquet")
    assert FORM.load is not None
    tables = FORM.load(spark, str(tmp_path), options)
    place = locate(tables, options)  # type: ignore[arg-type]
    assert [s.name for s in place.sources] == [TABLE, "shop.other"]
    for source in place.sources:
        assert joined(tables, place.tracking, source, alone=False) is not None
        assert joined(dict(tables), place.tracking, source, alone=False) is None
    by_range, by_spark = (FORM.read(t, options).changes for t in (tables, dict(tables)))
    for name, found in by_range.items():
        assert comparable_rows(found) == comparable_rows(by_spark[name]), name
        same = [r.df.orderBy(*r.df.columns[:2]).select(FILE, ROW).collect() for r in (found, by_spark[name])]
        assert same[0] == same[1]
