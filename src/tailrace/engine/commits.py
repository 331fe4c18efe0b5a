"""Result columns that identify the commit of a change, with the names of Spark's changelog."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .change_arrays import ChangeArrays, Ints
from .chunked_take import ChunkedTake

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
INSERTED, DELETED, PREIMAGE, POSTIMAGE = "insert", "delete", "update_preimage", "update_postimage"
UPDATED, TRUNCATED = "update", "truncate"
"""`truncate` is not a change type of Spark: it removed all earlier rows."""
TIME = pa.timestamp("us", "UTC")


def commit_columns(changes: ChangeArrays, at: Ints) -> dict[str, pa.Array]:
    """Returns version and time of the transactions of these rows.

    The version is the transaction's last `change_seq` in the table (a string whose text order is commit
    order); the time is that of the same row.
    """
    last = ChunkedTake(changes.commit_end(at))
    times = changes.column("timestamp")
    when = pa.nulls(len(at), TIME) if times is None else last.of(times)
    return {COMMIT_VERSION: last.of(changes.seq), COMMIT_TIMESTAMP: when}


def first_word(*chosen: tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], str], other: str) -> pa.Array:
    """Returns for each row the value of the first flag that is set.

    >>> first_word((np.array([True, False]), "insert"), other="delete").to_pylist()
    ['insert', 'delete']
    """
    names = pa.array([*(word for _, word in chosen), other])
    place = np.select([flag for flag, _ in chosen], np.arange(len(chosen)), len(chosen))
    return names.take(pa.array(place))
