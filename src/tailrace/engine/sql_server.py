"""Net changes in the three styles of SQL Server's `fn_cdc_get_net_changes`: one row a key."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError
from .change_arrays import ChangeArrays, differs
from .columns import one
from .commits import CHANGE_TYPE, COMMIT_VERSION, DELETED, INSERTED, POSTIMAGE, PREIMAGE, TRUNCATED
from .lines import ABSENT, named
from .net import net

Style = Literal["all", "all with mask", "all with merge"]
STYLES: tuple[Style, ...] = ("all", "all with mask", "all with merge")
START_LSN, OPERATION, UPDATE_MASK = "__$start_lsn", "__$operation", "__$update_mask"
_CODES = {TRUNCATED: 0, DELETED: 1, INSERTED: 2, POSTIMAGE: 4}
_MERGE = 5


def net_changes(changes: ChangeArrays, style: Style = "all", *, base: pa.Table | None = None) -> pa.Table:
    """At most one row for each key: what to do to a copy of the table as it was before the range.

    Args:
        changes: the range.
        style: `all`; `all with mask`, updates with the columns that they changed; `all with merge`, inserts
            and updates are one operation.
        base: the table's rows before the range.

    Returns:
        `__$start_lsn` (string: the `_commit_version` of the last change of the key), `__$operation` (int: 1
        delete, 2 insert, 4 update, 5 insert or update; 0, which SQL Server has not got, for a truncate, to be
        done first), `__$update_mask` (list of column names: with `all with mask` those of an update whose
        values differ or were not known before; else NULL), the data columns (of a delete those it last had
        before the range), `_absent` (see `net`).
    """
    if style not in STYLES:
        raise ConfigError(f"there is no style {style!r}", hint=f"use one of {', '.join(STYLES)}")
    rows = net(changes, base=base)
    kind = one(rows[CHANGE_TYPE])
    pre = pc.equal(kind, PREIMAGE).to_numpy(zero_copy_only=False)
    masks = pa.nulls(len(kind), pa.list_(pa.string()))
    if style == "all with mask":
        masks = _masks(changes, rows, np.flatnonzero(pre))
    codes = _CODES if style != "all with merge" else _CODES | {INSERTED: _MERGE, POSTIMAGE: _MERGE}
    number = pa.array(list(codes.values()), pa.int32()).take(
        pc.index_in(kind, value_set=pa.array(list(codes)))
    )
    made = {START_LSN: rows[COMMIT_VERSION], OPERATION: number, UPDATE_MASK: masks}
    made |= {n: rows[n] for n in (*changes.columns, ABSENT)}
    return pa.table(made).filter(pa.array(~pre))


def _masks(changes: ChangeArrays, rows: pa.Table, pre: np.ndarray[tuple[int], np.dtype[np.intp]]) -> pa.Array:
    """The changed columns of updates, whose rows follow their preimages."""
    flags = np.zeros((rows.num_rows, len(changes.columns)), np.bool_)
    lists = one(rows[ABSENT])
    for k, name in enumerate(changes.columns):
        column = one(rows[name])
        old, new = column.take(pa.array(pre)), column.take(pa.array(pre + 1))
        unknown = _has(lists, name)
        flags[pre + 1, k] = differs(old, new) | unknown[pre]
    return named(flags, changes.columns)


def _has(lists: pa.Array, name: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which lists have a name."""
    found = np.zeros(len(lists), np.bool_)
    hit = pc.equal(lists.flatten(), name)
    found[pc.list_parent_indices(lists).filter(hit).to_numpy()] = True
    return found
