"""What rows have in a column that is younger than they are."""

from __future__ import annotations

import pyarrow as pa

from ..errors import ApplyError
from ..model.change import Column
from ..wire.pgvalues import convert


def value_of(column: Column, missing: str) -> pa.Array:
    """The value that rows older than a column have, from the text of the source: one row of its lake type.

    Raises:
        ApplyError: the type cannot hold it.

    >>> value_of(Column("n", 4, "integer", "int4", "int"), "7").to_pylist()
    [7]
    """
    values, bad = convert(column.type, column.kind, pa.array([missing], pa.string()))
    if bad is not None:
        raise ApplyError(
            f"the value {missing!r} that older rows have cannot be held by {column.type}",
            where=column.name,
            hint="give it a wider type (`types`), then `tailrace resync` the table",
        )
    return values
