"""Values of the lake's types that no table of PostgreSQL holds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FIRST = "-4712-01-01"
_TIMES = ("date", "timestamp", "timestamp_ntz")
VALUES = {"string": "instr({}, char(0)) = 0"} | dict.fromkeys(_TIMES, f"{{}} >= DATE'{_FIRST}'")
"""What no table of PostgreSQL holds: U+0000 in texts, and what was before 4713 BC."""


def beyond(rows: pa.Table) -> bool:
    """Whether rows have values that no table of PostgreSQL holds, see `VALUES`.

    >>> beyond(pa.table({"t": ["a\\0b"]})), beyond(pa.table({"t": ["a"], "d": pa.array([0], pa.date32())}))
    (True, False)
    """
    for values in rows.columns:
        kind = values.type
        if pa.types.is_string(kind):
            found = pc.match_substring(values, "\0")
        elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            unit = "D" if pa.types.is_date(kind) else kind.unit
            first = int(np.datetime64(_FIRST).astype(f"datetime64[{unit}]").astype(np.int64))
            found = pc.less(values.cast(pa.int32() if unit == "D" else pa.int64()), first)
        else:
            continue
        if pc.any(found).as_py():
            return True
    return False
