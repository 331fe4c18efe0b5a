"""Queries over keyless tables, whose rows form a multiset: a row is identified by all of its values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..errors import BaselineNeededError, UnsupportedError
from .change_arrays import B, ChangeArrays, Codes, D, I, Ints, T, U
from .columns import one
from .commits import (
    CHANGE_TYPE,
    DELETED,
    INSERTED,
    POSTIMAGE,
    PREIMAGE,
    TRUNCATED,
    commit_columns,
    first_word,
)
from .key_timelines import ABSENT, KEY_HINT
from .keys import Keys, nth
from .net import RESULT_COLUMNS, refuse_unknown_mode
from .reserved_names import refuse_reserved


def as_keyed(changes: ChangeArrays) -> ChangeArrays:
    """Returns the changes with all columns as the key, for queries that treat each change separately.

    Raises:
        UnsupportedError: an update has no before image, or an image has missing columns.
    """
    refuse_ambiguous(changes)
    return replace(changes, key=changes.columns)


def refuse_ambiguous(changes: ChangeArrays) -> None:
    """Raises UnsupportedError for changes that do not identify their row in a keyless table."""
    alone = (changes.oper == U).sum() > len(changes.befores)
    if alone or changes.sparse:
        what = "an update has no before image" if alone else "images have missing columns"
        raise UnsupportedError(
            f"the table has no key, and {what}: the changed row is unknown",
            hint=f"set REPLICA IDENTITY FULL at the source; for existing changes, {KEY_HINT}",
        )


def net_of_keyless(
    changes: ChangeArrays, *, base: pa.Table | None = None, mode: str = "netChanges", updates: bool = True
) -> pa.Table:
    """Returns the changes of a keyless table in the form of `engine.net.net`.

    Net changes are the added or removed copies of each row, as inserts and deletes only.
    """
    refuse_unknown_mode(mode)
    refuse_reserved("net", changes.columns, RESULT_COLUMNS, changes.name)
    refuse_ambiguous(changes)
    if mode == "netChanges":
        return _net_rows(changes, base)
    keep = np.ones(len(changes), np.bool_)
    if mode == "dropCarryovers" and len(changes):
        number = Keys([one(changes.rows[n]) for n in changes.columns]).place
        same = np.flatnonzero(
            (changes.oper[:-1] == B) & (changes.oper[1:] == U) & (number[:-1] == number[1:])
        )
        keep[same] = keep[same + 1] = False
    return _rows(
        changes, changes.rows, np.flatnonzero(keep), np.flatnonzero(keep), changes.oper[keep], updates
    )


def _net_rows(changes: ChangeArrays, base: pa.Table | None) -> pa.Table:
    cut = changes.truncates[-1] if len(changes.truncates) else -1
    own = np.flatnonzero((changes.oper != T) & (np.arange(len(changes)) > cut))
    data = changes.rows.select(list(changes.columns))
    at, sign = own, np.where((changes.oper[own] == D) | (changes.oper[own] == B), -1, 1)
    rows = data.take(pa.array(own))
    if cut >= 0 and base is not None:
        gone = base.select(list(changes.columns)).cast(data.schema)
        rows = pa.concat_tables([gone, rows])
        at = np.concatenate([np.full(gone.num_rows, cut), at])
        sign = np.concatenate([np.full(gone.num_rows, -1), sign])
    rows = rows.combine_chunks()
    place, count, last = count_copies(rows, sign)
    many = np.abs(count)
    shown = np.repeat(np.arange(len(count)), many)
    oper = np.where(count[shown] > 0, I, D)
    picked, at = place[shown], at[last[shown]] if len(shown) else np.zeros(0, np.int64)
    order = np.argsort(at, kind="stable")
    found = _rows(changes, rows, picked[order], at[order], oper[order], False)
    if cut >= 0 and base is None:
        first = _rows(changes, data.slice(0, 0), np.full(1, -1), np.full(1, cut), np.full(1, T), False)
        found = pa.concat_tables([first, found])
    return found


def count_copies(rows: pa.Table, sign: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns for each distinct row its first index, the number of copies added or removed, and its last
    index."""
    if not rows.num_rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    number = Keys([one(rows[n]) for n in rows.column_names]).place
    _, first, place = np.unique(number, return_index=True, return_inverse=True)
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, place, np.arange(len(place)))
    return first, np.bincount(place, weights=sign, minlength=len(first)).astype(np.int64), last


def _rows(
    changes: ChangeArrays, rows: pa.Table, picked: Ints, at: Ints, oper: Codes | Ints, updates: bool
) -> pa.Table:
    kind = first_word(
        (oper == T, TRUNCATED),
        ((oper == B) & updates, PREIMAGE),
        ((oper == U) & updates, POSTIMAGE),
        ((oper == D) | (oper == B), DELETED),
        other=INSERTED,
    )
    place = pa.array(picked, mask=(oper == T) | (picked < 0))
    result = {n: one(rows[n]).take(place) for n in changes.columns}
    result |= {ABSENT: pa.nulls(len(picked), pa.list_(pa.string())), CHANGE_TYPE: kind}
    return pa.table(result | commit_columns(changes, at))


class KeylessState:
    """Rows of a keyless table after changes: removes copies from its batches, then adds the new ones.

    >>> from .change_arrays import ChangeArrays
    >>> rows = pa.table({"header__change_seq": ["1"], "header__change_oper": ["D"], "v": [7]})
    >>> state = KeylessState(ChangeArrays.of(rows, []))
    >>> state.left(pa.record_batch({"v": [7, 7, 8]}))["v"].to_pylist(), state.more().num_rows
    ([7, 8], 0)
    """

    def __init__(self, changes: ChangeArrays) -> None:
        refuse_ambiguous(changes)
        self._whole = not len(changes.truncates)
        cut = -1 if self._whole else changes.truncates[-1]
        own = np.flatnonzero((changes.oper != T) & (np.arange(len(changes)) > cut))
        rows = changes.rows.select(list(changes.columns)).take(pa.array(own)).combine_chunks()
        sign = np.where((changes.oper[own] == D) | (changes.oper[own] == B), -1, 1)
        first, count, _ = count_copies(rows, sign)
        fewer = np.flatnonzero(count < 0)
        self._left = -count[fewer]
        gone = rows.take(pa.array(first[fewer]))
        self._keys = Keys([one(gone[n]) for n in gone.column_names]) if len(fewer) else None
        # `Keys` numbers values in its own order.
        if self._keys is not None:
            left = np.empty(len(fewer), np.int64)
            left[self._keys.place] = self._left
            self._left = left
        more = np.flatnonzero(count > 0)
        self._more = rows.take(pa.array(np.repeat(first[more], count[more])))

    def left(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of a batch of earlier rows that the changes did not remove."""
        if not self._whole:
            return batch.slice(0, 0)
        if self._keys is None or not batch.num_rows:
            return batch
        found = self._keys.find([batch[n] for n in self._more.column_names])
        gone = (found >= 0) & (nth(found) < self._left[np.maximum(found, 0)])
        np.subtract.at(self._left, found[gone], 1)
        return batch.filter(pa.array(~gone))

    def more(self) -> pa.Table:
        """Returns the rows that the changes added; to be called after all batches.

        Raises:
            BaselineNeededError: rows that the changes removed were not in the batches.
        """
        if missing := int(self._left.sum()) if self._whole else 0:
            raise BaselineNeededError(
                f"{missing:,} rows that changes delete do not exist",
                hint="load a new baseline (`tailrace resync`)",
            )
        return self._more
