"""Converts the values in solidDB's DATA between bytes and typed Arrow arrays, whole columns at a time.

Source: spec/soliddb.md §5.1 (value encodings are confirmed there; inferred ones are entries of `Style`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import FormatError
from ..model.types import arrow_type
from .pgvalues import convert
from .soliddb_dates import date_bytes, date_values, is_finer
from .soliddb_rows import Bools, Bytes, binary, flat, join, row_layout, split
from .soliddb_text import char_bytes, char_text, has_nul, unicode_bytes, unicode_text

__all__ = ["KINDS", "DecodedRows", "RowField", "Style", "decode", "decode_values", "encode", "encode_values"]


@dataclass(frozen=True)
class RowField:
    """A column of a row: its name, the engine's type family (a key of `KINDS`), and its lake type.

    `taken` is False for a dropped column whose name a later column has.
    """

    name: str
    kind: str
    type: str
    taken: bool = True


@dataclass(frozen=True)
class Style:
    """Encoding options where the data does not determine them.

    Attributes:
        layout: row layout, see `soliddb_rows.row_layout`.
        char: encoding of CHAR values, utf-8 or latin-1.
        year_bias: years are written with 0x8000 added (both forms are read).
        trailing_nul: CHAR and UNICODE values are written with a trailing 0x00 (both forms are read).
    """

    layout: str = "A"
    char: str = "utf-8"
    year_bias: bool = False
    trailing_nul: bool = True


@dataclass(frozen=True)
class DecodedRows:
    """Rows as typed columns.

    Attributes:
        columns: the values.
        exact: whether `encode` returns the same bytes.
        why: the error of each row; null if it is valid.
        finer: whether a time has a fraction finer than microseconds, which is cut.
    """

    columns: list[pa.Array]
    exact: pa.Array
    why: pa.Array
    finer: pa.Array


Wrong: TypeAlias = pa.Array | None
"""Which values their column cannot hold (null in the array); None if all fit."""


def decode(data: pa.Array, fields: Sequence[RowField], style: Style) -> DecodedRows:
    """Returns the rows' values. A value that is not valid for its type is null, with the reason in `why`.

    >>> style = Style(layout="B")
    >>> fields = [RowField("id", "INTEGER", "int"), RowField("name", "CHAR", "string")]
    >>> rows = decode(pa.array([b"\\0\\0\\0\\x04\\0\\0\\0\\x07\\0\\0\\0\\x02a\\0"]), fields, style)
    >>> [c.to_pylist() for c in rows.columns], rows.exact.to_pylist(), rows.why.to_pylist()
    ([[7], ['a']], [True], [None])
    """
    rows = split(data, len(fields), row_layout(style.layout))
    columns, why, kept = [], rows.why, []
    finer = np.zeros(len(data), np.bool_)
    for one, raw in zip(fields, rows.values, strict=True):
        values, wrong = decode_values(one, raw, style)
        columns.append(values)
        if wrong is not None and pc.any(wrong).as_py():
            text = pa.scalar(f"{one.name} is not valid as {one.kind} of type {one.type}")
            why = _also(why, pc.if_else(wrong, text, pa.scalar(None, pa.string())))
        if one.kind == "DATE" and one.type.startswith("timestamp"):
            finer |= is_finer(fixed(raw, 11)[0])
        if rows.odd is not None and (same := _kept(one, raw, values, style)) is not None:
            kept.append(same)
    good = np.asarray(pc.is_null(why).to_numpy(zero_copy_only=False), np.bool_)
    if rows.odd is None:  # the layout does not report sizes, so whole rows are encoded again
        same = pc.fill_null(pc.equal(encode(columns, fields, style), data), False)
        return DecodedRows(columns, pc.and_(pa.array(good), same), why, pa.array(finer))
    for same in kept:
        good &= same
    return DecodedRows(columns, pa.array(good & ~rows.odd & _valid(data)), why, pa.array(finer))


def _kept(one: RowField, raw: pa.Array, values: pa.Array, style: Style) -> Bools | None:
    """Returns which valid values are encoded to the bytes they were read from; None if all are."""
    if one.kind in ("INTEGER", "BIGINT", "BINARY") or (one.kind, one.type) == ("DOUBLE", "double"):
        return None
    if one.kind in ("CHAR", "UNICODE"):
        same: Bools = (has_nul(raw, units=one.kind == "UNICODE") == style.trailing_nul) | ~_valid(raw)
        return same
    again = pc.equal(encode_values(one, values, style), raw)
    return np.asarray(pc.fill_null(again, False).to_numpy(zero_copy_only=False), np.bool_) | ~_valid(raw)


def _also(why: pa.Array, more: pa.Array) -> pa.Array:
    """Returns both texts, joined if there are two."""
    return pc.coalesce(pc.binary_join_element_wise(why, more, "; "), why, more)


def encode(columns: Sequence[pa.Array], fields: Sequence[RowField], style: Style) -> pa.Array:
    """Returns the DATA of rows with these values.

    Raises:
        FormatError: the column's encoding cannot represent a value.

    >>> encode([pa.array([7])], [RowField("id", "BIGINT", "bigint")], Style()).to_pylist()
    [b'\\x08\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07']
    """
    raw = [encode_values(one, values, style) for one, values in zip(fields, columns, strict=True)]
    return join(raw, len(columns[0]) if columns else 0, row_layout(style.layout))


def decode_values(one: RowField, raw: pa.Array, style: Style) -> tuple[pa.Array, Wrong]:
    """Returns one column's values from their raw bytes."""
    return KINDS[one.kind][0](one, raw, style)


