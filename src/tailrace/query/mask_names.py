"""Column names instead of a change table's masks."""

from __future__ import annotations

import pyarrow as pa

from ..engine.change_arrays import ChangeArrays
from ..engine.columns import MaskBits
from ..engine.lines import named
from ..engine.own_names import refuse_taken

_NAMES = {"change_mask": "columns_changed", "column_mask": "columns_present"}


def with_names(found: ChangeArrays) -> pa.Table:
    """Returns the rows of `found` with lists of column names instead of masks.

    Raises:
        ConfigError: a data column has the name of such a list.
    """
    rows = found.rows
    masks = {found.header(m): n for m, n in _NAMES.items() if found.header(m) in rows.column_names}
    refuse_taken("changes", found.columns, masks.values(), found.name)
    for mask, name in masks.items():
        bits = MaskBits.of(rows[mask], found.ordinals, null=False)
        nulls = rows[mask].is_null().to_numpy()
        names = named(bits.bits[bits.codes], found.columns, nulls)
        rows = rows.set_column(rows.column_names.index(mask), name, names)
    return rows
