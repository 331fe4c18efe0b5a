"""Every version of every row that changed, and when it was in force: a dimension of type 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import ConfigError
from ..execution import thread_pool
from .change_arrays import SMALL, Bools, ChangeArrays, Ints
from .columns import one
from .commits import TIME
from .equal_values import differs
from .even_texts import as_texts, evenly
from .lines import ABSENT, Lines, named
from .own_names import refuse_taken
from .picked import picked

START_AT, END_AT = "__START_AT", "__END_AT"
VALID_FROM, VALID_TO, CURRENT = "valid_from", "valid_to", "is_current"
OWN = (ABSENT, VALID_FROM, VALID_TO, CURRENT, START_AT, END_AT)
"""Columns that versions have next to the data."""


def history(
    changes: ChangeArrays,
    *,
    base: pa.Table | None = None,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    committed: bool = False,
) -> pa.Table:
    """The versions of each key's row, in order of key (as it was met first) and time.

    Args:
        changes: the changes, from anywhere in the table's life.
        base: the rows before them; without, a key whose first change is an update or a delete had a row.
        track_history_column_list: columns whose change begins a new version; a change of others alone is
            written into the version that is there. All columns by default.
        track_history_except_column_list: the same, all columns but these.
        committed: leave out versions that no other transaction could see, as a later change of the same
            transaction replaced them.

    Returns:
        The data columns; `_absent` (list of strings: columns whose values are not known, NULL: all are);
        `valid_from`, `valid_to` (timestamp, UTC: commit times; half-open; `valid_from` NULL: since before the
        changes; `valid_to` NULL: still in force); `is_current` (boolean); `__START_AT`, `__END_AT` (string:
        the `change_seq` of both, which order versions exactly where times are equal).

    Raises:
        ConfigError: a data column has the name of another one of the result; there is none to track.
    """
    refuse_taken("history", changes.columns, OWN, changes.name)
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
    """The data columns of versions, and those of `OWN`, apart: whatever names the data columns have.

    `tracked`: the columns, none of the key, whose change begins a version; `unknown_is_null`: a value that is
    not known is NULL, for those who keep no more than the values.
    """
    with thread_pool("history", worth=len(changes) > SMALL) as pool:
        parts = Lines.parts(changes, base, pool)
        found = list(pool.map(lambda lines: _Versions.of(lines, committed), parts))

        def columns(wanted: Sequence[pa.ChunkedArray]) -> list[pa.Array]:
            return list(pool.map(lambda column: evenly(one(column)), wanted))

        def picked_of(column: pa.Array, places: list[Ints]) -> list[pa.Array]:
            return list(pool.map(lambda at: as_texts(picked(column, at)), places))

        headers = [c for c in (changes.column("timestamp"), changes.seq) if c is not None]
        *data, seq = columns([*(parts[0].values[n] for n in changes.columns), *headers])
        times = data.pop() if len(headers) == 2 else None
        made = {
            n: picked_of(c, [v.places(n) for v in found]) for n, c in zip(changes.columns, data, strict=True)
        }
        first = list(
            pool.map(
                lambda v, k: v.first({n: made[n][k] for n in tracked}, unknown_is_null),
                found,
                range(len(found)),
            )
        )
        last = [np.append(f[1:], True)[: len(f)] for f in first]
        shown = [None if k.all() else pa.array(k) for k in last]
        made = {n: [_kept(a, k) for a, k in zip(arrays, shown, strict=True)] for n, arrays in made.items()}
        own = {ABSENT: [v.absent(k) for v, k in zip(found, last, strict=True)]}
        begin = [v.start[k] for v, k in zip(found, first, strict=True)]
        end = [v.ends[k] for v, k in zip(found, last, strict=True)]
        for name, at in ((VALID_FROM, begin), (VALID_TO, end)):
            own[name] = [pa.nulls(len(p), TIME) for p in at] if times is None else picked_of(times, at)
        own[CURRENT] = [pa.array(p < 0) for p in end]
        for name, at in ((START_AT, begin), (END_AT, end)):
            own[name] = picked_of(seq, at)
    return _joined(made), _joined(own)


def _joined(columns: Mapping[str, list[pa.Array]]) -> dict[str, pa.ChunkedArray]:
    return {name: pa.chunked_array(arrays) for name, arrays in columns.items()}


def _tracked(changes: ChangeArrays, only: Sequence[str] | None, but: Sequence[str] | None) -> list[str]:
    if only is not None and but is not None:
        raise ConfigError(
            "track_history_column_list and track_history_except_column_list are both given", hint="give one"
        )
    if missing := sorted({*(only or ()), *(but or ())} - {*changes.columns}):
        raise ConfigError(
            f"the table has no column {', '.join(missing)} to track",
            hint=f"it has {', '.join(changes.columns)}",
        )
    chosen = changes.columns if only is None else only
    return [n for n in chosen if n not in (but or ()) and n not in changes.key]


@dataclass(frozen=True)
class _Versions:
    """The versions of the keys of a part: the image that begins each, the rows of the changes that begin it
    (-1: it is of before them) and end it (-1: none does)."""

    lines: Lines
    begins: Ints
    start: Ints
    ends: Ints

    @staticmethod
    def of(lines: Lines, committed: bool) -> _Versions:
        begins, ends = lines.versions
        start = lines.at[begins]
        if committed and len(lines.changes):
            start, ends = (np.where(at < 0, -1, lines.changes.commit_end(at)) for at in (start, ends))
            seen = (start < 0) | (start != ends)
            begins, start, ends = begins[seen], start[seen], ends[seen]
        return _Versions(lines, begins, start, ends)

    def places(self, column: str) -> Ints:
        """Where the value of a column stands; -1: it is not known."""
        return self.lines.source(column)[self.begins]

    def first(self, tracked: Mapping[str, pa.Array], unknown_is_null: bool) -> Bools:
        """Which versions differ from the one before them in a tracked column, or do not follow on it."""
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
            follows &= ~differs(values[:-1], values[1:], name)
        found[1:] = ~follows
        return found

    def _known_alike(self, column: str) -> Bools:
        """Whether a version and the one before it both know a column, or lack the same value of one row,
        which no change names."""
        lines, begins, place = self.lines, self.begins, self.places(column)
        old, new = place[:-1], place[1:]
        unknown = (old < 0) & (new < 0)
        if unknown.any():
            unknown &= lines.life[begins[1:]] == lines.life[begins[:-1]]
        if (lost := lines.lost(column)) is not None:
            unknown &= ~lost[begins[1:]]
        return np.asarray(((old >= 0) & (new >= 0)) | unknown, np.bool_)

    def absent(self, shown: Bools) -> pa.Array:
        """The columns that the versions which are shown lack."""
        names = self.lines.changes.columns
        return named(np.stack([self.places(n)[shown] < 0 for n in names], axis=1), names)


def _kept(values: pa.Array, shown: pa.Array | None) -> pa.Array:
    return values if shown is None else values.filter(shown)