def encode_values(one: RowField, values: pa.Array, style: Style) -> pa.Array:
    """Returns one column's raw bytes."""
    return KINDS[one.kind][1](one, values, style)


def fixed(raw: pa.Array, width: int) -> tuple[Bytes, Bools]:
    """Returns values of a fixed width as a matrix, and which rows have one (others are zeros)."""
    buf, starts, ends = flat(raw)
    good = np.asarray((ends - starts == width) & _valid(raw))
    matrix = np.zeros((len(raw), width), np.uint8)
    matrix[good] = buf[starts[good][:, None] + np.arange(width)[None, :]]
    return matrix, good


def _valid(values: pa.Array) -> Bools:
    return np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), np.bool_)


def _wrong(raw: pa.Array, good: Bools) -> Wrong:
    bad = _valid(raw) & ~good
    return pa.array(bad) if bad.any() else None


def _whole(one: RowField, raw: pa.Array, style: Style) -> tuple[pa.Array, Wrong]:
    """Returns INTEGER and BIGINT values: 4 and 8 bytes, big-endian."""
    width = 4 if one.kind == "INTEGER" else 8
    matrix, good = fixed(raw, width)
    numbers = matrix.view(f">i{width}")[:, 0].astype(np.int64)
    target = arrow_type(one.type)
    if one.type == "boolean":
        good = good & ((numbers == 0) | (numbers == 1))
        return pa.array(numbers == 1, target, mask=~good), _wrong(raw, good)
    if pa.types.is_integer(target):
        low, high = np.iinfo(target.to_pandas_dtype()).min, np.iinfo(target.to_pandas_dtype()).max
        good = good & (numbers >= low) & (numbers <= high)
        numbers = np.where(good, numbers, 0)
    return pa.array(numbers, pa.int64(), mask=~good).cast(target), _wrong(raw, good)


def _whole_bytes(one: RowField, values: pa.Array, style: Style) -> pa.Array:
    width = 4 if one.kind == "INTEGER" else 8
    known = pc.fill_null(values, False if pa.types.is_boolean(values.type) else 0).cast(pa.int64())
    made = binary(known.to_numpy().astype(f">i{width}").view(np.uint8).reshape(-1, width))
    return _nulls(made, values)


def _double(one: RowField, raw: pa.Array, style: Style) -> tuple[pa.Array, Wrong]:
    matrix, good = fixed(raw, 8)
    numbers = matrix.view(">f8")[:, 0].astype(np.float64)
    if one.type == "float":
        with np.errstate(over="ignore", invalid="ignore"):
            single = numbers.astype(np.float32)
        good = good & ~(np.isinf(single) & np.isfinite(numbers))
        return pa.array(single, pa.float32(), mask=~good), _wrong(raw, good)
    return pa.array(numbers, pa.float64(), mask=~good).cast(arrow_type(one.type)), _wrong(raw, good)


def _double_bytes(one: RowField, values: pa.Array, style: Style) -> pa.Array:
    numbers = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy()
    return _nulls(binary(numbers.astype(">f8").view(np.uint8).reshape(-1, 8)), values)


_NUMBER = r"^[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?$"


