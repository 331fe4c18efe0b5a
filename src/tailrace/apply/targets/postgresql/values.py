"""Values of the lake's types in tables of PostgreSQL: those that none holds, and all others read back.

What was written is read back as it was, whatever kind of column the source had: a change table that somebody
else made knows the lake's types alone. So dates and times, whose text has eras, zones and years of five
digits, are asked for as numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import ApplyError
from ....model.change import Column
from ....model.types import arrow_type, schema_of
from ....sources.postgresql.connect import quoted
from ....wire import pgcopy

_FIRST = "-4712-01-01"
_TIMES = ("date", "timestamp", "timestamp_ntz")
_EACH = {"string": "instr({}, char(0)) = 0"} | dict.fromkeys(_TIMES, f"{{}} >= DATE'{_FIRST}'")
VALUES = _EACH | {f"array<{k}>": f"forall({{}}, x -> {v.format('x')})" for k, v in _EACH.items()}
"""What no table of PostgreSQL holds: U+0000 in texts, and what was before 4713 BC."""

_MICROS = "(extract(epoch FROM {{0}}::{}) * 1000000)::numeric(30, 0)"
_YEARS = -62_135_596_800_000_000, 253_402_300_799_999_999
_NUMBERS = {
    "date": ("int", "{0}::date - DATE '1970-01-01'", -719_162, 2_932_896),
    "timestamp_ntz": ("bigint", _MICROS.format("timestamp"), *_YEARS),
    "timestamp": ("bigint", _MICROS.format("timestamptz"), *_YEARS),
}
"""Lake type -> the type of the number that is asked for, its SQL, and what -infinity and infinity are:
the first and the last moment that the lake takes from a source."""


def cells(columns: Sequence[Column], have: Collection[str] | None = None) -> str:
    """SQL of a target's columns (alias t) as `batch` reads them; NULL for those that it lacks (that are not
    in `have`).

    >>> print(cells([Column("n", 1, "integer", "int4", "int"), Column("d", 2, "date", "date", "date")]))
    t."n", CASE t."d" WHEN '-infinity' THEN -719162 WHEN 'infinity' THEN 2932896 \
ELSE t."d"::date - DATE '1970-01-01' END
    """
    made = []
    for c in columns:
        name = f"t.{quoted(c.name)}" if have is None or c.name in have else "NULL"
        if c.type in _NUMBERS and name != "NULL":
            _, number, low, high = _NUMBERS[c.type]
            ends = f"WHEN '-infinity' THEN {low} WHEN 'infinity' THEN {high}"
            name = f"CASE {name} {ends} ELSE {number.format(name)} END"
        made.append(name)
    return ", ".join(made)


def batch(columns: Sequence[Column], data: bytes, where: str) -> pa.RecordBatch:
    """What COPY's CSV says of columns asked for by `cells`, in their types.

    Raises:
        ApplyError: there are values that these types cannot hold: somebody else wrote them.

    >>> batch([Column("d", 1, "date", "date", "date")], b"20000\\n", "db").to_pylist()
    [{'d': datetime.date(2024, 10, 4)}]
    """
    read = [replace(c, type=_NUMBERS[c.type][0]) if c.type in _NUMBERS else _plain(c) for c in columns]
    rows, bad = pgcopy.batch(read, data)
    if bad:
        raise ApplyError(
            f"the target has values of {', '.join(bad)} that the lake's types cannot hold",
            where=where,
            hint="correct them, or `tailrace resync` the table",
        )
    arrays = [a.cast(arrow_type(c.type)) for a, c in zip(rows.columns, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _plain(column: Column) -> Column:
    """A column with the kind that it has in the target."""
    return replace(column, kind="numeric") if column.type.startswith("decimal") else column


def beyond(rows: pa.Table) -> bool:
    """Whether rows have values that no table of PostgreSQL holds, see `VALUES`.

    >>> beyond(pa.table({"t": ["a\\0b"]})), beyond(pa.table({"t": ["a"], "d": pa.array([0], pa.date32())}))
    (True, False)
    """
    for column in rows.columns:
        values = pc.list_flatten(column) if pa.types.is_list(column.type) else column
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
