"""Looks up rows by key, for entire columns, with keys of any columns."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..wire.row_hashes import one_zero
from .lazy import lazy

Places = npt.NDArray[np.int64]

CLOSE, SPREAD = 4, 128
"""The maximum range per value for which integers are numbered, and looked up, in a table over their range
instead of by hashing. It needs 4 bytes per number of the range, and a tenth of the time."""


class Keys:
    """Numbered keys of changes. `find` returns the number of each row's key, or -1.

    `place` is the number of each change's key, and `last` the last change of each number. `order` is the
    order of the changes, if they are not in order already. NULL is an ordinary value. Keys of one column are
    numbered by first occurrence.

    >>> keys = Keys([pa.array([7, 7, 9, 7]), pa.array(["a", "b", "a", "b"])])
    >>> keys.place.tolist(), keys.last.tolist()
    ([0, 1, 2, 1], [0, 3, 2])
    >>> keys.find([pa.array([9, 7, 9, None]), pa.array(["a", "b", "b", "a"])]).tolist()
    [2, 1, -1, -1]
    """

    def __init__(self, columns: Sequence[pa.Array], order: Places | None = None) -> None:
        self._steps: list[tuple[_Words, Places]] = []
        self._order = order
        self._first: Places | None = None
        place = np.zeros(len(columns[0]), np.int64)
        for column in columns:
            words, numbers = _numbered(_comparable(column))
            # Values of the first column are numbered already; pairs with later columns are numbered again.
            code = place * len(words) + numbers if self._steps else numbers
            pairs = np.unique(code) if self._steps else np.arange(len(words))
            place = np.searchsorted(pairs, code) if self._steps else code
            self._steps.append((words, pairs))
        self.place = place

    def __len__(self) -> int:
        return len(self._steps[-1][1])

    def joined(self, first: Places) -> Keys:
        """Returns the keys with some merged into one; `first` has the replacing number of each number.

        >>> keys = Keys([pa.array(["1.0", "2.0", "1.00"])]).joined(np.array([0, 1, 0]))
        >>> keys.place.tolist(), keys.last.tolist(), keys.find([pa.array(["1.00", "3"])]).tolist()
        ([0, 1, 0], [2, 1, -1], [0, -1])
        """
        result = copy(self)
        result.__dict__.pop("last", None)
        result.place, result._first = first[self.place], first
        return result

    @lazy
    def last(self) -> Places:
        """The last change of each number; -1 if it has none."""
        order = np.arange(len(self.place)) if self._order is None else self._order
        found = np.full(len(self), -1, np.int64)
        found[self.place[order]] = order  # NumPy keeps the last of several values for one index
        return found

    def find(self, columns: Sequence[pa.Array]) -> Places:
        """Returns the number of each row's key, or -1."""
        (words, _), *rest = self._steps
        place = words.find(columns[0])
        for column, (words, pairs) in zip(columns[1:], rest, strict=True):
            here = np.flatnonzero(place >= 0)  # not excluded by the columns so far
            few = 2 * len(here) < len(place)
            index = words.find(column.take(pa.array(here)) if few else column)
            mine = place[here] if few else place
            code = np.where((mine < 0) | (index < 0), -1, mine * len(words) + index)
            at = np.minimum(np.searchsorted(pairs, code), len(pairs) - 1)
            place[here if few else slice(None)] = np.where(pairs[at] == code, at, -1)
        return place if self._first is None else np.where(place < 0, -1, self._first[place])


def nth(numbers: Places) -> Places:
    """Returns how many equal numbers precede each one.

    >>> nth(np.array([7, 8, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(numbers, kind="stable")
    sorted_ = numbers[order]
    found = np.empty(len(numbers), np.int64)
    found[order] = np.arange(len(numbers)) - np.searchsorted(sorted_, sorted_)
    return found


class _Words:
    """The distinct values of a column, in the order of their numbers."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def find(self, column: pa.Array) -> Places:
        """Returns the number of each value; -1 for unknown values."""
        column = _comparable(column)
        if self._table is not None and column.type == self._values.type:
            return _entries(column, *self._table)
        found = pc.index_in(column, value_set=self._values).fill_null(-1)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)

    @lazy
    def _table(self) -> tuple[int, npt.NDArray[np.int32]] | None:
        """The smallest value, and a table of numbers from it on; None if the values are too far apart."""
        span = _span(self._values)
        if span is None or span[1] > SPREAD * len(self):
            return None
        low, many = span
        table = np.full(many, -1, np.int32)
        table[_integers(self._values) - low] = np.arange(len(self), dtype=np.int32)
        return low, table


def _entries(column: pa.Array, low: int, table: npt.NDArray[np.int32]) -> Places:
    """Returns the entry for each value in a table that begins at `low`; -1 if it has none."""
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    values = _integers(column.fill_null(low) if column.null_count else column)
    there = (values >= low) & (values <= low + (len(table) - 1))
    if nulls is not None:
        there &= ~nulls
    found = table[np.where(there, values - low, 0)].astype(np.int64)
    found[~there] = -1
    return found


def _numbered(column: pa.Array) -> tuple[_Words, Places]:
    """Returns the distinct values numbered by first occurrence, and the number of each row's value."""
    span = _span(column)
    if span is None or span[1] > CLOSE * len(column):
        known = column.dictionary_encode(null_encoding="encode")
        return _Words(known.dictionary), known.indices.to_numpy().astype(np.int64)
    low, many = span
    values, rows = _integers(column), len(column)
    code, kind = values - low if low else values, np.int32 if rows < 1 << 31 else np.int64
    first = np.full(many, -1, kind)
    first[code[::-1]] = np.arange(rows - 1, -1, -1, dtype=kind)  # the first row is assigned last
    there = np.flatnonzero(first >= 0)
    met = np.zeros(rows, np.bool_)
    met[first[there]] = True
    number = np.cumsum(met, dtype=kind)
    table = np.zeros(many, np.int64)
    table[there] = number[first[there]] - 1
    return _Words(column.filter(pa.array(met))), table[code]


def _span(column: pa.Array) -> tuple[int, int] | None:
    """Returns the smallest of integers without NULL, and the size of their range; None for other columns."""
    if not pa.types.is_integer(column.type) or column.null_count or not len(column):
        return None
    ends = pc.min_max(column).as_py()
    if ends["max"] >= 1 << 62 or ends["min"] <= -(1 << 62):
        return None
    return ends["min"], ends["max"] - ends["min"] + 1


def _integers(column: pa.Array) -> Places:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


def _comparable(column: pa.Array) -> pa.Array:
    """Makes equal keys equal: both zeros of a float, all NaNs, and arrays (of keyless tables) as text."""
    column = one_zero(column)
    if pa.types.is_list(column.type):
        from ..model.types import spark_type
        from ..wire.keylog_render import value_text
        from ..wire.keylog_values import KeyLogField

        return value_text(column, KeyLogField("", spark_type(column.type)))
    return column
