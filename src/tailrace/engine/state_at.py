"""The rows that a table has once changes are done."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import BaselineNeededError
from ..execution import thread_pool
from .change_arrays import SMALL, ChangeArrays
from .lines import ABSENT, ABSENT_THERE, Lines


def state_at(changes: ChangeArrays, base: pa.Table | None = None) -> pa.Table:
    """The table's rows after these changes.

    Args:
        changes: the changes up to the position that is asked for.
        base: the table's rows before the first of them; None: it was empty.

    Returns:
        The data columns, a row a key; `_absent` (list of strings) names columns whose values no image tells,
        NULL when all are known: that happens only where a change met a row that is not in the base.
    """
    return _state(changes, base).rename_columns([*changes.columns, ABSENT])


def _state(changes: ChangeArrays, base: pa.Table | None) -> pa.Table:
    """The rows, with `ABSENT_THERE`."""
    nothing = changes.rows.select(list(changes.columns))[:0]
    with thread_pool("state", worth=len(changes) > SMALL) as pool:
        parts = Lines.parts(changes, nothing if base is None else base, pool)
        return pa.concat_tables(pool.map(_living, parts))


def _living(lines: Lines) -> pa.Table:
    """The rows of a part that no change ended."""
    begins, ends = lines.versions
    return lines.take(begins[ends < 0])


def complete(changes: ChangeArrays, base: pa.Table | None, where: str) -> pa.Table:
    """The rows as `state_at` gives them, without `_absent`: all values are known.

    Raises:
        BaselineNeededError: a value is not known.
    """
    rows = _state(changes, base)
    unknown = rows.num_rows - rows[ABSENT_THERE].null_count
    if unknown:
        names = sorted(pc.unique(pc.list_flatten(rows[ABSENT_THERE])).to_pylist())
        raise BaselineNeededError(
            f"{unknown:,} rows have columns that no image tells ({', '.join(names)})",
            where=where,
            hint="ask from a baseline on, or look at them with their column `_absent`",
        )
    return rows.drop_columns([ABSENT_THERE])
