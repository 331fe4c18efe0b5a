"""Incremental updates of a kept history: a batch of events in any order changes some of its versions.

The history of a key is `engine.history` over all of its events in order. Here it is recomputed from the first
event of a batch on, starting from the version that was valid before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..wire.row_hashes import hashes
from .change_arrays import Bools, ChangeArrays, Ints
from .chunked_take import take_rows
from .columns import one
from .history import CURRENT, END_AT, START_AT, VALID_FROM, VALID_TO, history_parts
from .history_events import (
    CARRIES,
    OPERATION,
    SEQUENCE,
    TIME,
    TRUNCATE_EVENT,
    UPSERT_EVENT,
    decide_ties,
    number_keys,
    ranks,
)
from .keys import Keys

SYSTEM_FROM, SYSTEM_TO = "system_from", "system_to"
"""Times when a version was added to a bitemporal history and when it was replaced (timestamp, UTC; NULL: not
replaced)."""
_HEADER = "header__"


@dataclass(frozen=True)
class HistoryRules:
    """Rules of a history.

    Attributes:
        key: names of the key's columns.
        columns: the data columns including the key, in order.
        scd_type: 1, the newest row of each key; 2, every version.
        tracked: columns whose change starts a new version; None for all. Type 1 has one version per life of a
            row.
        timed: versions have `valid_from`, `valid_to` and `is_current`, too.
        bitemporal: replaced versions are kept, with the time of replacement.
    """

    key: tuple[str, ...]
    columns: tuple[str, ...]
    scd_type: int = 2
    tracked: tuple[str, ...] | None = None
    timed: bool = False
    bitemporal: bool = False

    def schema(self, data: pa.Schema, sequence: pa.DataType) -> pa.Schema:
        """Returns the history's columns."""
        time = pa.timestamp("us", "UTC")
        fields = [*data, pa.field(START_AT, sequence), pa.field(END_AT, sequence)]
        if self.timed:
            fields += [pa.field(VALID_FROM, time), pa.field(VALID_TO, time), pa.field(CURRENT, pa.bool_())]
        if self.bitemporal:
            fields += [pa.field(SYSTEM_FROM, time), pa.field(SYSTEM_TO, time)]
        return pa.schema(fields)

    def grown(self, wanted: HistoryRules) -> HistoryRules | None:
        """Returns these rules with the additional columns of others, or None if the others are incompatible.

        Columns that the others do not have stay; events leave them out.

        >>> rules = HistoryRules(("id",), ("id", "name"))
        >>> rules.grown(HistoryRules(("id",), ("id", "title"))).columns
        ('id', 'name', 'title')
        >>> rules.grown(HistoryRules(("name",), ("id", "name"))) is None
        True
        """
        new = tuple(n for n in wanted.columns if n not in self.columns)
        tracked = self.tracked
        if self.tracked is not None and wanted.tracked is not None:
            if {*wanted.tracked} - {*new} != {*self.tracked} & {*wanted.columns}:
                return None
            tracked = self.tracked + tuple(n for n in wanted.tracked if n in new)
        elif self.tracked != wanted.tracked:
            return None
        result = replace(self, columns=self.columns + new, tracked=tracked)
        return result if result == replace(wanted, columns=result.columns, tracked=tracked) else None

    @property
    def opens_versions(self) -> list[str]:
        """Columns whose change starts a version."""
        if self.scd_type == 1:
            return []
        chosen = self.columns if self.tracked is None else self.tracked
        return [n for n in chosen if n not in self.key]

    @property
    def exact(self) -> bool:
        """Whether all values of a row stay the same while its version is valid."""
        return self.scd_type == 2 and {*self.opens_versions, *self.key} == {*self.columns}


