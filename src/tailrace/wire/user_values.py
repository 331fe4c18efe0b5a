"""Converts values that users write to column types, exactly, and binary values from their notations."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from math import isfinite
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa

from .exact_values import exactly
from .keylog_values import HEX, KeyLogField, of_column

BINARY_HINT = r"write its bytes as in a key log (&#xFF01) or in PostgreSQL (\xff01)"
"""Hint with the accepted notations."""
_BYTEA = "\\x"


def user_value(given: object, kind: pa.DataType) -> tuple[pa.Scalar, str | None]:
    """Returns a value in a type, and the reason if it does not fit (None if it does).

    Text is parsed as the type. A number for a decimal or a float is converted by its shortest text. A time
    without a zone is UTC if the type has one.

    >>> user_value("1.5", pa.decimal128(8, 3))
    (<pyarrow.Decimal128Scalar: Decimal('1.500')>, None)
    >>> user_value(1.50049, pa.decimal128(8, 3))[1]
    'Rescaling Decimal value would cause data loss'
    >>> user_value("16777217", pa.float32())[1], user_value(0.1, pa.float32())[1]
    ('it would be rounded', None)
    >>> user_value(pa.scalar(0.1, pa.float32()).as_py(), pa.float32())[1]
    >>> user_value("0xFFFFFFFF", pa.int32())[1]
    "'0xFFFFFFFF' is not a decimal number"
    >>> user_value(True, pa.int32())[1]
    'the types have no values in common'
    >>> user_value("2026-01-01 10:00:00", pa.timestamp("us", "UTC"))[0].as_py().isoformat()
    '2026-01-01T10:00:00+00:00'
    """
    nothing = pa.scalar(None, kind)
    if given is None:
        return nothing, "it is NULL"
    if _zoned(kind) and isinstance(given, dt.datetime) and given.tzinfo is None:
        given = given.replace(tzinfo=dt.timezone.utc)
    try:
        if (text := _text(given, kind)) is not None:
            read = _read(text, kind)
            return (nothing, "it would be rounded") if _rounded(text, read) else (read, None)
        values, why = exactly(pa.chunked_array([pa.array([given])]), kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return nothing, str(error)
    return (nothing, why) if why is not None else (values[0], None)


def _text(given: Any, kind: pa.DataType) -> str | None:
    """Returns the text from which a value is converted; None if it is converted directly."""
    if isinstance(given, str):
        return given
    whole = isinstance(given, Integral) and not isinstance(given, bool)
    if pa.types.is_decimal(kind):
        return str(given) if whole or isinstance(given, float) else None
    return str(given) if pa.types.is_floating(kind) and isinstance(given, float | Decimal) else None


def _read(text: str, kind: pa.DataType) -> pa.Scalar:
    """Parses a text as a type. Arrow would also parse hexadecimal integers, `0xFFFFFFFF` as -1."""
    if pa.types.is_integer(kind) and "x" in text.lower():
        raise ValueError(f"{text!r} is not a decimal number")
    said = pa.scalar(text)
    try:
        return said.cast(kind)
    except pa.ArrowInvalid:
        if not _zoned(kind):
            raise
    return said.cast(pa.timestamp(kind.unit)).cast(kind)


def _rounded(text: str, read: pa.Scalar) -> bool:
    """Returns whether a text differs from the floating-point number that it was parsed as.

    It may be written with the fewest identifying digits, with those of a double, or with all digits.
    """
    if not pa.types.is_floating(read.type):
        return False
    said, value = Decimal(text), float(read.as_py())
    if not (said.is_finite() and isfinite(value)):
        return said.is_finite()
    shortest = str(np.float32(value)) if read.type == pa.float32() else repr(value)
    return said not in (Decimal(shortest), Decimal(repr(value)), Decimal(value))


def _zoned(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def parse_binary(text: str) -> bytes | None:
    r"""Returns the bytes of a text, or None if it has neither notation.

    >>> parse_binary("&#xFF01"), parse_binary(r"\xff01"), parse_binary("ff01")
    (b'\xff\x01', b'\xff\x01', None)
    """
    written = HEX + text[len(_BYTEA) :] if text.startswith(_BYTEA) else text
    values, _ = of_column(pa.array([written]), KeyLogField("", "binary"))
    found: bytes | None = values[0].as_py()
    return found
