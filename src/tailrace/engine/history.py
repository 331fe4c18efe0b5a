"""Computes every version of every changed row, with its period of validity (slowly changing dimension, type
2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import ConfigError
from ..execution import thread_pool
from .change_arrays import SMALL_BATCH, Bools, ChangeArrays, Ints
from .chunked_take import take_rows
from .columns import one
from .commits import TIME
from .equal_values import values_differ
from .fixed_width_texts import to_fixed_width, to_texts
from .key_timelines import ABSENT, KeyTimelines, list_names
from .reserved_names import refuse_reserved

START_AT, END_AT = "__START_AT", "__END_AT"
VALID_FROM, VALID_TO, CURRENT = "valid_from", "valid_to", "is_current"
RESULT_COLUMNS = (ABSENT, VALID_FROM, VALID_TO, CURRENT, START_AT, END_AT)
"""Columns of versions in addition to the data."""


def history(
    changes: ChangeArrays,
    *,
    base: pa.Table | None = None,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    committed: bool = False,
) -> pa.Table:
    """Returns the versions of each key's row, ordered by first occurrence of the key and time.

    Args:
        changes: the changes, from any point in the table's history.
        base: the rows before the changes. Without it, a key whose first change is an update or delete had a
            row.
        track_history_column_list: columns whose change starts a new version; changes of other columns update
            the current version. All columns by default.
        track_history_except_column_list: all columns except these start a new version.
        committed: leaves out versions that were replaced within their transaction, and so never visible.

    Returns:
        The data columns; `_absent` (list of strings: columns with unknown values, NULL: none); `valid_from`
            and `valid_to` (timestamp, UTC: commit times; half-open; `valid_from` NULL: before the changes;
            `valid_to` NULL: still valid); `is_current` (boolean); `__START_AT` and `__END_AT` (string: the
            `change_seq` of both, which also order versions of equal times).

    Raises:
        ConfigError: a data column has the name of a column of the result, or a tracked column does not exist.
    """
    refuse_reserved("history", changes.columns, RESULT_COLUMNS, changes.name)
    tracked = _tracked(changes, track_history_column_list, track_history_except_column_list)
    data, own = history_parts(changes, base, tracked, committed=committed)
    return pa.table(data | own)


def history_parts(
    changes: ChangeArrays,
    base: pa.Table | None,
    tracked: Sequence[str],
    *,
    committed: bool = False,
    unknown_is_null: bool = False,
) -> tuple[dict[str, pa.ChunkedArray], dict[str, pa.ChunkedArray]]:
    """Returns the data columns of versions and `RESULT_COLUMNS` separately, so that names may coincide.

    Args:
        changes: the changes.
        base: the rows before them.
        tracked: the columns, without those of the key, whose change starts a version.
        committed: as in `history`.
        unknown_is_null: treats unknown values as NULL.
    """
    with thread_pool("history", worth=len(changes) > SMALL_BATCH) as pool:
        parts = KeyTimelines.parts(changes, base, pool)
        found = list(pool.map(lambda lines: _Versions.of(lines, committed), parts))

        def columns(wanted: Sequence[pa.ChunkedArray]) -> list[pa.Array]:
            return list(pool.map(lambda column: to_fixed_width(one(column)), wanted))

        def picked_of(column: pa.Array, places: list[Ints]) -> list[pa.Array]:
            return list(pool.map(lambda at: to_texts(take_rows(column, at)), places))

        headers = [c for c in (changes.column("timestamp"), changes.seq) if c is not None]
        *data, seq = columns([*(parts[0].values[n] for n in changes.columns), *headers])
        times = data.pop() if len(headers) == 2 else None
        result = {
            n: picked_of(c, [v.places(n) for v in found]) for n, c in zip(changes.columns, data, strict=True)
        }
        first = list(
            pool.map(
                lambda v, k: v.first({n: result[n][k] for n in tracked}, unknown_is_null),
                found,
                range(len(found)),
            )
        )
        last = [np.append(f[1:], True)[: len(f)] for f in first]
        shown = [None if k.all() else pa.array(k) for k in last]
        result = {
            n: [_filtered(a, k) for a, k in zip(arrays, shown, strict=True)] for n, arrays in result.items()
        }
        own = {ABSENT: [v.absent(k) for v, k in zip(found, last, strict=True)]}
        begin = [v.start[k] for v, k in zip(found, first, strict=True)]
        end = [v.ends[k] for v, k in zip(found, last, strict=True)]
        for name, at in ((VALID_FROM, begin), (VALID_TO, end)):
            own[name] = [pa.nulls(len(p), TIME) for p in at] if times is None else picked_of(times, at)
        own[CURRENT] = [pa.array(p < 0) for p in end]
        for name, at in ((START_AT, begin), (END_AT, end)):
            own[name] = picked_of(seq, at)
    return _joined(result), _joined(own)


def _joined(columns: Mapping[str, list[pa.Array]]) -> dict[str, pa.ChunkedArray]:
    return {name: pa.chunked_array(arrays) for name, arrays in columns.items()}


def _tracked(changes: ChangeArrays, only: Sequence[str] | None, but: Sequence[str] | None) -> list[str]:
    if only is not None and but is not None:
        raise ConfigError(
            "track_history_column_list and track_history_except_column_list are both given", hint="pass one"
        )
    if missing := sorted({*(only or ()), *(but or ())} - {*changes.columns}):
        raise ConfigError(
            f"the table has no column {', '.join(missing)} to track",
            hint=f"columns: {', '.join(changes.columns)}",
        )
    chosen = changes.columns if only is None else only
    return [n for n in chosen if n not in (but or ()) and n not in changes.key]


@dataclass(frozen=True)
class _Versions:
    """The versions of some keys.

    Attributes:
        begins: the image that starts each version.
        start: the row of the change that starts it; -1 if it existed before the changes.
        ends: the row of the change that ends it; -1 if it is current.
    """

    lines: KeyTimelines
    begins: Ints
    start: Ints
    ends: Ints

    @staticmethod
    def of(lines: KeyTimelines, committed: bool) -> _Versions:
        begins, ends = lines.versions
        start = lines.at[begins]
        if committed and len(lines.changes):
            start, ends = (np.where(at < 0, -1, lines.changes.commit_end(at)) for at in (start, ends))
            seen = (start < 0) | (start != ends)
            begins, start, ends = begins[seen], start[seen], ends[seen]
        return _Versions(lines, begins, start, ends)

    def places(self, column: str) -> Ints:
        """Returns the index of a column's value; -1 if unknown."""
        return self.lines.source(column)[self.begins]

    def first(self, tracked: Mapping[str, pa.Array], unknown_is_null: bool) -> Bools:
        """Returns which versions differ from the one before in a tracked column, or do not follow
        directly."""
        lines, begins = self.lines, self.begins
        found = np.ones(len(begins), np.bool_)
        if len(begins) < 2:
            return found
        follows: Bools = lines.key[begins[1:]] == lines.key[begins[:-1]]
        follows &= self.start[1:] == self.ends[:-1]
        for name, values in tracked.items():
            if not follows.any():
                break
            if not unknown_is_null:
                follows &= self._known_alike(name)
            follows &= ~values_differ(values[:-1], values[1:], name)
        found[1:] = ~follows
        return found

    def _known_alike(self, column: str) -> Bools:
        """Returns whether both a version and the one before know a column, or have the same unknown value of
        one row."""
        lines, begins, place = self.lines, self.begins, self.places(column)
        old, new = place[:-1], place[1:]
        unknown = (old < 0) & (new < 0)
        if unknown.any():
            unknown &= lines.life[begins[1:]] == lines.life[begins[:-1]]
        if (lost := lines.lost(column)) is not None:
            unknown &= ~lost[begins[1:]]
        return np.asarray(((old >= 0) & (new >= 0)) | unknown, np.bool_)

    def absent(self, shown: Bools) -> pa.Array:
        """Returns the columns with unknown values of the versions in `shown`."""
        names = self.lines.changes.columns
        return list_names(np.stack([self.places(n)[shown] < 0 for n in names], axis=1), names)


def _filtered(values: pa.Array, shown: pa.Array | None) -> pa.Array:
    return values if shown is None else values.filter(shown)
