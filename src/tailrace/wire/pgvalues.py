"""Converts PostgreSQL's text of values to typed Arrow arrays, whole columns at a time.

The lake type determines how text is parsed, so a configured type works for any PostgreSQL type. Native casts
parse ordinary values; only rows that they refuse are parsed individually.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model.change import Column
from ..model.types import arrow_type, spark_type
from .array_text import between, elements, of_elements, unescaped
from .octets import all_bytes
from .pgoutput import flat
from .pgtypes import lake_type, markdown

__all__ = ["convert", "lake_type", "markdown", "misfit", "of_column"]
_MOMENTS, _ENDLESS = {"date", "timestamp", "timestamp_ntz"}, pa.array(["infinity", "-infinity"])


def convert(column_type: str, kind: str, text: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Returns the values of a column in its lake type, and which of them are bad.

    Args:
        column_type: Spark SQL type of the column in the lake.
        kind: PostgreSQL base type; only matters if one lake type accepts several kinds of text.
        text: PostgreSQL's text of the values; null stays null.

    Returns:
        The array of type `arrow_type(column_type)`, and a mask of the rows whose text it cannot hold (null in
            the array), or None if all fit.

    Raises:
        UnsupportedError: `column_type` is unknown.

    >>> values, bad = convert("decimal(5,1)", "numeric", pa.array(["1.5", "NaN", None]))
    >>> values.to_pylist(), bad.to_pylist()
    ([Decimal('1.5'), None, None], [False, True, False])
    """
    target = arrow_type(column_type)
    values = _PARSERS[target.id](kind, text, target)
    if values.null_count == text.null_count:
        return values, None
    return values, pc.and_(pc.is_valid(text), pc.is_null(values))


def of_column(column: Column, text: pa.StringArray) -> tuple[pa.Array, pa.BooleanArray | None]:
    """Returns `convert` for a column. In a key, `infinity` is bad, because it would equal the last or first
    moment that the lake can hold.

    >>> text = pa.array(["infinity", "2026-01-01"])
    >>> [of_column(Column("d", 1, "date", "date", "date", key=k), text)[1] for k in (False, True)]
    [None, <pyarrow.lib.BooleanArray object at ...>
    [
      true,
      false
    ]]
    """
    endless = pc.is_in(text, value_set=_ENDLESS) if column.key and column.type in _MOMENTS else None
    if endless is None or not pc.any(endless).as_py():
        return convert(column.type, column.kind, text)
    values, bad = convert(column.type, column.kind, _null_where(text, endless))
    return values, endless if bad is None else pc.or_(endless, bad)


def misfit(table: str, column: str, text: str) -> str:
    """Returns the error message for a bad value.

    >>> misfit("s.t", "n", "NaN")
    "'NaN' does not fit s.t.n"
    >>> misfit("s.t", "till", "infinity")
    "'infinity' does not fit s.t.till, a part of the key: a finite value would be the same key"
    """
    said = f"{text!r} does not fit {table}.{column}"
    endless = text in _ENDLESS.to_pylist()
    return f"{said}, a part of the key: a finite value would be the same key" if endless else said


def _array(kind: str, text: pa.StringArray, target: pa.ListType) -> pa.Array:
    """Returns arrays; an array with an element that its type cannot hold is bad."""
    arrays = split_arrays(text)
    found, ends = elements(arrays)
    values, bad = convert(spark_type(target.value_type), kind, found)
    valid = arrays.is_valid().to_numpy(zero_copy_only=False)
    if bad is not None:
        wrong = np.concatenate([[0], np.cumsum(pc.fill_null(bad, False).to_numpy(zero_copy_only=False))])
        valid = valid & (wrong[ends[1:]] == wrong[ends[:-1]])
    return of_elements(values, ends, valid).cast(target)


def _string(kind: str, text: pa.StringArray, target: pa.DataType) -> pa.Array:
    return text


def _boolean(kind: str, text: pa.StringArray, target: pa.DataType) -> pa.Array:
    true = pc.equal(text, "t")
    known = pc.or_(true, pc.equal(text, "f"))
    return _null_where(true, pc.invert(known))


def _integer(kind: str, text: pa.StringArray, target: pa.DataType) -> pa.Array:
    """Returns integers. Hexadecimal text is bad: the cast would parse `0xFFFFFFFF` as -1."""
    if all_bytes(text).max(initial=0) > ord("9"):  # digits and signs are below
        text = _null_where(text, pc.match_substring(text, "x", ignore_case=True))
    return _cast(text, target)


def _float(kind: str, text: pa.StringArray, target: pa.DataType) -> pa.Array:
    values = _cast(text, target)
    # The cast turns numbers that are too large into infinity.
    return _null_where(values, pc.and_not(pc.is_inf(values), pc.ends_with(text, "nfinity")))


