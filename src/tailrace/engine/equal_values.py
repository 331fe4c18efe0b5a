"""Comparison of columns: scalars as in Arrow, lists element by element."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UnsupportedError

Bools = npt.NDArray[np.bool_]


def is_comparable(kind: pa.DataType) -> bool:
    """Returns whether values of a type can be compared; structs and maps cannot, not even in lists.

    >>> is_comparable(pa.list_(pa.int32())), is_comparable(pa.list_(pa.map_(pa.string(), pa.int32())))
    (True, False)
    """
    if any(one(kind) for one in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)):
        return is_comparable(kind.value_type)
    return not pa.types.is_nested(kind)


def values_differ(left: pa.Array, right: pa.Array, name: str = "") -> Bools:
    """Returns where two columns differ. NULL equals NULL, and NaN equals NaN, also in lists.

    Args:
        left, right: the columns.
        name: the column's name for errors.

    >>> values_differ(pa.array([1, None, None, 2]), pa.array([1, None, 1, 3])).tolist()
    [False, False, True, True]
    >>> values_differ(pa.array([[1, None], [], [1]]), pa.array([[1, None], None, [2]])).tolist()
    [False, True, True]

    Raises:
        UnsupportedError: values of this type cannot be compared.
    """
    if not is_comparable(left.type):
        raise UnsupportedError(
            f"values of {name or 'a column'} ({left.type}) cannot be compared",
            hint="leave the column out (`columns=`)",
        )
    if pa.types.is_nested(left.type):
        return _lists_differ(left, right)
    same = pc.equal(left, right).fill_null(False)
    if left.null_count and right.null_count:
        same = pc.or_(same, pc.and_(left.is_null(), right.is_null()))
    if pa.types.is_floating(left.type):
        nan = pc.and_(pc.is_nan(left).fill_null(False), pc.is_nan(right).fill_null(False))
        same = pc.or_(same, nan)
    found: Bools = ~same.to_numpy(zero_copy_only=False)
    return found


def _lists_differ(left: pa.ListArray, right: pa.ListArray) -> Bools:
    """Returns where lists differ in their length (NULL has none), or in an element."""
    old, new = pc.list_value_length(left), pc.list_value_length(right)
    found = values_differ(old, new)
    alike = pa.array(~found)
    unequal = values_differ(left.filter(alike).flatten(), right.filter(alike).flatten())
    sizes = old.filter(alike).fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.flatnonzero(~found), sizes)
    found[rows[unequal]] = True
    return found
