"""Encodes Arrow batches for `COPY ... FROM STDIN (FORMAT binary)`, whole columns at a time.

The binary format needs no escapes: NULL is not a text, and NaN and years BC are numbers. Source: PostgreSQL
manual, COPY, "Binary Format", and each type's `..._recv` function. A field is a length (four bytes, -1 for
NULL) and its bytes. A row is the number of fields (two bytes) and its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UnsupportedError, ValueRangeError
from .array_text import elements, of_elements

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The start of a stream: signature, no flags, no extension."""
TRAILER = b"\xff\xff"
"""The end of a stream."""

_NULL = -1
_MOST_BYTES = 256 << 20
"""The maximum bytes of a batch; larger ones are split, so that offsets and copies stay small."""
_EPOCH_DAYS = 10_957
_EPOCH_MICROS = _EPOCH_DAYS * 86_400_000_000
"""PostgreSQL counts from 2000-01-01."""

Values = npt.NDArray[Any]


def rows(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """Yields the batch's rows, to be sent between `HEADER` and `TRAILER`.

    Types are those of `model.types.arrow_type`, for matching columns: an int8 goes to a smallint, a
    decimal128(p,s) to a numeric(p,s).

    Raises:
        ValueRangeError: a text has the character U+0000, which PostgreSQL does not support.

    >>> b"".join(rows(pa.record_batch({"n": pa.array([7, None], pa.int16())}))).hex(" ", 2)
    '0001 0000 0002 0007 0001 ffff ffff'
    """
    if not batch.num_rows:
        return
    if batch.nbytes > _MOST_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from rows(batch.slice(0, half))
        yield from rows(batch.slice(half))
        return
    parts: list[Any] = [pa.scalar(batch.num_columns.to_bytes(2, "big"), pa.binary())]
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        parts += _fields(name, column)
    joined = pc.binary_join_element_wise(
        *parts, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=""
    )
    _, offsets, data = joined.buffers()
    places = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1]
    yield memoryview(data)[places[0] : places[-1]]


def _fields(name: str, column: pa.Array) -> list[pa.Array]:
    """Returns a column's fields, as one binary array or as two to be joined (lengths, bytes)."""
    kind = column.type
    if pa.types.is_list(kind):
        data = _array(name, column)
        lengths = pc.binary_length(data).fill_null(_NULL).to_numpy(zero_copy_only=False)
        return [_binary(lengths.astype(">i4")), data]
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind, column = pa.string(), column.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        data = column.cast(pa.binary())
        if pa.types.is_string(kind):
            _check_text(name, data)
        lengths = pc.binary_length(data).fill_null(_NULL).to_numpy(zero_copy_only=False)
        return [_binary(lengths.astype(">i4")), data]
    encode = _FIXED.get(kind.id)
    if encode is None:
        raise UnsupportedError(f"column {name!r}: no PostgreSQL type for {kind}", where="COPY")
    values = encode(column)
    if not column.null_count:
        both = np.empty(len(values), [("n", ">i4"), ("v", values.dtype)])
        both["n"], both["v"] = values.dtype.itemsize, values
        return [_binary(both)]
    there = column.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.where(there, values.dtype.itemsize, _NULL)
    return [_binary(lengths.astype(">i4")), _binary(values, there)]


def _array(name: str, column: pa.ListArray) -> pa.Array:
    """Returns one-dimensional arrays with lower bound 1: a header, then the elements as fields
    (`array_recv`)."""
    found, ends = elements(column)
    oid = _ELEMENTS.get(found.type.id)
    if oid is None:
        raise UnsupportedError(f"column {name!r}: no PostgreSQL type for {column.type}", where="COPY")
    oid = 1184 if oid == 1114 and found.type.tz else oid
    size = np.diff(ends)
    fields = [_binary(np.zeros(0, ">i4"))]
    if len(found):
        parts = _fields(name, found)
        fields = [pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")]
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    body = pc.binary_join(of_elements(fields[0], ends, valid), b"")
    nulls = found.is_null().to_numpy(zero_copy_only=False) if found.null_count else np.zeros(len(found), bool)
    before = np.concatenate([[0], np.cumsum(nulls)])
    head = np.zeros(len(column), [(n, ">i4") for n in ("dims", "nulls", "oid", "size", "first")])
    head["dims"], head["oid"], head["size"], head["first"] = 1, oid, size, 1
    head["nulls"] = before[ends[1:]] > before[ends[:-1]]
    none = np.zeros(1, [(n, ">i4") for n in ("dims", "nulls", "oid")])
    none["oid"] = oid
    made = pc.binary_join_element_wise(_binary(head), body, b"")
    return pc.if_else(
        pc.equal(pa.array(size), 0),
        pc.if_else(pa.array(valid), none.tobytes(), pa.scalar(None, pa.binary())),
        made,
    )


def _binary(values: Values, there: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Returns fixed-width values as a binary array."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(values.dtype.itemsize)
    bits = None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values).view(np.uint8))
    return pa.Array.from_buffers(pa.binary(), len(values), [bits, pa.py_buffer(offsets), data])


