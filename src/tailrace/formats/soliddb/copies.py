"""Records that come again: those of a file that was delivered twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...wire.soliddb_rows import Bools
from .log import COLUMNS

_FIRST = ["LOGADDR", *(c for c in COLUMNS if c != "LOGADDR")]
"""Places first: where no two are equal, nothing else is looked at."""


class Once:
    """Tells the records of a task from their copies, batch by batch. They are ordered (`pairs.ordered`), so a
    copy is directly behind the record that it is equal to in all columns of SYS_LOG."""

    def __init__(self) -> None:
        self._last: pa.RecordBatch | None = None

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The records of the next batch, and those that are copies."""
        n = batch.num_rows
        if not n:
            return batch, batch
        copy = np.zeros(n, np.bool_)
        copy[1:] = _equal(batch.slice(0, n - 1), batch.slice(1))
        if self._last is not None:
            copy[:1] = _equal(self._last, batch.slice(0, 1))
        self._last = batch.slice(n - 1)
        if not copy.any():
            return batch, batch.slice(n)
        return batch.filter(pa.array(~copy)), batch.filter(pa.array(copy))


def _equal(some: pa.RecordBatch, others: pa.RecordBatch) -> Bools:
    """Row by row, whether all columns are equal."""
    same: Bools = np.ones(some.num_rows, np.bool_)
    for name in _FIRST:
        if not same.any():
            break
        same &= equal(some[name], others[name])
    return same


def equal(a: pa.Array, b: pa.Array) -> Bools:
    """Value by value, whether two columns are equal; NULL is a value like others.

    >>> equal(pa.array([1, 2, None, None]), pa.array([1, 3, None, 4])).tolist()
    [True, False, True, False]
    """
    both = pc.or_(pc.fill_null(pc.equal(a, b), False), pc.and_(a.is_null(), b.is_null()))
    found: Bools = both.to_numpy(zero_copy_only=False)
    return found
