"""Values of the lake's types in PostgreSQL tables: finds values that PostgreSQL cannot hold, and reads values
back.

Values are read as they were written, whatever the column's type at the source was, because change tables of
other products only have the lake's types. So dates and times, whose texts have eras, zones and years with
five digits, are read as numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...engine.columns import OPER, one
from ...errors import ApplyError
from ...execution import over_rows
from ...model.change import INSERT, UPDATE, Column, Relation
from ...model.types import arrow_type, schema_of
from ...sources.postgresql.connect import quoted
from ...wire import pgcopy
from .connection import Database, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ_BYTES = 8 << 20
_FIRST = "-4713-11-24"
"""The first day in PostgreSQL."""

_MICROS = "(extract(epoch FROM {{0}}::{}) * 1000000)::numeric(30, 0)"
_YEARS = -62_135_596_800_000_000, 253_402_300_799_999_999
_NUMBERS = {
    "date": ("int", "{0}::date - DATE '1970-01-01'", -719_162, 2_932_896),
    "timestamp_ntz": ("bigint", _MICROS.format("timestamp"), *_YEARS),
    "timestamp": ("bigint", _MICROS.format("timestamptz"), *_YEARS),
}
"""Lake type -> the type of the number that is read, its SQL, and the numbers for -infinity and infinity: the
first and the last moment that the lake has from a source."""


def select_cells(columns: Sequence[Column], have: Collection[str] | None = None) -> str:
    """Returns the SQL of a target's columns (alias t) for `read_csv`; NULL for columns that are not in
    `have`.

    >>> n, d = Column("n", 1, "integer", "int4", "int"), Column("d", 2, "date", "date", "date")
    >>> print(select_cells([n, d]))
    t."n", CASE t."d" WHEN '-infinity' THEN -719162 WHEN 'infinity' THEN 2932896 \
ELSE t."d"::date - DATE '1970-01-01' END
    """
    cells = []
    for c in columns:
        name = f"t.{quoted(c.name)}" if have is None or c.name in have else "NULL"
        if c.type in _NUMBERS and name != "NULL":
            _, number, low, high = _NUMBERS[c.type]
            ends = f"WHEN '-infinity' THEN {low} WHEN 'infinity' THEN {high}"
            name = f"CASE {name} {ends} ELSE {number.format(name)} END"
        cells.append(name)
    return ", ".join(cells)


def read_csv(columns: Sequence[Column], data: bytes, where: str) -> pa.RecordBatch:
    """Reads the CSV of COPY for `select_cells`, and returns the columns in their types.

    Raises:
        ApplyError: these types cannot hold values that another process wrote.

    >>> read_csv([Column("d", 1, "date", "date", "date")], b"20000\\n", "db").to_pylist()
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


@dataclass(frozen=True)
class _ReadTask:
    """Reads the rows of a query by COPY in a Spark task."""

    database: Database
    query: str
    relation: Relation

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not any(batch.num_rows for batch in batches):
            return
        where = f"{self.database.label}, {self.relation.table}"
        statement = f"COPY ({self.query}) TO STDOUT (FORMAT csv)".encode()
        with (
            open_session(self.database, where) as session,
            session.cursor() as cursor,
            cursor.copy(statement) as out,
        ):
            data = bytearray()
            for row in out:  # the server sends whole rows
                data += row
                if len(data) > _READ_BYTES:
                    yield self._batch(bytes(data), where)
                    data.clear()
            yield self._batch(bytes(data), where)

    def _batch(self, data: bytes, where: str) -> pa.RecordBatch:
        rows = read_csv(self.relation.columns, data, where)
        return rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])


def rows_of_query(spark: SparkSession, database: Database, query: str, relation: Relation) -> DataFrame:
    """Returns the rows of a query in a layout's columns, which the query must select as `select_cells`. A
    task reads them when they are needed."""
    ddl = ", ".join(f"c{i} {c.type}" for i, c in enumerate(relation.columns))
    rows = over_rows(spark.range(0, 1, 1, 1), _ReadTask(database, query, relation), ddl)
    return rows.toDF(*[c.name for c in relation.columns])


def _plain(column: Column) -> Column:
    """Returns a column with the kind that it has in the target."""
    return replace(column, kind="numeric") if column.type.startswith("decimal") else column


def unsupported(rows: pa.Table, relation: Relation) -> pa.StringArray | None:
    """Returns for each change row why PostgreSQL cannot hold its values, NULL if it can; None if it can hold
    all. In before images only the key is checked, or the whole row of a keyless table.

    >>> c = Column("t", 1, "text", "text", "string")
    >>> rows = pa.table({OPER: ["I", "B", "U"], "t": ["a\\0b", "a\\0b", "c"]})
    >>> id = Column("id", 2, "integer", "int4", "int", key=True)
    >>> unsupported(rows, Relation(1, "s", "t", "f", (id, c))).to_pylist()
    ["t is beyond the target's string", None, None]
    """
    found: pa.StringArray | None = None
    written = pc.is_in(rows[OPER], value_set=pa.array([INSERT, UPDATE]))
    for c in relation.columns:
        if c.name in rows.schema.names and (beyond := _beyond(one(rows[c.name]))) is not None:
            counts = beyond if c.key or not relation.key else pc.and_(beyond, one(written))
            why = pc.if_else(
                counts, f"{c.name} is beyond the target's {c.type}", pa.scalar(None, pa.string())
            )
            found = why if found is None else pc.coalesce(found, why)
    return found


def without_unsupported(rows: pa.Table) -> pa.Table:
    """Returns rows with NULL for values that PostgreSQL cannot hold."""
    for i, name in enumerate(rows.schema.names):
        if (beyond := _beyond(one(rows[name]))) is not None:
            indices = pa.array(np.arange(len(beyond)), mask=beyond.to_numpy(zero_copy_only=False))
            rows = rows.set_column(i, rows.schema.field(i), one(rows[name]).take(indices))
    return rows


def _beyond(column: pa.Array) -> pa.BooleanArray | None:
    """Returns for each value whether PostgreSQL cannot hold it or an array element of it; None if it can hold
    all."""
    if pa.types.is_list(column.type):
        elements = _beyond(column.flatten())
        if elements is None:
            return None
        rows = pc.list_parent_indices(column).filter(elements)
        return pa.array(np.isin(np.arange(len(column)), rows.to_numpy()))
    if pa.types.is_string(column.type):
        found = pc.match_substring(column, "\0")
    elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        unit = "D" if pa.types.is_date(column.type) else column.type.unit
        first = int(np.datetime64(_FIRST).astype(f"datetime64[{unit}]").astype(np.int64))
        found = pc.less(column.cast(pa.int32() if unit == "D" else pa.int64()), first)
    else:
        return None
    found = found.fill_null(False)
    return found if pc.any(found).as_py() else None
