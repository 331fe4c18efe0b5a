"""Cleans the events of a stored history, and decides ties between them.

An event is a row of data columns with a key, a sequence and an operation. The result depends neither on the
order of the events nor on repetitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..model.mask import pack
from ..wire.row_hashes import Words, hashes, one_zero
from .change_arrays import WHY, Bools, Ints
from .columns import one
from .keys import Keys

SEQUENCE, OPERATION, CARRIES, TIME = "__sequence", "__operation", "__carries", "__time"
"""Columns in addition to the data: the sequence (any ordered type); `U` (upsert), `D` (delete) or `T`
(truncate); the data columns in the image (a mask, bit n is data column n; NULL: all); the time (timestamp,
UTC)."""
UPSERT_EVENT, DELETE_EVENT, TRUNCATE_EVENT = "U", "D", "T"
NO_SEQUENCE, NAN_SEQUENCE, NO_KEY, NO_OPERATION, TIED, TOO_LATE = (
    "NULL as its sequence: its position in the order is unknown",
    "NaN as its sequence, which has no order",
    "NULL in the key",
    "its operation is none of U, D, T",
    "another event has the same key and sequence",
    "older than the events that the history keeps",
)


@dataclass(frozen=True)
class CleanedEvents:
    """Valid events, and rejected ones with the reason in `WHY`."""

    events: pa.Table
    aside: pa.Table


def event_schema(data: pa.Schema, sequence: pa.DataType) -> pa.Schema:
    """Returns the columns of an event table."""
    return pa.schema(
        [
            *data, pa.field(SEQUENCE, sequence), pa.field(OPERATION, pa.string()),
            pa.field(CARRIES, pa.binary()), pa.field(TIME, pa.timestamp("us", "UTC")),
        ]
    )  # fmt: skip


def clean_events(events: pa.Table, key: Sequence[str]) -> CleanedEvents:
    """Rejects events without key, sequence or known operation, and those that have a reason in `WHY` already.

    Deletes are reduced to their key, and truncates to nothing, so that equal events are equal rows.
    """
    reasons = pa.nulls(events.num_rows, pa.string())
    if WHY in events.column_names:
        reasons, events = one(events[WHY]), events.drop_columns([WHY])
    oper = one(events[OPERATION])
    truncate = _equals(oper, TRUNCATE_EVENT)
    keyless = np.zeros(events.num_rows, np.bool_)
    for name in key:
        keyless |= one(events[name]).is_null().to_numpy(zero_copy_only=False)
    sequence = one(events[SEQUENCE])
    known = _equals(oper, UPSERT_EVENT) | _equals(oper, DELETE_EVENT) | truncate
    for odd, why in (
        (sequence.is_null().to_numpy(zero_copy_only=False), NO_SEQUENCE),
        (sequence.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), NAN_SEQUENCE),
        (~known, NO_OPERATION),
        (keyless & ~truncate, NO_KEY),
    ):
        if odd.any():
            reasons = pc.if_else(pc.and_(pa.array(odd), reasons.is_null()), why, reasons)
    if reasons.null_count == len(reasons):
        return CleanedEvents(_without_unused(events, key), events[:0].append_column(WHY, reasons[:0]))
    bad = reasons.is_valid()
    aside = events.filter(bad).append_column(WHY, reasons.filter(bad))
    return CleanedEvents(_without_unused(events.filter(reasons.is_null()), key), aside)


def reject_late(found: CleanedEvents, horizon: pa.Scalar) -> CleanedEvents:
    """Rejects events before the oldest event that is kept; `horizon` is NULL if all are kept."""
    if not horizon.is_valid:
        return found
    late = pc.less(found.events[SEQUENCE], horizon)
    aside = found.events.filter(late)
    aside = aside.append_column(WHY, pa.repeat(TOO_LATE, aside.num_rows))
    return CleanedEvents(found.events.filter(pc.invert(late)), pa.concat_tables([found.aside, aside]))


def _without_unused(events: pa.Table, key: Sequence[str]) -> pa.Table:
    """Returns the events without values that have no meaning."""
    oper = one(events[OPERATION])
    truncate, gone = _equals(oper, TRUNCATE_EVENT), _equals(oper, DELETE_EVENT)
    for name in events.column_names:
        if name in (SEQUENCE, OPERATION, TIME):
            continue
        empty = truncate if name in key else truncate | gone
        if empty.any():
            column = one(events[name])
            kept = pc.if_else(pa.array(empty), pa.nulls(len(column), column.type), column)
            events = events.set_column(events.column_names.index(name), name, kept)
    return events


def ignore_nulls(events: pa.Table, data: Sequence[str], ignored: Sequence[str]) -> pa.Table:
    """Marks NULLs in `ignored` columns as missing from the images, in addition to existing masks."""
    carries = np.ones((events.num_rows, len(data)), np.bool_)
    for name in ignored:
        carries[:, data.index(name)] = one(events[name]).is_valid().to_numpy(zero_copy_only=False)
    masks = pack(carries, range(len(data)))
    full = pa.array(carries.all(axis=1) | ~_equals(one(events[OPERATION]), UPSERT_EVENT))
    masks = pc.if_else(full, pa.nulls(len(masks), pa.binary()), masks)
    return events.set_column(events.column_names.index(CARRIES), CARRIES, masks)


def ranks(*columns: pa.Array) -> list[Ints]:
    """Returns the rank of each value among the distinct values of all columns; NULL is last.

    >>> [found.tolist() for found in ranks(pa.array([20, 10]), pa.array([None, 20]))]
    [[1, 0], [2, 1]]
    >>> [found.tolist() for found in ranks(pa.array([1.0, 0.0, -0.0]), pa.array([-0.0]))]
    [[1, 0, 0], [0]]
    """
    both = one_zero(pa.concat_arrays([c.cast(columns[0].type) for c in columns]))
    found = _in_order(both)
    if found is None:
        known = both.dictionary_encode()
        order = pc.sort_indices(known.dictionary).to_numpy()
        place = np.empty(len(order) + 1, np.int64)
        place[order] = np.arange(len(order))
        place[-1] = len(order)
        found = place[known.indices.fill_null(len(order)).to_numpy()]
    ends = np.cumsum([len(c) for c in columns])
    return np.split(found, ends[:-1])


def _in_order(values: pa.Array) -> Ints | None:
    """Returns the ranks of values that are in order already, as most events are; None for others."""
    if values.null_count or len(values) < 2:
        return None
    if not pc.all(pc.less_equal(values[:-1], values[1:])).as_py():
        return None
    new = pc.less(values[:-1], values[1:]).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(new)])


def number_keys(key: Sequence[str], *tables: pa.Table) -> list[Ints]:
    """Returns the number of each row's key, the same in all tables."""
    columns = [pa.concat_arrays([one(t[name]) for t in tables]) for name in key]
    ends = np.cumsum([t.num_rows for t in tables])
    place = Keys(columns).place if ends[-1] else np.zeros(0, np.int64)
    return np.split(place, ends[:-1])


