"""Looks up rows by their key among changes, whole columns at a time, whatever columns the key has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Places = npt.NDArray[np.int64]


class Keys:
    """The changes' keys, numbered, to look rows up: `find` says which number a row's key has, -1 for none.

    `place` is the number of each change's key, `last` the last change of each number; `order` has the changes
    in order, when they are not in order already. NULL is a value like others.

    >>> keys = Keys([pa.array([7, 7, 9, 7]), pa.array(["a", "b", "a", "b"])])
    >>> keys.place.tolist(), keys.last.tolist()
    ([0, 1, 2, 1], [0, 3, 2])
    >>> keys.find([pa.array([9, 7, 9, None]), pa.array(["a", "b", "b", "a"])]).tolist()
    [2, 1, -1, -1]
    """

    def __init__(self, columns: Sequence[pa.Array], order: Places | None = None) -> None:
        self._steps: list[tuple[pa.Array, Places]] = []
        place = np.zeros(len(columns[0]), np.int64)
        for column in columns:
            known = _comparable(column).dictionary_encode(null_encoding="encode")
            words = known.dictionary
            code = place * len(words) + known.indices.to_numpy()
            # The words of the first column are numbered already; later ones make pairs, numbered anew.
            pairs = np.unique(code) if self._steps else np.arange(len(words))
            place = np.searchsorted(pairs, code) if self._steps else code
            self._steps.append((words, pairs))
        order = np.arange(len(place)) if order is None else order
        self.place = place
        self.last = np.empty(len(self._steps[-1][1]), np.int64)
        self.last[place[order]] = order  # NumPy keeps the last of several values for one place

    def find(self, columns: Sequence[pa.Array]) -> Places:
        """Per row, the number of its key, or -1."""
        (words, _), *rest = self._steps
        place = _index(columns[0], words)
        for column, (words, pairs) in zip(columns[1:], rest, strict=True):
            index = _index(column, words)
            code = np.where((place < 0) | (index < 0), -1, place * len(words) + index)
            at = np.minimum(np.searchsorted(pairs, code), len(pairs) - 1)
            place = np.where(pairs[at] == code, at, -1)
        return place


def _comparable(column: pa.Array) -> pa.Array:
    """Both zeros of a float are one key; arrays, in tables without key, are their texts."""
    if pa.types.is_list(column.type):
        from ..model.types import spark_type
        from ..wire.keylog_render import value_text
        from ..wire.keylog_values import KeyLogField

        return value_text(column, KeyLogField("", spark_type(column.type)))
    return pc.add(column, pa.scalar(0, column.type)) if pa.types.is_floating(column.type) else column


def _index(column: pa.Array, words: pa.Array) -> Places:
    found = pc.index_in(_comparable(column), value_set=words).fill_null(-1)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)