def _check_text(name: str, data: pa.Array) -> None:
    offsets, characters = data.buffers()[1:]
    if characters is None or not len(data):
        return
    places = np.frombuffer(offsets, np.int32)
    used = np.frombuffer(characters, np.uint8)[places[data.offset] : places[data.offset + len(data)]]
    if not used.all():
        raise ValueRangeError(
            f"column {name!r} has a text with the character U+0000, which PostgreSQL cannot hold",
            where="COPY",
            hint="remove it at the source, or with a mapping, "
            f"`columns: {{{name}: 'replace({name}, char(0))'}}`, under `tables` in the task file, or in the "
            "file of `tailrace apply --tables`; a task file can also store the column as binary (`types`)",
        )


def _numbers(column: pa.Array) -> Values:
    filled = (
        column.fill_null(False if pa.types.is_boolean(column.type) else 0) if column.null_count else column
    )
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def _plain(width: str) -> Callable[[pa.Array], Values]:
    return lambda column: _numbers(column).astype(width)


def _date(column: pa.Array) -> Values:
    return _since_2000(_numbers(column.cast(pa.int32())), _EPOCH_DAYS).astype(">i4")


def _timestamp(column: pa.Array) -> Values:
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return _since_2000(_numbers(micros), _EPOCH_MICROS).astype(">i8")


def _since_2000(values: Values, epoch: int) -> Values:
    # Without a bound, the earliest values would overflow or mean -infinity. They become the earliest finite
    # value, which the server refuses as out of range.
    least = np.iinfo(values.dtype).min + epoch + 1
    return np.asarray(np.maximum(values, values.dtype.type(least)) - values.dtype.type(epoch))


def _decimal(column: pa.Array) -> Values:
    """Returns numeric values: digits in base 10,000, as many per value as the column's precision requires."""
    precision, scale = column.type.precision, column.type.scale
    fraction = -(-scale // 4)
    pad = 4 * fraction - scale
    count = max(1, -(-(precision + pad) // 4))
    limbs, negative = _magnitudes(column)
    limbs = _times(limbs, 10**pad)
    made = np.zeros(
        len(column),
        [("count", ">i2"), ("weight", ">i2"), ("sign", ">u2"), ("scale", ">u2"), ("digits", ">i2", (count,))],
    )
    made["count"], made["weight"], made["scale"] = count, count - fraction - 1, scale
    made["sign"] = np.where(negative, 0x4000, 0)
    for place in reversed(range(count)):
        rest = np.zeros(len(column), np.uint64)
        for i in reversed(range(len(limbs))):
            dividend = rest << np.uint64(32) | limbs[i]
            limbs[i] = dividend // np.uint64(10_000)
            rest = dividend - limbs[i] * np.uint64(10_000)
        made["digits"][:, place] = rest
    return made


def _magnitudes(column: pa.Array) -> tuple[list[Values], npt.NDArray[np.bool_]]:
    """Returns the absolute values as limbs in base 2**32, lowest first, and which values are negative."""
    words = np.frombuffer(column.buffers()[1], np.uint32).reshape(-1, 4)
    words = words[column.offset : column.offset + len(column)].astype(np.uint64)
    negative = words[:, 3] >> np.uint64(31) == 1
    carry = negative.astype(np.uint64)
    limbs: list[Values] = []
    for i in range(4):
        word = np.where(negative, words[:, i] ^ np.uint64(0xFFFFFFFF), words[:, i]) + carry
        limbs.append(word & np.uint64(0xFFFFFFFF))
        carry = word >> np.uint64(32)
    return limbs, negative


def _times(limbs: list[Values], factor: int) -> list[Values]:
    """Returns the product, with one more limb for the carry."""
    carry = np.zeros(len(limbs[0]), np.uint64)
    made: list[Values] = []
    for limb in limbs:
        word = limb * np.uint64(factor) + carry
        made.append(word & np.uint64(0xFFFFFFFF))
        carry = word >> np.uint64(32)
    return [*made, carry]


_FIXED: dict[int, Callable[[pa.Array], Values]] = {
    pa.bool_().id: _plain("u1"),
    pa.int8().id: _plain(">i2"),
    pa.int16().id: _plain(">i2"),
    pa.int32().id: _plain(">i4"),
    pa.int64().id: _plain(">i8"),
    pa.float32().id: _plain(">f4"),
    pa.float64().id: _plain(">f8"),
    pa.date32().id: _date,
    pa.timestamp("us").id: _timestamp,
    pa.decimal128(1).id: _decimal,
}
"""Encoders to PostgreSQL's binary form, by Arrow type."""

_ELEMENTS: dict[int, int] = {
    pa.bool_().id: 16,
    pa.binary().id: 17,
    pa.int64().id: 20,
    pa.int8().id: 21,
    pa.int16().id: 21,
    pa.int32().id: 23,
    pa.string().id: 25,
    pa.float32().id: 700,
    pa.float64().id: 701,
    pa.date32().id: 1082,
    pa.timestamp("us").id: 1114,
    pa.decimal128(1).id: 1700,
}
"""PostgreSQL's type oids (pg_type.dat) of array elements, by Arrow type."""
