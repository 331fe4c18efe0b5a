"""COPY's CSV -> columns: NULL against the empty string, values with anything in them, ragged input."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.errors import FormatError
from tailrace.model.change import Column
from tailrace.model.types import schema_of
from tailrace.wire.pgcopy import batch, tables

pytestmark = pytest.mark.unit

Row = list[str | None]


def encode(rows: list[Row]) -> bytes:
    """As PostgreSQL writes it: quotes only where needed, and `\\.` quoted when it is alone."""

    def field(value: str | None) -> str:
        if value is None:
            return ""
        if value in ("", "\\.") or any(c in value for c in ',"\n\r'):
            return '"' + value.replace('"', '""') + '"'
        return value

    return "".join(",".join(map(field, row)) + "\n" for row in rows).encode()


VALUES = st.none() | st.text("a,\"\n\r\\. é漢\ufeff'", max_size=6)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(VALUES, min_size=n, max_size=n), max_size=8)))
@example([[None]])
@example([[None], [""], [None], ["\\."], [None]])
@example([["\ufeffbom", None]])
@example([["\r\n", "\n\n"], ["", None]])
def test_columns_give_back_what_was_copied(rows: list[Row]) -> None:
    ncolumns = len(rows[0]) if rows else 2
    got = tables(encode(rows), ncolumns)
    assert [column.type for column in got] == [pa.string()] * ncolumns
    assert [list(row) for row in zip(*(column.to_pylist() for column in got), strict=True)] == rows


def test_rows_without_columns_are_refused() -> None:
    for data, rows in ((b"\n\n", 2), (b"\n\n", None), (b"", 2)):
        with pytest.raises(FormatError, match="rows without columns: a batch cannot count them"):
            batch([], data, rows=rows)
    assert batch([], b"", rows=0)[0].num_rows == 0


def test_null_is_not_the_empty_string() -> None:
    first, second = tables(b'1,""\n2,\n', 2)
    assert (first.to_pylist(), second.to_pylist()) == (["1", "2"], ["", None])


def test_blank_lines_are_nulls_of_a_one_column_table() -> None:
    assert tables(b'\n""\n\nx\n\n', 1)[0].to_pylist() == [None, "", None, "x", None]


def test_words_that_csv_readers_like_to_take_for_null_are_text() -> None:
    assert tables(b"NULL,NaN\nn/a,\\N\n", 2)[1].to_pylist() == ["NaN", "\\N"]


def test_a_value_longer_than_a_usual_block() -> None:
    long = "y" * 3_000_000 + "\n"
    assert tables(encode([["1", long], ["2", long]]), 2)[1].to_pylist() == [long, long]


def test_no_rows_and_no_columns() -> None:
    assert [column.to_pylist() for column in tables(b"", 2)] == [[], []]
    assert tables(b"\n\n", 0) == []


def test_any_buffer_is_read() -> None:
    for data in (bytearray(b"1\n"), memoryview(b"1\n"), pa.py_buffer(b"1\n")):
        assert tables(data, 1)[0].to_pylist() == ["1"]


@pytest.mark.parametrize("data", [b"1,2,3\n", b"1\n", b"1,2\n3\n", b"1,\xff\n"])
def test_ragged_rows_and_wrong_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="2 columns"):
        tables(data, 2)


COLUMNS = (
    Column("id", 1, "integer", "int4", "int", key=True),
    Column("price", 2, "numeric(8,2)", "numeric", "decimal(8,2)"),
    Column("at", 3, "timestamp with time zone", "timestamptz", "timestamp"),
    Column("name", 4, "text", "text", "string"),
)


def test_a_typed_batch() -> None:
    rows, bad = batch(COLUMNS, b'1,1.50,2024-01-02 03:04:05+00,""\n2,NaN,,"a\nb"\n')
    assert rows.schema == schema_of(COLUMNS)
    at = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)
    assert rows.to_pylist() == [
        {"id": 1, "price": Decimal("1.50"), "at": at, "name": ""},
        {"id": 2, "price": None, "at": None, "name": "a\nb"},
    ]
    assert {name: mask.to_pylist() for name, mask in bad.items()} == {"price": [False, True]}


def test_an_empty_batch_has_the_schema() -> None:
    rows, bad = batch(COLUMNS, b"")
    assert (rows.schema, rows.num_rows, bad) == (schema_of(COLUMNS), 0, {})


def test_infinity_in_a_key_is_a_bad_value() -> None:
    moments = [
        Column(n, i, "timestamp", "timestamp", "timestamp_ntz", key=n == "k") for i, n in enumerate("kv")
    ]
    rows, bad = batch(moments, b"infinity,infinity\n2026-01-01 00:00:00,-infinity\n")
    assert {name: mask.to_pylist() for name, mask in bad.items()} == {"k": [True, False]}
    assert [str(v) for v in rows["k"].to_pylist()] == ["None", "2026-01-01 00:00:00"]
    assert [str(v) for v in rows["v"].to_pylist()] == ["9999-12-31 23:59:59.999999", "0001-01-01 00:00:00"]
