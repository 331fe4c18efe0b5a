"""Every version of every row, and when it was in force: a dimension of type 2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..errors import ConfigError
from .change_arrays import Bools, ChangeArrays, Ints, differs
from .columns import one
from .commits import TIME
from .lines import Lines, taken

START_AT, END_AT = "__START_AT", "__END_AT"
VALID_FROM, VALID_TO, CURRENT = "valid_from", "valid_to", "is_current"


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
    """
    lines = Lines.of(changes, base)
    tracked = _tracked(changes, track_history_column_list, track_history_except_column_list)
    begins, ends = lines.versions
    start = lines.at[begins]
    if committed and len(changes):
        start, ends = (np.where(at < 0, -1, changes.commit_end[at]) for at in (start, ends))
        seen = (start < 0) | (start != ends)
        begins, start, ends = begins[seen], start[seen], ends[seen]
    first = _first(lines, begins, start, ends, tracked)
    last = np.append(first[1:], True)[: len(first)]
    rows = lines.take(begins[last])
    start, ends = start[first], ends[last]
    times = changes.column("timestamp")
    for name, at in ((VALID_FROM, start), (VALID_TO, ends)):
        rows = rows.append_column(name, pa.nulls(len(at), TIME) if times is None else taken(times, at))
    rows = rows.append_column(CURRENT, pa.array(ends < 0))
    for name, at in ((START_AT, start), (END_AT, ends)):
        rows = rows.append_column(name, taken(changes.seq, at))
    return rows


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


def _first(lines: Lines, begins: Ints, start: Ints, ends: Ints, tracked: Sequence[str]) -> Bools:
    """Which versions differ from the one before them in a tracked column, or do not follow on it."""
    found = np.ones(len(begins), np.bool_)
    if len(begins) < 2:
        return found
    follows: Bools = (lines.key[begins[1:]] == lines.key[begins[:-1]]) & (start[1:] == ends[:-1])
    for name in tracked:
        place = lines.source(name)[begins]
        column, old, new = one(lines.values[name]), place[:-1], place[1:]
        # Of one row, a value that is not known before and after is the same one if no change names it.
        unknown = (old < 0) & (new < 0) & (lines.life[begins[1:]] == lines.life[begins[:-1]])
        if (lost := lines.lost(name)) is not None:
            unknown &= ~lost[begins[1:]]
        known = ((old >= 0) & (new >= 0)) | unknown
        follows &= known & ~differs(taken(column, old), taken(column, new))
    found[1:] = ~follows
    return found
