"""Rows that differ between two states of a table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.change_arrays import ChangeArrays
from ..engine.columns import one
from ..engine.commits import CHANGE_TYPE, PREIMAGE
from ..engine.equal_values import values_differ
from ..engine.keyless_changes import net_of_keyless
from ..engine.net import RESULT_COLUMNS, net
from ..engine.reserved_names import refuse_reserved
from .as_of import split_by_keys
from .result import Result


def diff_rows(changes: ChangeArrays, before: Result) -> pa.Table:
    """Returns the net changes of rows, without rows that are equal in the end. Columns as in
    `engine.net.net`.

    A truncate appears as the rows that it removed.

    Raises:
        ConfigError: a data column has the name of a column of the result.
    """
    refuse_reserved("diff", changes.columns, RESULT_COLUMNS, changes.name)
    if not changes.key:
        base = before.table() if len(changes.truncates) else None
        return net_of_keyless(changes, base=base)
    everything = len(changes.truncates) > 0
    parts = [
        part
        for met, others in split_by_keys(changes, before.batches())
        for part in ((met, others) if everything else (met,))
    ]
    rows = net(changes, base=pa.Table.from_batches(parts, before.schema))
    kind = one(rows[CHANGE_TYPE])
    old = np.flatnonzero(pc.equal(kind, PREIMAGE).to_numpy(zero_copy_only=False))
    same = np.ones(len(old), np.bool_)
    for name in changes.columns:
        column = one(rows[name])
        same &= ~values_differ(column.take(pa.array(old)), column.take(pa.array(old + 1)), name)
    kept = np.ones(rows.num_rows, np.bool_)
    kept[old[same]] = kept[old[same] + 1] = False
    return rows.filter(pa.array(kept))