def event_hashes(events: pa.Table) -> Words:
    """Returns a hash of each event without its time, which may differ for the same event."""
    return hashes([one(events[n]) for n in events.column_names if n != TIME])


def decide_ties(events: pa.Table, key: Sequence[str]) -> tuple[pa.Table, Bools, Bools]:
    """Returns the events that count, ordered by sequence: one per key and sequence.

    A truncate wins over all events with its sequence, and a delete over upserts. Of several upserts, their
    contents choose one, whatever their order.

    Returns:
        The events; which of the given ones lost against others; and which are duplicates.
    """
    many = events.num_rows
    oper = one(events[OPERATION])
    truncate = _equals(oper, TRUNCATE_EVENT)
    number = np.where(truncate, -1, number_keys(key, events)[0])
    (rank,) = ranks(one(events[SEQUENCE]))
    lost = np.isin(rank, np.unique(rank[truncate])) & ~truncate
    again = np.zeros(many, np.bool_)
    order = np.lexsort((number, rank))
    same = (np.diff(rank[order]) == 0) & (np.diff(number[order]) == 0)
    if same.any():
        tied = np.zeros(many, np.bool_)
        tied[1:] |= same
        tied[:-1] |= same
        rows = order[tied]
        contents = event_hashes(events.take(pa.array(rows)))
        inner = np.lexsort((contents, _equals(oper, DELETE_EVENT)[rows], number[rows], rank[rows]))
        rows, contents = rows[inner], contents[inner]
        next_same = np.append((np.diff(rank[rows]) == 0) & (np.diff(number[rows]) == 0), False)
        twice = np.append(contents[1:] == contents[:-1], False) & next_same
        again[rows[twice]] = True
        lost[rows[next_same & ~twice]] = True
        lost[again] = False
    kept = order[~(lost | again)[order]]
    return events.take(pa.array(kept)), lost, again


def _equals(oper: pa.Array, letter: str) -> Bools:
    found: Bools = pc.equal(oper, letter).fill_null(False).to_numpy(zero_copy_only=False)
    return found
