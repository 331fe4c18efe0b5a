"""Completes sparse images: columns that an image does not have are filled from earlier images."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..model.mask import pack
from .change_arrays import ChangeArrays
from .chunked_take import take_rows
from .key_timelines import KeyTimelines


def rebuild(changes: ChangeArrays, *, base: pa.Table | None = None) -> pa.Table:
    """Returns the change table with complete images, as far as the values are known.

    A missing column has the value of the row's previous image or of the base, unless the change mask marks it
    as changed. Images whose row is unknown stay as they are.

    Returns:
        The rows of `changes` in commit order with all their columns. `column_mask` is NULL if all columns are
            known now, otherwise it has those that are.
    """
    lines = KeyTimelines.of(changes, base)
    rows, name = changes.rows, changes.header("column_mask")
    if name not in rows.column_names or not len(changes):
        return rows
    own = np.flatnonzero(lines.at >= 0)
    at = lines.at[own]
    known = np.ones((len(changes), len(changes.columns)), np.bool_)
    for k, column in enumerate(changes.columns):
        place = np.full(len(changes), -1, np.int64)
        place[at] = lines.source(column)[own]
        known[at, k] = place[at] >= 0
        values = take_rows(lines.values[column], place).cast(rows.schema.field(column).type)
        rows = rows.set_column(rows.column_names.index(column), column, values)
    masks = pack(known, changes.ordinals)
    full = pa.array(known.all(axis=1))
    masks = pc.if_else(full, pa.nulls(len(masks), pa.binary()), masks)
    return rows.set_column(rows.column_names.index(name), name, masks)
