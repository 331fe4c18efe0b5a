"""Computes the rows of a table after changes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import BaselineNeededError
from ..execution import thread_pool
from .change_arrays import SMALL_BATCH, ChangeArrays
from .key_timelines import ABSENT, ABSENT_HEADER, KeyTimelines


def state_at(changes: ChangeArrays, base: pa.Table | None = None) -> pa.Table:
    """Returns the table's rows after the changes.

    Args:
        changes: the changes up to the requested position.
        base: the table's rows before the first of them; None if it was empty.

    Returns:
        The data columns, one row per key; `_absent` (list of strings: columns with unknown values, NULL if
            none). Values are unknown only if a change applies to a row that is not in the base.
    """
    return _state(changes, base).rename_columns([*changes.columns, ABSENT])


def _state(changes: ChangeArrays, base: pa.Table | None) -> pa.Table:
    """Returns the rows with `ABSENT_HEADER`."""
    nothing = changes.rows.select(list(changes.columns))[:0]
    with thread_pool("state", worth=len(changes) > SMALL_BATCH) as pool:
        parts = KeyTimelines.parts(changes, nothing if base is None else base, pool)
        return pa.concat_tables(pool.map(_rows_after, parts))


def _rows_after(lines: KeyTimelines) -> pa.Table:
    """Returns the rows of a part that no change ended."""
    begins, ends = lines.versions
    return lines.take(begins[ends < 0])


def complete_state(changes: ChangeArrays, base: pa.Table | None, where: str) -> pa.Table:
    """Returns the rows of `state_at` without `_absent`; all values are known.

    Raises:
        BaselineNeededError: a value is unknown.
    """
    rows = _state(changes, base)
    unknown = rows.num_rows - rows[ABSENT_HEADER].null_count
    if unknown:
        names = sorted(pc.unique(pc.list_flatten(rows[ABSENT_HEADER])).to_pylist())
        raise BaselineNeededError(
            f"{unknown:,} rows have columns with unknown values ({', '.join(names)})",
            where=where,
            hint="choose a position after a baseline, or call `engine.state_at`, which marks unknown values",
        )
    return rows.drop_columns([ABSENT_HEADER])
