"""A 64-bit hash of each row, whole columns at a time; rows are equal if their hashes are.

Equality of values is defined here, for this process and for Spark's tasks. NULL equals only NULL, NaN equals
NaN, and both zeros of a float are equal. Integers, floats and decimals are compared by value, whatever their
width; texts and binaries by bytes; times by microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UnsupportedError
from .array_text import elements, of_elements
from .pgoutput import flat

Words = npt.NDArray[np.uint64]

_NULL, _SEED, _GOLDEN = (np.uint64(n) for n in (0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x9E3779B97F4A7C15))
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
"""Mask for the first n bytes of a word, by n."""
_MOST_BYTES = 16 << 20
"""The maximum bytes of a batch; larger ones are split, as intermediate arrays take several times as much
memory."""


def kind_of(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Returns the type in which values of two types are compared; None if they are never equal.

    >>> kind_of(pa.int16(), pa.int64()), kind_of(pa.decimal128(5, 2), pa.decimal128(6, 1))
    (DataType(int64), Decimal128Type(decimal128(7, 2)))
    >>> kind_of(pa.int32(), pa.string()), kind_of(pa.timestamp("us"), pa.timestamp("us", "UTC"))
    (None, None)
    """
    if pa.types.is_list(one) and pa.types.is_list(other):
        element = kind_of(one.value_type, other.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= 38 else None
    kinds = [_plain(one), _plain(other)]
    return kinds[0] if kinds[0] == kinds[1] else None


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    for fits, plain in _KINDS:
        if fits(kind):
            return plain
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return kind


_KINDS: list[tuple[Any, pa.DataType]] = [
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_floating, pa.float64()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
]


def hashes(columns: Sequence[pa.Array]) -> Words:
    """Returns the hash of each row of some columns; their types are those of `kind_of`.

    >>> a, b = (hashes([pa.array(x)]).tolist() for x in ([1.5, None, -0.0], [1.5, float("nan"), 0.0]))
    >>> [x == y for x, y in zip(a, b)]
    [True, False, True]
    """
    made = np.full(len(columns[0]), _SEED)
    for column in columns:
        made = _mixed(made * _GOLDEN + _hashed(column))
    return made


def _hashed(column: pa.Array) -> Words:
    values = _mixed(_values(column))
    if column.null_count:
        values[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return values


def one_zero(values: pa.Array) -> pa.Array:
    """Returns floating-point numbers with one zero and one NaN, whatever their bits; other values unchanged.

    >>> one_zero(pa.array([-0.0, None, 1.5])).to_pylist(), one_zero(pa.array([[-0.0], None, []])).to_pylist()
    ([0.0, None, 1.5], [[0.0], None, []])
    """
    if pa.types.is_list(values.type) and pa.types.is_floating(values.type.value_type):
        found, ends = elements(values)
        return of_elements(one_zero(found), ends, values.is_valid().to_numpy(zero_copy_only=False))
    if not pa.types.is_floating(values.type):
        return values
    nan = pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), nan, pc.add(values, pa.scalar(0, values.type)))


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields pieces of a batch that are small enough to be hashed."""
    pieces = max(1, min(batch.num_rows, -(-batch.nbytes // _MOST_BYTES)))
    step = -(-batch.num_rows // pieces) or 1
    for begin in range(0, batch.num_rows, step):
        yield batch.slice(begin, step)


def _mixed(words: Words) -> Words:
    """Distributes each number over all 64 bits (the finalizer of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    mixed: Words = words ^ (words >> np.uint64(31))
    return mixed


def _values(column: pa.Array) -> Words:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(column)
    if pa.types.is_decimal128(kind):
        return _decimals(column)
    if pa.types.is_list(kind):
        return _arrays(column)
    if pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        column = column.cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_floating(kind):
        column = one_zero(column.cast(pa.float64()))
    elif pa.types.is_integer(kind):
        column = column.cast(pa.int64())
    else:
        raise UnsupportedError(f"values of {kind} cannot be compared", hint="leave the column out (`drop`)")
    filled = column.fill_null(0) if column.null_count else column
    return np.ascontiguousarray(filled.to_numpy(zero_copy_only=False)).view(np.uint64)


def _arrays(column: pa.ListArray) -> Words:
    """Returns the hash of arrays: the sum of their elements, each mixed with its index."""
    found, ends = elements(column)
    size = np.diff(ends)
    row = np.repeat(np.arange(len(size)), size)
    place = (np.arange(len(row)) - ends[:-1][row]).astype(np.uint64)
    mixed = _mixed(_hashed(found) + (place + np.uint64(1)) * _GOLDEN)
    return _sums(mixed, ends[:-1], size) ^ size.astype(np.uint64)


def _sums(words: Words, first: npt.NDArray[np.int64], count: npt.NDArray[np.int64]) -> Words:
    """Returns the sum of each row's words, which begin at `first`."""
    sums, some = np.zeros(len(count), np.uint64), count > 0
    if some.any():
        sums[some] = np.add.reduceat(words, first[some])
    return _mixed(sums)


def _decimals(column: pa.Array) -> Words:
    words = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
    words = words[column.offset : column.offset + len(column)]
    return _mixed(words[:, 0] + _GOLDEN) ^ words[:, 1]


def _texts(column: pa.Array) -> Words:
    """Returns the hash of texts: the sum of their eight-byte words, each mixed with its index."""
    data, starts, ends = flat(column.cast(pa.binary()).fill_null(b""))
    base = starts[0] if len(starts) else 0
    data, starts, ends = data[base : ends[-1] if len(ends) else 0], starts - base, ends - base
    size = ends - starts
    count = (size + 7) // 8
    first = np.cumsum(count) - count
    row = np.repeat(np.arange(len(size)), count)
    place = np.arange(len(row)) - first[row]
    # Padding after the last text allows reading whole words.
    padded = np.concatenate([data, np.zeros(8, np.uint8)])
    words = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))[starts[row] + 8 * place]
    rest = np.minimum(size[row] - 8 * place, 8)
    mixed = _mixed((words & _MASKS[rest]) + (place.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return _sums(mixed, first, count) ^ size.astype(np.uint64)
