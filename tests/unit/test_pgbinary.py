"""COPY's binary rows, read back by a plain decoder: every type, NULLs, slices, cut batches."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import UnsupportedError, ValueRangeError
from tailrace.wire import pgbinary

pytestmark = pytest.mark.unit


def decoded(data: bytes, readers: list[Callable[[bytes], Any]]) -> list[tuple[Any, ...]]:
    """The rows of a stream, field by field."""
    rows, at = [], 0
    while at < len(data):
        (count,) = struct.unpack_from(">h", data, at)
        assert count == len(readers)
        at += 2
        row = []
        for read in readers:
            (length,) = struct.unpack_from(">i", data, at)
            at += 4
            row.append(None if length < 0 else read(data[at : at + length]))
            at += max(length, 0)
        rows.append(tuple(row))
    return rows


def number(form: str) -> Callable[[bytes], Any]:
    return lambda data: struct.unpack(form, data)[0]


def numeric(data: bytes) -> Decimal:
    count, weight, sign, scale = struct.unpack_from(">hhHH", data)
    digits = struct.unpack_from(f">{count}h", data, 8)
    assert len(data) == 8 + 2 * count and all(0 <= d < 10_000 for d in digits)
    with localcontext() as exact:
        exact.prec = 90
        value = sum((Decimal(d) * Decimal(10_000) ** (weight - i) for i, d in enumerate(digits)), Decimal(0))
        return (-value if sign == 0x4000 else value).quantize(Decimal(1).scaleb(-scale))


def sent(batch: pa.RecordBatch) -> bytes:
    return b"".join(pgbinary.rows(batch))


CASES: dict[pa.DataType, tuple[list[Any], Callable[[bytes], Any], list[Any]]] = {
    pa.bool_(): ([True, False], number(">?"), [True, False]),
    pa.int8(): ([-128, 127], number(">h"), [-128, 127]),
    pa.int16(): ([-(2**15), 7], number(">h"), [-(2**15), 7]),
    pa.int32(): ([-(2**31), 7], number(">i"), [-(2**31), 7]),
    pa.int64(): ([-(2**63), 7], number(">q"), [-(2**63), 7]),
    pa.float32(): ([1.5, -math.inf], number(">f"), [1.5, -math.inf]),
    pa.float64(): ([1e-300, math.inf], number(">d"), [1e-300, math.inf]),
    pa.string(): (["", "é\n\\N"], bytes, [b"", "é\n\\N".encode()]),
    pa.large_string(): (["", "x"], bytes, [b"", b"x"]),
    pa.binary(): ([b"", b"\0\xff"], bytes, [b"", b"\0\xff"]),
    pa.date32(): ([dt.date(2000, 1, 1), dt.date(1, 1, 1)], number(">i"), [0, -730_119]),
    pa.timestamp("us"): (
        [dt.datetime(2000, 1, 1), dt.datetime(1970, 1, 1)],
        number(">q"),
        [0, -946_684_800_000_000],
    ),
}


@pytest.mark.parametrize("kind", CASES, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_each_type_whole_and_sliced(kind: pa.DataType, nulls: bool) -> None:
    values, read, want = CASES[kind]
    none = [None] if nulls else []
    column = pa.array([values[0], *values, *none], kind)
    batch = pa.record_batch({"a": column, "b": column}).slice(1)
    expected = [(v, v) for v in [*want, *none]]
    assert decoded(sent(batch), [read, read]) == expected
    assert sent(batch.slice(0, 0)) == b""


@given(st.data())
def test_decimals(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    most = 10**precision - 1
    whole = st.one_of(st.sampled_from([0, 1, -1, most, -most]), st.integers(-most, most))
    with localcontext() as exact:
        exact.prec = 90
        values = [
            None if v is None else Decimal(v).scaleb(-scale)
            for v in data.draw(st.lists(st.none() | whole, max_size=20))
        ]
    batch = pa.record_batch({"n": pa.array(values, pa.decimal128(precision, scale))})
    assert decoded(sent(batch), [numeric]) == [(v,) for v in values]


def test_the_earliest_values_do_not_wrap_around() -> None:
    days = pa.array([-(2**31), -(2**31) + 10_957], pa.int32()).cast(pa.date32())
    times = pa.array([-(2**63), -(2**63) + 5], pa.int64()).cast(pa.timestamp("us"))
    found = decoded(sent(pa.record_batch({"d": days, "t": times})), [number(">i"), number(">q")])
    # Finite, and before all that PostgreSQL takes: it refuses them.
    assert found == [(-(2**31) + 1, -(2**63) + 1)] * 2


def test_large_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"s": [f"word {n}" for n in range(1000)], "n": list(range(1000))})
    whole = sent(batch)
    monkeypatch.setattr(pgbinary, "_MOST_BYTES", 1000)
    parts = list(pgbinary.rows(batch))
    assert len(parts) > 10 and b"".join(parts) == whole


def test_what_postgresql_cannot_hold() -> None:
    with pytest.raises(ValueRangeError, match=r"'s' has a text with the character U\+0000") as told:
        sent(pa.record_batch({"s": ["fine", "a\0b"]}))
    for there in ("`columns: {s: 'replace(s, char(0))'}`", "`tailrace apply --tables`", "(`types`)"):
        assert there in (told.value.hint or "")
    assert sent(pa.record_batch({"s": ["a\0b", "fine"]}).slice(1)).endswith(b"fine")
    with pytest.raises(UnsupportedError, match="no PostgreSQL type for list<item: list"):
        sent(pa.record_batch({"l": pa.array([[[1]]])}))
    with pytest.raises(UnsupportedError, match="struct"):
        sent(pa.record_batch({"s": pa.array([{"a": 1}])}))
