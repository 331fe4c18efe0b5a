"""Values of a column whose type changed: in the type that fits all its layouts, and back."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import FormatError
from ..model.types import arrow_type
from .octets import hex_digits
from .pgvalues import convert
from .soliddb import plain_decimal


def as_wider(values: pa.Array, kind: str) -> pa.Array:
    """Returns the values in a type that can hold all of them. As text, bytes are hex and decimals have no
    exponent.

    >>> from decimal import Decimal
    >>> as_wider(pa.array([Decimal("0E-10")], pa.decimal128(20, 10)), "string").to_pylist()
    ['0.0000000000']
    >>> as_wider(pa.array([b"\\xff\\xfe"]), "string").to_pylist()
    ['FFFE']
    """
    target = arrow_type(kind)
    if values.type == target or target != pa.string():
        return values.cast(target)
    if pa.types.is_binary(values.type):
        return hex_digits(values)
    return plain_decimal(values) if pa.types.is_decimal(values.type) else values.cast(target)


def as_before(values: pa.Array, kind: str, column: str) -> pa.Array:
    """Returns the values that `as_wider` converted.

    Raises:
        FormatError: that type cannot hold a value.

    >>> as_before(pa.array(["FFFE"]), "binary", "v").to_pylist()
    [b'\\xff\\xfe']
    """
    target = arrow_type(kind)
    try:
        if target == pa.binary() and values.type == pa.string():
            made, bad = convert(kind, "bytea", pc.binary_join_element_wise("\\x", values, ""))
            if bad is not None:
                raise pa.ArrowInvalid("not hex")
            return made
        return values.cast(target)
    except pa.ArrowException as error:
        said = f"a value cannot be written as {kind}, the column's type at that LOGADDR: {error}"
        raise FormatError(
            said, where=f"column {column}", hint="write older rows with the columns' old types"
        ) from error