def _decimal(kind: str, text: pa.StringArray, target: pa.DataType) -> pa.Array:
    """Returns decimals. Text with more than 38 digits at the column's scale, or with an exponent, is parsed
    exactly.

    The cast silently overflows for such text. PostgreSQL writes no exponents for numeric.
    """
    size = pc.binary_length(text)
    odd = pc.greater(size, 38 - target.scale)
    if pc.any(odd).as_py():
        odd = pc.and_(odd, _too_many_digits(text, size, target.scale))
    if kind != "numeric":
        odd = pc.or_(odd, pc.match_substring(text, "e", ignore_case=True))
    if not pc.any(odd).as_py():
        return _number(text, target)
    ordinary = _number(_null_where(text, odd), target)
    exact = pa.array([_exactly(t, target) for t in text.filter(odd).to_pylist()], target)
    return pc.replace_with_mask(ordinary, pc.fill_null(odd, False), exact)


def _number(text: pa.StringArray, target: pa.DataType) -> pa.Array:
    try:
        return text.cast(target)
    except pa.ArrowInvalid:
        return _cast(_null_where(text, pc.is_in(text, value_set=_NO_NUMBERS)), target)


_NO_NUMBERS = pa.array(["NaN", "Infinity", "-Infinity"])


def _too_many_digits(text: pa.StringArray, size: pa.Array, scale: int) -> pa.BooleanArray:
    point = pc.find_substring(text, ".")
    whole = pc.if_else(pc.less(point, 0), size, point)
    fraction = pc.subtract(pc.subtract(size, whole), 1)
    leading_zero = pc.match_substring_regex(text, "^-?0")
    digits = pc.if_else(leading_zero, 0, whole)
    return pc.greater(pc.add(digits, pc.max_element_wise(fraction, scale)), 38)


def _exactly(text: str, target: pa.DataType) -> decimal.Decimal | None:
    """Returns the decimal, or None if it does not fit exactly."""
    exact = decimal.Context(prec=target.precision, traps=[decimal.InvalidOperation, decimal.Inexact])
    try:
        value = exact.quantize(decimal.Decimal(text), decimal.Decimal(1).scaleb(-target.scale))
    except (decimal.InvalidOperation, decimal.Inexact):
        return None
    return value if value.is_finite() else None


def _date(kind: str, text: pa.StringArray, target: pa.DataType) -> pa.Array:
    return _with_infinity(text, target, target, dt.date.min, dt.date.max)


def _timestamp(kind: str, text: pa.StringArray, target: pa.DataType) -> pa.Array:
    zoned = kind == "timestamptz" or (kind not in ("timestamp", "date") and target.tz is not None)
    read = pa.timestamp("us", "UTC" if zoned else None)
    return _with_infinity(text, read, target, dt.datetime.min, dt.datetime.max)


def _with_infinity(
    text: pa.StringArray, read: pa.DataType, target: pa.DataType, low: dt.date, high: dt.date
) -> pa.Array:
    """Parses as one type and casts to another with the same numbers; lake dates are in years 1 to 9999."""
    try:
        return _from_year_1(text.cast(read), low).cast(target)
    except pa.ArrowInvalid:
        past, future = pc.equal(text, "-infinity"), pc.equal(text, "infinity")
        strange = pc.or_(pc.or_(past, future), pc.ends_with(text, " BC"))
        values = _from_year_1(_cast(_null_where(text, strange), read), low).cast(target)
        values = pc.if_else(pc.fill_null(past, False), _moment(low, target), values)
        return pc.if_else(pc.fill_null(future, False), _moment(high, target), values)


def _moment(moment: dt.date, target: pa.DataType) -> pa.Scalar:
    zone = getattr(target, "tz", None)
    return pa.scalar(
        moment.replace(tzinfo=dt.timezone.utc) if zone and isinstance(moment, dt.datetime) else moment, target
    )


def _from_year_1(values: pa.Array, low: dt.date) -> pa.Array:
    return _null_where(values, pc.less(values, _moment(low, values.type)))