def _dfloat(one: RowField, raw: pa.Array, style: Style) -> tuple[pa.Array, Wrong]:
    """Returns decimal text; a trailing NUL is removed, as in CHAR."""
    text, broken = char_text(raw, "utf-8")
    number = pc.fill_null(pc.match_substring_regex(text, _NUMBER), False)
    bad = pc.or_(pc.and_not(pc.is_valid(raw), number), broken) if broken is not None else (
        pc.and_not(pc.is_valid(raw), number)
    )  # fmt: skip
    text = pc.if_else(bad, pa.scalar(None, pa.string()), text)
    if one.type == "string":
        return text, bad
    values, wrong = convert(one.type, "dfloat", pc.utf8_ltrim(text, "+"))
    return values, bad if wrong is None else pc.or_(bad, pc.fill_null(wrong, False))


def _dfloat_bytes(one: RowField, values: pa.Array, style: Style) -> pa.Array:
    if not pa.types.is_decimal(values.type):
        return values.cast(pa.string()).cast(pa.binary())
    return plain_decimal(values).cast(pa.binary())


def plain_decimal(values: pa.Array) -> pa.Array:
    """Returns decimals as text without exponent: sign, digits, and as many fraction digits as the scale.

    >>> from decimal import Decimal
    >>> plain_decimal(pa.array([Decimal("-0.0000000001")], pa.decimal128(38, 10))).to_pylist()
    ['-0.0000000001']
    """
    scale = values.type.scale
    buffers = [values.buffers()[0], values.buffers()[1]]
    whole = pa.Array.from_buffers(
        pa.decimal128(values.type.precision, 0), len(values), buffers, offset=values.offset
    )
    text = whole.cast(pa.string())
    if not scale:
        return text
    digits = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), scale + 1, "0")
    sign = pc.if_else(pc.starts_with(text, "-"), "-", "")
    whole_part, fraction = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, whole_part, ""), fraction, ".")


def _nulls(made: pa.Array, like: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(like), made, pa.scalar(None, made.type)) if like.null_count else made


def _date(one: RowField, raw: pa.Array, style: Style) -> tuple[pa.Array, Wrong]:
    matrix, good = fixed(raw, 11)
    values, fits = date_values(matrix, good, one.type)
    return values, _wrong(raw, fits)


def _date_bytes(one: RowField, values: pa.Array, style: Style) -> pa.Array:
    made, good = date_bytes(values, one.type, year_bias=style.year_bias)
    if not (good | ~_valid(values)).all():
        first = values.slice(int(np.argmin(good | ~_valid(values))), 1).cast(pa.string())[0]
        raise FormatError(f"solidDB cannot represent the date {first}", where=f"column {one.name}")
    return _nulls(made, values)


def _char(one: RowField, raw: pa.Array, style: Style) -> tuple[pa.Array, Wrong]:
    return char_text(raw, style.char)


def _char_bytes(one: RowField, values: pa.Array, style: Style) -> pa.Array:
    return char_bytes(values, style.char, nul=style.trailing_nul, where=one.name)


def _unicode(one: RowField, raw: pa.Array, style: Style) -> tuple[pa.Array, Wrong]:
    return unicode_text(raw)


def _unicode_bytes(one: RowField, values: pa.Array, style: Style) -> pa.Array:
    return unicode_bytes(values, nul=style.trailing_nul)


def _binary(one: RowField, raw: pa.Array, style: Style) -> tuple[pa.Array, Wrong]:
    return raw, None


def _binary_bytes(one: RowField, values: pa.Array, style: Style) -> pa.Array:
    return values.cast(pa.binary())


_Decoder = Callable[[RowField, pa.Array, Style], tuple[pa.Array, Wrong]]
_Encoder = Callable[[RowField, pa.Array, Style], pa.Array]
KINDS: dict[str, tuple[_Decoder, _Encoder]] = {
    "CHAR": (_char, _char_bytes),
    "UNICODE": (_unicode, _unicode_bytes),
    "BINARY": (_binary, _binary_bytes),
    "INTEGER": (_whole, _whole_bytes),
    "BIGINT": (_whole, _whole_bytes),
    "DOUBLE": (_double, _double_bytes),
    "DATE": (_date, _date_bytes),
    "DFLOAT": (_dfloat, _dfloat_bytes),
}
"""Decoder and encoder by type family. The engine's FLOAT is DOUBLE here (both have 8 bytes)."""
