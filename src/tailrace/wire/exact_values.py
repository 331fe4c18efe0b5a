"""Exact conversion of values between types.

Arrow's casts change some values silently: a time without a zone, a number as a time, a double cut to a float.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def exactly(values: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.ChunkedArray, str | None]:
    """Returns values in another type, and the reason if they do not fit exactly (None if they do).

    >>> exactly(pa.chunked_array([[1, None]]), pa.int16())[1] is None
    True
    >>> exactly(pa.chunked_array([[1.1]]), pa.float32())[1]
    'some values are not exact in it'
    >>> exactly(pa.chunked_array([[7]]), pa.timestamp("us"))[1]
    'the types have no values in common'
    """
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.type == kind:
        return values, None
    if not _akin(values.type, kind):
        return values, "the types have no values in common"
    try:
        made = values.cast(kind)
        cut = _cut(values, made)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return values, str(error)
    return made, "some values are not exact in it" if cut else None


def _akin(old: pa.DataType, new: pa.DataType) -> bool:
    """Returns whether types have values in common; a cast between others changes values."""
    if pa.types.is_null(old):
        return True
    if all(any(one(kind) for one in _LISTS) for kind in (old, new)):
        return _akin(old.value_type, new.value_type)
    both = {_family(old), _family(new)}
    return len(both) == 1 or both in ({"integer", "decimal"}, {"integer", "float"})


def _cut(values: pa.ChunkedArray, made: pa.ChunkedArray) -> bool:
    """Returns whether a cast between floating-point types lost digits, which Arrow does not report."""
    if any(one(values.type) for one in _LISTS):
        return _cut(pc.list_flatten(values), pc.list_flatten(made))
    if not (pa.types.is_floating(values.type) and pa.types.is_floating(made.type)):
        return False
    old, new = values.cast(pa.float64()), made.cast(pa.float64())
    same = pc.or_(pc.equal(old, new), pc.and_(pc.is_nan(old), pc.is_nan(new)))
    return bool(pc.any(pc.invert(same), min_count=0).as_py())


def _family(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "time" if kind.tz is None else "time with a zone"
    return next((name for name, of in _FAMILIES.items() if any(one(kind) for one in of)), str(kind))


_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_FAMILIES = {
    "integer": (pa.types.is_integer,),
    "decimal": (pa.types.is_decimal,),
    "float": (pa.types.is_floating,),
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    "date": (pa.types.is_date,),
}
