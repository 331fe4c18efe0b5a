"""Arrays: their texts, PostgreSQL's text and bytes of them, their hashes; literal values and any values."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine.keys import Keys
from tailrace.model.types import arrow_type, is_lake_type, spark_type
from tailrace.targets.postgresql.values import without_unsupported
from tailrace.wire import array_text, keylog_render, pgbinary, pgvalues, row_hashes
from tailrace.wire.keylog_text import parse
from tailrace.wire.keylog_values import KeyLogField
from tailrace.wire.pgvalues import convert

pytestmark = pytest.mark.unit

TEXTS = st.lists(
    st.none() | st.lists(st.none() | st.text('a;~?\\n ,"{}é', max_size=4), max_size=4), max_size=6
)
KINDS = {
    "string": ["a", "", None, "?", "x;y"], "int": [1, None, -7], "decimal(5,2)": [Decimal("1.50"), None],
    "boolean": [True, False, None], "date": [date(2026, 1, 2), None], "binary": [b"\0;~", None, b""],
    "double": [1.5, None],
}  # fmt: skip


@given(TEXTS)
def test_texts_there_and_back(arrays):
    values = pa.array(arrays, pa.list_(pa.string()))
    assert array_text.split(array_text.join(values)).to_pylist() == arrays
    assert array_text.split(array_text.join(values)[1:]).to_pylist() == arrays[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_key_log_text_there_and_back(kind):
    field = KeyLogField("c", f"array<{kind}>")
    values = pa.array([KINDS[kind], [], None, KINDS[kind][:1]], arrow_type(field.type))
    text = keylog_render.items([keylog_render.Item(field, values)])
    found = parse(text, [field])
    assert found.values[0].to_pylist() == values.to_pylist()
    assert found.values[0].type == values.type
    assert found.why.null_count == 4


def test_an_array_with_a_bad_element_is_bad():
    found = parse(pa.array(['c="1;x;3"', 'c="1;2"', 'c=&xsi:nil="true"']), [KeyLogField("c", "array<int>")])
    assert found.values[0].to_pylist() == [None, [1, 2], None]
    assert found.why.to_pylist() == ["c is not valid as array<int>", None, None]


def _as_server(array: list[str | None]) -> str:
    """What `array_out` writes."""
    quoted = ["NULL" if e is None else '"' + e.replace("\\", "\\\\").replace('"', '\\"') + '"' for e in array]
    return "{" + ",".join(quoted) + "}"


@given(TEXTS)
def test_what_postgresql_writes(arrays):
    texts = pa.array([None if a is None else _as_server(a) for a in arrays], pa.string())
    assert pgvalues.split_arrays(texts).to_pylist() == arrays


def test_what_postgresql_has_and_the_lake_has_not():
    values, bad = convert(
        "array<int>", "array", pa.array(["{1,NULL}", "{{1}}", "[0:1]={1,2}", "{x}", "{}", None])
    )
    assert values.to_pylist() == [[1, None], None, None, None, [], None]
    assert bad.to_pylist() == [False, True, True, True, False, False]
    assert convert("array<string>", "array", pa.array(['{a,NULL,"NULL",""}']))[0].to_pylist() == [
        ["a", None, "NULL", ""]
    ]


def test_bytes_that_postgresql_takes():
    rows = pa.record_batch({"a": pa.array([[1, None], [], None], arrow_type("array<int>"))})
    one = "0001 00000020 00000001 00000001 00000017 00000002 00000001 00000004 00000001 ffffffff"
    none, null = "0001 0000000c 00000000 00000000 00000017", "0001 ffffffff"
    assert b"".join(pgbinary.rows(rows)).hex() == f"{one}{none}{null}".replace(" ", "")


def test_hashes_tell_arrays_apart():
    arrays = [[1, 2], [2, 1], [1], [], None, [None], [1, None], [None, 1], [1, 2]]
    found = row_hashes.hashes([pa.array(arrays, arrow_type("array<bigint>"))]).tolist()
    assert found[0] == found[-1]
    assert len(set(found)) == len(arrays) - 1
    sliced = row_hashes.hashes([pa.array(arrays, arrow_type("array<bigint>"))[3:]]).tolist()
    assert sliced == found[3:]


def test_types():
    assert spark_type(pa.large_list(pa.int32())) == "array<int>"
    assert [is_lake_type(t) for t in ("array<decimal(5,1)>", "array<array<int>>", "array<interval day>")] == [
        True,
        False,
        False,
    ]
    assert row_hashes.kind_of(arrow_type("array<int>"), arrow_type("array<bigint>")) == arrow_type(
        "array<bigint>"
    )


def test_rows_known_by_all_of_their_values():
    keys = Keys([pa.array([["a"], ["b"], ["a"], None]), pa.array([1, 1, 1, 1])])
    assert keys.place.tolist() == [0, 1, 0, 2]


def test_what_no_database_holds_in_an_array():
    rows = pa.table({"t": pa.array([["a"], None, ["x\0"], []])})
    assert without_unsupported(rows)["t"].to_pylist() == [["a"], None, None, []]