def versions(events: pa.Table, rules: HistoryRules) -> pa.Table:
    """Returns the versions of events without an earlier history: `rules.schema` without system times.

    Args:
        events: the result of `history_events.decide_ties`.
        rules: the history's rules.
    """
    many = events.num_rows
    headers = {
        "change_seq": pa.array(np.arange(many)), "change_oper": one(events[OPERATION]),
        "column_mask": one(events[CARRIES]),
    }  # fmt: skip
    data = {n: one(events[n]) for n in rules.columns}
    rows = pa.Table.from_arrays(
        [*headers.values(), *data.values()], [*(_HEADER + n for n in headers), *rules.columns]
    )
    bits = tuple(range(len(rules.columns)))
    changes = ChangeArrays(rows, rules.key, rules.columns, bits, rows[:0], _HEADER)
    nothing = rows.select(list(rules.columns))[:0]
    # Versions do not record unknown values: they are NULL here.
    found, own = history_parts(changes, nothing, rules.opens_versions, unknown_is_null=True)
    start, end = (_image_indexes(own[n]) for n in (START_AT, END_AT))
    if rules.scd_type == 1:
        found = {n: column.filter(pa.array(end < 0)) for n, column in found.items()}
        start, end = start[end < 0], end[end < 0]
    combined = {n: one(found[n]) for n in rules.columns}
    sequence, time = one(events[SEQUENCE]), one(events[TIME])
    combined |= {START_AT: take_rows(sequence, start), END_AT: take_rows(sequence, end)}
    if rules.timed:
        combined |= {
            VALID_FROM: take_rows(time, start),
            VALID_TO: take_rows(time, end),
            CURRENT: pa.array(end < 0),
        }
    return pa.Table.from_arrays([*combined.values()], [*combined])


