"""Spark's functions over Arrow; that rules made of them mean the same is tested in `tests/spark/test_soliddb_ranges.py`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailrace.formats import arrow_functions as f
from tailrace.formats.arrow_functions import ArrowColumn, ArrowRows

pytestmark = pytest.mark.unit
BATCH = pa.record_batch({
    "n": pa.array([1, 2, None, 4], pa.int32()),
    "t": pa.array(["a", None, "c", "d"]),
    "b": pa.array([b"\x01\x02", b"", None, b"\xff"], pa.binary()),
    "yes": pa.array([True, False, None, True]),
})  # fmt: skip


def values(column: ArrowColumn) -> list[Any]:
    found: list[Any] = ArrowRows(BATCH).array(column).to_pylist()
    return found


N, T, B, YES = map(f.col, BATCH.schema.names)


@pytest.mark.parametrize(
    ("column", "want"),
    [
        (N == 2, [False, True, None, False]),
        (N != 2, [True, False, None, True]),
        (N > 1, [False, True, None, True]),
        (f.lit(b"\x80") > B, [True, True, None, False]),
        (f.lit(b"\x01") <= B, [True, False, None, True]),
        (YES & (N > 1), [False, False, None, True]),
        (YES | (N > 1), [True, True, None, True]),
        (~YES, [False, True, None, False]),
        (N.isNull() | f.lit(False), [False, False, True, False]),
        (N.isNotNull(), [True, True, False, True]),
        (N.isin(1, 4), [True, False, None, True]),
        (N.isin(), [False, False, None, False]),
        (N.bitwiseAND(6), [0, 2, None, 4]),
        (f.coalesce(N, f.lit(0)), [1, 2, 0, 4]),
        (f.when(YES, N).when(N == 2, 7), [1, 7, None, 4]),
        (f.when(YES, "yes").otherwise(T), ["yes", None, "c", "yes"]),
        (f.nullif(T, f.lit("a")), [None, None, "c", "d"]),
        (f.concat("t", f.lit("="), N), ["a=1", None, None, "d=4"]),
        (f.concat_ws("; ", T, f.when(YES, "yes"), f.when(N == 2, "two")), ["a; yes", "two", "c", "d; yes"]),
        (f.octet_length("b"), [2, 0, None, 1]),
        (f.substring("b", 2, 5), [b"\x02", b"", None, b""]),
        (f.substring("b", -1, 1), [b"\x02", b"", None, b"\xff"]),
        (f.element_at(f.create_map(f.lit(1), f.lit("one"), f.lit(4), f.lit("four")), N), ["one", None, None, "four"]),
        (f.replace(T, f.lit("a"), f.lit("b")), ["b", None, "c", "d"]),
        (f.regexp_replace(T, "c$", ""), ["a", None, "", "d"]),
        (f.lit(None).cast("int"), [None] * 4),
    ],
)  # fmt: skip
def test_values(column: ArrowColumn, want: list[Any]) -> None:
    assert values(column) == want


def test_what_few_rows_need_is_worked_out_for_them_alone() -> None:
    seen: list[int] = []

    def counted(rows: ArrowRows) -> pa.Array:
        seen.append(rows.many)
        return rows.named("n")

    many = pa.record_batch({"n": pa.array(range(100), pa.int32())})
    found = ArrowRows(many).array(f.when(f.col("n") > 97, ArrowColumn(counted)).otherwise(-1))
    assert found.to_pylist() == [-1] * 98 + [98, 99]
    assert seen == [2]


def test_rows() -> None:
    rows = ArrowRows(BATCH).filter(N > 1).withColumns({"t": f.lit("x"), "more": N == 4}).drop("b", "yes")
    assert rows.batch.to_pylist() == [{"n": 2, "t": "x", "more": False}, {"n": 4, "t": "x", "more": True}]
    assert rows.filter(f.lit(True)).batch is rows.batch
