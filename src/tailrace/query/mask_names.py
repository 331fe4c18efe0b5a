"""Names of columns in place of a change table's masks."""

from __future__ import annotations

import pyarrow as pa

from ..engine.change_arrays import ChangeArrays
from ..engine.columns import MaskBits
from ..engine.lines import named


def with_names(rows: pa.Table, found: ChangeArrays, mask: str, name: str) -> pa.Table:
    """Rows of `found` with a column `name`, lists of column names, in place of a mask; as they are where they
    have no such mask."""
    if mask not in rows.column_names:
        return rows
    bits = MaskBits.of(rows[mask], found.ordinals, null=False)
    nulls = rows[mask].is_null().to_numpy()
    return rows.set_column(
        rows.column_names.index(mask), name, named(bits.bits[bits.codes], found.columns, nulls)
    )
