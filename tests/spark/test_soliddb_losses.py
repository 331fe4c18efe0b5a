"""Empty values in solidDB's DATA: lost where the row layout has them as NULL, and only there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tailrace import formats
from tailrace.model.change import ChangeTable
from tailrace.testing.changes import TABLE, Image, change_table

from .soliddb_rows import ITEM, OPTIONS, Log, item, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
FORMAT = formats.get("soliddb")


def lost(ct: ChangeTable, options: Any) -> dict[str, int]:
    """How many rows lose something, by gap."""
    gaps = FORMAT.gaps(ct, options)
    counts = [F.count_if(g.lost(ct)).alias(g.kind) for g in gaps]
    found = ct.df.agg(*counts).first()
    assert found is not None
    return {kind: n for kind, n in found.asDict().items() if n and kind.startswith("empty")}


CASES: list[tuple[dict[str, str], dict[str, int]]] = [
    ({}, {"empty_binary": 1}),
    ({"row_layout": "B"}, {}),
    ({"trailing_nul": "false"}, {"empty_binary": 1, "empty_text": 2}),
    ({"row_layout": "B", "trailing_nul": "false"}, {}),
]
VALUES = [(b"", ""), (None, None), (b"\0", ""), (b"x", "y")]


def of_values(spark: SparkSession) -> ChangeTable:
    images = [Image(n, "I", {"id": n, "b": b, "s": s}) for n, (b, s) in enumerate(VALUES, 1)]
    return change_table(spark, images, columns={"id": "int", "b": "binary", "s": "string"}, key=["id"])


def test_empty_values_are_counted_where_they_become_null(spark: SparkSession) -> None:
    ct = of_values(spark)
    assert [lost(ct, formats.options(FORMAT, given)) for given, _ in CASES] == [want for _, want in CASES]


@pytest.mark.slow
@pytest.mark.parametrize(("given", "want"), [CASES[0], *CASES[2:]])
def test_what_is_written_and_read_is_what_the_gaps_leave(
    spark: SparkSession, given: dict[str, str], want: dict[str, int]
) -> None:
    ct, options = of_values(spark), formats.options(FORMAT, given)
    left = ct
    for gap in FORMAT.gaps(ct, options):
        left = gap.erase(left)
    back = FORMAT.read(FORMAT.write({TABLE: ct}, options), options).changes[TABLE]
    same = [[tuple(r) for r in one.df.select("id", "b", "s").orderBy("id").collect()] for one in (left, back)]
    assert same[0] == same[1]
    kept = [(b if b or not want else None, s if s or "empty_text" not in want else None) for b, s in VALUES]
    assert [(b if b is None else bytes(b), s) for _, b, s in same[1]] == kept


@pytest.mark.slow
def test_rows_whose_bytes_are_kept_lose_nothing(spark: SparkSession) -> None:
    """Of text with a 0x00 behind it, read where none is written."""
    log = Log()
    log.transaction((1, item(1, "", "1"), ITEM), (1, item(2, "a", "1"), ITEM))
    options = formats.options(FORMAT, {**OPTIONS, "trailing_nul": "false"})
    found = FORMAT.read(tables(spark, log), options).changes
    assert lost(found["SHOP.ITEM"], options) == {}
    again = FORMAT.write(found, options)["SYS_LOG"].filter("RECID = 1").select("DATA").collect()
    assert sorted(bytes(r[0]) for r in again) == [item(1, "", "1"), item(2, "a", "1")]
