"""Takes rows from chunked columns without concatenating the chunks of a change table's files."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]


class ChunkedTake:
    """Takes rows at indexes (-1 is NULL). Their distribution over chunks is computed once for all columns.

    >>> ChunkedTake(np.array([3, -1, 0])).of(pa.chunked_array([[7, 8], [9, 10]])).to_pylist()
    [10, None, 7]
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self._none = places < 0 if len(places) and places.min() < 0 else None
        self._ways: dict[tuple[int, ...], _ByChunk] = {}

    def of(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Returns the values of a column."""
        chunks = [column] if isinstance(column, pa.Array) else column.chunks
        if len(chunks) == 1:
            return chunks[0].take(self._masked(self.places))
        if not any(len(c) for c in chunks) or not len(self.places):
            return pa.nulls(len(self.places), column.type)
        sizes = tuple(map(len, chunks))
        if sizes not in self._ways:
            self._ways[sizes] = _ByChunk(self.places, sizes)
        found, back = self._ways[sizes].of(chunks)
        if back is None and self._none is None:
            return found
        return found.take(self._masked(np.arange(len(found)) if back is None else back))

    def _masked(self, places: Places) -> pa.Array:
        return pa.array(places) if self._none is None else pa.array(places, mask=self._none)


class _ByChunk:
    """Indexes per chunk, and the permutation back to their order (None if it is the same)."""

    def __init__(self, places: Places, sizes: tuple[int, ...]) -> None:
        ends = np.cumsum(sizes)
        chunk = np.searchsorted(ends, np.maximum(places, 0), side="right")
        self._back: Places | None = None
        cuts = np.concatenate([[0], np.cumsum(np.bincount(chunk, minlength=len(sizes)))])
        if (chunk[1:] < chunk[:-1]).any():
            order = np.argsort(chunk.astype(np.uint16 if len(sizes) < 1 << 16 else np.int64), kind="stable")
            places = places[order]
            self._back = np.empty(len(order), np.int64)
            self._back[order] = np.arange(len(order))
        starts = ends - np.array(sizes)
        self._parts = [
            (k, pa.array(np.maximum(places[a:b] - starts[k], 0)))
            for k, (a, b) in enumerate(pairwise(cuts))
            if b > a
        ]

    def of(self, chunks: list[pa.Array]) -> tuple[pa.Array, Places | None]:
        return pa.concat_arrays([chunks[k].take(places) for k, places in self._parts]), self._back


def take_rows(column: pa.Array | pa.ChunkedArray, places: Places) -> pa.Array:
    """Returns the values of one column at these indexes; NULL for -1."""
    return ChunkedTake(places).of(column)
