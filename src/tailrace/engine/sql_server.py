"""Net changes in the three styles of SQL Server's `fn_cdc_get_net_changes`: one row per key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import ConfigError
from .change_arrays import ChangeArrays
from .commits import CHANGE_TYPE, COMMIT_VERSION, DELETED, INSERTED, POSTIMAGE, PREIMAGE, TRUNCATED
from .equal_values import values_differ
from .key_timelines import ABSENT, contains_name, list_names
from .net import net_parts
from .reserved_names import refuse_reserved

Style = Literal["all", "all with mask", "all with merge"]
STYLES: tuple[Style, ...] = ("all", "all with mask", "all with merge")
START_LSN, OPERATION, UPDATE_MASK = "__$start_lsn", "__$operation", "__$update_mask"
RESULT_COLUMNS = (START_LSN, OPERATION, UPDATE_MASK, ABSENT)
"""Columns of a result in addition to the data."""
_CODES = {TRUNCATED: 0, DELETED: 1, INSERTED: 2, POSTIMAGE: 4}
_MERGE = 5


def net_changes(changes: ChangeArrays, style: Style = "all", *, base: pa.Table | None = None) -> pa.Table:
    """Returns at most one row per key, to be applied to a copy of the table from before the range.

    Args:
        changes: the range.
        style: `all`; `all with mask`, with the changed columns of updates; `all with merge`, with inserts and
            updates as one operation.
        base: the table's rows before the range.

    Returns:
        `__$start_lsn` (string: the `_commit_version` of the key's last change), `__$operation` (int: 1
            delete, 2 insert, 4 update, 5 insert or update; 0 for a truncate, which SQL Server does not have
            and which is applied first), `__$update_mask` (list of column names: with `all with mask` the
            columns of an update whose values differ or were unknown; else NULL), the data columns (for a
            delete, those of the row before the range), `_absent` (see `net`).

    Raises:
        ConfigError: a data column has the name of a column of the result, or the style is unknown.
    """
    if style not in STYLES:
        raise ConfigError(f"there is no style {style!r}", hint=f"use one of {', '.join(STYLES)}")
    refuse_reserved("net_changes", changes.columns, RESULT_COLUMNS, changes.name)
    data, own = net_parts(changes, base)
    kind = own[CHANGE_TYPE]
    pre = pc.equal(kind, PREIMAGE).to_numpy(zero_copy_only=False)
    masks = pa.nulls(len(kind), pa.list_(pa.string()))
    if style == "all with mask":
        masks = _masks(data, own[ABSENT], np.flatnonzero(pre))
    codes = _CODES if style != "all with merge" else _CODES | {INSERTED: _MERGE, POSTIMAGE: _MERGE}
    number = pa.array(list(codes.values()), pa.int32()).take(
        pc.index_in(kind, value_set=pa.array(list(codes)))
    )
    combined = {START_LSN: own[COMMIT_VERSION], OPERATION: number, UPDATE_MASK: masks}
    combined |= data | {ABSENT: own[ABSENT]}
    return pa.table(combined).filter(pa.array(~pre))


def _masks(
    data: Mapping[str, pa.Array], lists: pa.Array, pre: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> pa.Array:
    """Returns the changed columns of updates, whose rows follow their preimages."""
    flags = np.zeros((len(lists), len(data)), np.bool_)
    for k, (name, column) in enumerate(data.items()):
        old, new = column.take(pa.array(pre)), column.take(pa.array(pre + 1))
        unknown = contains_name(lists, name)
        flags[pre + 1, k] = values_differ(old, new, name) | unknown[pre]
    return list_names(flags, list(data))