def _image_indexes(column: pa.ChunkedArray) -> Ints:
    return np.asarray(one(column).fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


@dataclass(frozen=True)
class HistoryUpdate:
    """Changes of a history by a batch.

    Attributes:
        removed: indexes of removed versions among those given.
        added: the new versions: `rules.schema` without system times.
    """

    removed: Ints
    added: pa.Table


def update_history(
    new: pa.Table, known: pa.Table, rows: pa.Table, rules: HistoryRules, since: StartPerKey | None = None
) -> HistoryUpdate:
    """Computes the versions that new events change.

    Args:
        new: the events, cleaned.
        known: earlier events of their keys, and truncates, all from `since` on.
        rows: versions of these keys that are valid at `since` or later, including closed ones.
        rules: the history's rules.
        since: where the recomputation of each key starts; None if `known` and `rows` are complete.
    """
    base = np.zeros(rows.num_rows, np.bool_) if since is None else since.older(rows, START_AT)
    start = _as_events(rows.filter(pa.array(base)), known.schema, rules.timed)
    counted, _, _ = decide_ties(pa.concat_tables([new, known, start]), rules.key)
    result = versions(counted, rules)
    old = hashes([one(rows[n]) for n in result.column_names])
    now = hashes([one(result[n]) for n in result.column_names])
    removed = np.flatnonzero(~np.isin(old, now))
    added = result.filter(pa.array(~np.isin(now, old)))
    return HistoryUpdate(removed, added)


def _as_events(rows: pa.Table, schema: pa.Schema, timed: bool) -> pa.Table:
    """Returns versions as the upserts that started them."""
    result = []
    for field in schema:
        if field.name == SEQUENCE:
            result.append(rows[START_AT])
        elif field.name == TIME and timed:
            result.append(rows[VALID_FROM])
        elif field.name == OPERATION:
            result.append(pa.array(np.full(rows.num_rows, UPSERT_EVENT, object), pa.string()))
        elif field.name in rows.column_names:
            result.append(rows[field.name])
        else:
            result.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(result, schema=schema)


@dataclass(frozen=True)
class StartPerKey:
    """Sequence per key from which its history is recomputed.

    Attributes:
        keys: the key's columns, one row per key, and `SEQUENCE`.
        key: names of the key's columns.
    """

    keys: pa.Table
    key: tuple[str, ...]

    @staticmethod
    def of(events: pa.Table, key: Sequence[str]) -> StartPerKey:
        """Starts each key at its first event; truncates have no key and are left out."""
        own = events.filter(pc.not_equal(events[OPERATION], TRUNCATE_EVENT)).select([*key, SEQUENCE])
        return StartPerKey(_least(own, key), tuple(key))

    @property
    def least(self) -> pa.Scalar:
        """The smallest sequence; NULL without keys."""
        return (
            pc.min(self.keys[SEQUENCE]) if self.keys.num_rows else pa.scalar(None, self.keys[SEQUENCE].type)
        )

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def also(self, other: StartPerKey) -> StartPerKey:
        """Adds other keys, or earlier starts of the same keys."""
        return StartPerKey(_least(pa.concat_tables([self.keys, other.keys]), self.key), self.key)

    def find(self, rows: pa.Table) -> Ints:
        """Returns the index of each row's key; -1 if it is not among these."""
        return self._finder([one(rows[n]) for n in self.key])

    def _finder(self, columns: Sequence[pa.Array]) -> Ints:
        if not len(self) or not len(columns[0]):
            return np.full(len(columns[0]), -1)
        numbered, place = self._numbered
        found = numbered.find(columns)
        return np.where(found >= 0, place[found], -1)

    @cached_property
    def _numbered(self) -> tuple[Keys, Ints]:
        """The numbered keys, and the row index of each number."""
        numbered = Keys([one(self.keys[n]) for n in self.key])
        place = np.empty(len(numbered.last), np.int64)
        place[numbered.place] = np.arange(len(self))
        return numbered, place

    def reached(self, rows: pa.Table, column: str) -> Bools:
        """Returns the rows of these keys whose value is NULL, or at their start or later."""
        place = self.find(rows)
        begin = take_rows(one(self.keys[SEQUENCE]), place)
        later = pc.greater_equal(one(rows[column]), begin).fill_null(True).to_numpy(zero_copy_only=False)
        found: Bools = later & (place >= 0)
        return found

    def older(self, rows: pa.Table, column: str) -> Bools:
        """Returns the rows of these keys whose value is before their start."""
        return (self.find(rows) >= 0) & ~self.reached(rows, column)


def starts_after(events: pa.Table, rows: pa.Table, key: Sequence[str], horizon: pa.Scalar) -> StartPerKey:
    """Returns where keys can be recomputed if events before a sequence were removed.

    That is the sequence, or the start of the version that was valid then, whose events are kept.

    Args:
        events: events of these keys, without truncates.
        rows: their versions.
        key: names of the key's columns.
        horizon: the sequence.
    """
    end = one(rows[END_AT])
    still = pc.or_kleene(end.is_null(), pc.greater_equal(end, horizon))
    begin = rows.filter(pc.and_(pc.less(one(rows[START_AT]), horizon), still))
    begin = begin.select([*key, START_AT]).rename_columns([*key, SEQUENCE])
    every = [
        some.select(list(key)).append_column(SEQUENCE, pa.repeat(horizon, some.num_rows))
        for some in (events, rows)
    ]
    return StartPerKey(_least(pa.concat_tables([begin, *every]).combine_chunks(), key), tuple(key))


def earlier_starts(
    known: pa.Table, rows: pa.Table, rules: HistoryRules, since: StartPerKey
) -> StartPerKey | None:
    """Returns keys that must be recomputed from an earlier start, or None.

    At their start, a version was valid whose row has values of later events, which the versions do not
    separate.
    """
    if rules.exact or not known.num_rows:
        return None
    base = rows.filter(pa.array(since.older(rows, START_AT)))
    inside = known.filter(pc.equal(known[OPERATION], UPSERT_EVENT))
    if rules.scd_type == 1:
        inside = inside.filter(inside[CARRIES].is_valid())
    if not base.num_rows or not inside.num_rows:
        return None
    of, at = number_keys(rules.key, base, inside)
    place = np.full(int(max(of.max(), at.max())) + 1, -1)
    place[of] = np.arange(len(of))
    mine = place[at]
    end, seq = ranks(one(base[END_AT]), one(inside[SEQUENCE]))
    hit = np.unique(mine[(mine >= 0) & (seq < end[mine])])
    if not len(hit):
        return None
    found = base.take(pa.array(hit)).select([*rules.key, START_AT]).rename_columns([*rules.key, SEQUENCE])
    return StartPerKey(found, rules.key)


def _least(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Returns the smallest sequence of each key."""
    if not rows.num_rows:
        return rows
    (number,) = number_keys(key, rows)
    (rank,) = ranks(one(rows[SEQUENCE]))
    order = np.lexsort((rank, number))
    first = np.append(True, np.diff(number[order]) > 0)
    return rows.take(pa.array(order[first]))