def _binary(kind: str, text: pa.StringArray, target: pa.DataType) -> pa.Array:
    """Returns bytes. Every byte is two characters, and so is the leading `\\x`: pairs are decoded at once,
    those dropped."""
    well = pc.and_(pc.starts_with(text, "\\x"), pc.equal(pc.bit_wise_and(pc.binary_length(text), 1), 0))
    valid = pc.and_(pc.is_valid(text), pc.fill_null(well, False)).to_numpy(zero_copy_only=False)
    if not valid.all():
        text = pc.if_else(pa.array(valid), text, "\\x")  # every row has its pair to drop
    characters, starts, ends = flat(text.cast(pa.binary()))
    if not len(text):
        return pa.array([], target)
    codes = _PAIRS[characters[starts[0] : ends[-1]].view("<u2")]
    prefixes = (starts - starts[0]) // 2
    codes[prefixes] = 0
    if (wrong := codes > 0xFF).any():
        valid[np.searchsorted(prefixes, np.flatnonzero(wrong), "right") - 1] = False
        return _binary(kind, pc.if_else(pa.array(valid), text, pa.scalar(None, pa.string())), target)
    kept = np.ones(len(codes), np.bool_)
    kept[prefixes] = False
    offsets = np.append(prefixes, len(codes)) - np.arange(len(text) + 1)
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    parts = [bits, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(codes.astype(np.uint8)[kept])]
    return pa.Array.from_buffers(target, len(text), parts)


def _pairs() -> npt.NDArray[np.uint16]:
    """Returns the byte of each pair of characters (as a little-endian number), 0xFFFF if not hexadecimal."""
    digit = np.full(256, 0xFFFF, np.uint32)
    for characters in (b"0123456789abcdef", b"0123456789ABCDEF"):
        digit[np.frombuffer(characters, np.uint8)] = np.arange(16)
    both = digit[:, None] | digit[None, :] << 4  # [second character, first character]
    return np.where(both > 0xFF, 0xFFFF, both).astype(np.uint16).ravel()


_PAIRS = _pairs()


def _null_where(values: pa.Array, condition: pa.BooleanArray) -> pa.Array:
    if not pc.any(condition).as_py():
        return values
    return pc.if_else(pc.fill_null(condition, False), pa.scalar(None, values.type), values)


def _cast(text: pa.StringArray, target: pa.DataType) -> pa.Array:
    """Returns the cast with nulls for refused rows, which are found by bisection."""
    try:
        return text.cast(target)
    except pa.ArrowInvalid:
        if len(text) == 1:
            return pa.nulls(1, target)
        half = len(text) // 2
        return pa.concat_arrays([_cast(text[:half], target), _cast(text[half:], target)])


_Parser = Callable[[str, pa.StringArray, pa.DataType], pa.Array]
_PARSERS: dict[int, _Parser] = {
    pa.bool_().id: _boolean,
    pa.int8().id: _integer,
    pa.int16().id: _integer,
    pa.int32().id: _integer,
    pa.int64().id: _integer,
    pa.float32().id: _float,
    pa.float64().id: _float,
    pa.decimal128(1).id: _decimal,
    pa.string().id: _string,
    pa.binary().id: _binary,
    pa.date32().id: _date,
    pa.timestamp("us").id: _timestamp,
    pa.list_(pa.null()).id: _array,
}
"""Parsers by Arrow type: (kind, text, type) to values, null where the text does not fit."""


def split_arrays(text: pa.StringArray) -> pa.ListArray:
    """Splits PostgreSQL's text of arrays; null for NULL, for several dimensions, and for explicit bounds.

    Source: PostgreSQL manual, "Array Input and Output Syntax". Elements are in braces, separated by commas,
    with NULL unquoted. Special elements are quoted, with backslashes before quotes and backslashes.

    >>> split_arrays(pa.array(['{1,NULL,"a,\\\\"b"}', "{}", None, "{{1}}", "[0:1]={1,2}"])).to_pylist()
    [['1', None, 'a,"b'], [], None, None, None]
    """
    plain = pc.and_(pc.starts_with(text, "{"), pc.invert(pc.starts_with(text, "{{")))
    valid = pc.fill_null(plain, False).to_numpy(zero_copy_only=False)
    inside = pc.utf8_slice_codeunits(pc.if_else(pa.array(valid), text, "{}"), 1, -1)
    buf, starts, stops = flat(inside.cast(pa.binary()))
    if not len(text):
        return pa.array([], pa.list_(pa.string()))
    low, high = int(starts[0]), int(stops[-1])
    quotes = unescaped(buf, starts, high, '"', "\\")
    commas = np.flatnonzero(buf[low:high] == ord(",")) + low
    commas = commas[np.searchsorted(quotes, commas) % 2 == 0]
    found, ends = between(buf, starts, stops, valid & (stops > starts), commas)
    quoted = pc.starts_with(found, '"')
    known = pc.if_else(pc.equal(found, "NULL"), pa.scalar(None, pa.string()), found)
    text = pc.replace_substring_regex(pc.utf8_slice_codeunits(found, 1, -1), r"(?s)\\(.)", r"\1")
    values = pc.if_else(quoted, text, known)
    return of_elements(values, ends, valid)
