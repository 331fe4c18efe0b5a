"""Rows of a batch in temporary tables of its transaction: sent by COPY, dropped at the commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...engine.columns import ADD, KEPT, OP, TAKE
from ...errors import ApplyError, ValueRangeError
from ...model.change import Column
from ...sources.postgresql.connect import Session, quoted
from ...wire import pgbinary
from .types import sql_type

NUMBER = "header__number"
"""The number of a row, by which queries about it answer."""
_SQL = {OP: '"char"', KEPT: "text", TAKE: "bigint", ADD: "bigint", NUMBER: "bigint"}
_ANALYZE_ROWS = 1000
"""Smaller tables are planned well enough without statistics."""
_COPY_ROWS = 1 << 17


@dataclass(frozen=True)
class StagingTable:
    """Staged rows.

    Attributes:
        table: the staging table, as quoted SQL. It has the columns `extra`, then the data columns as c0, c1,
            ...
        extra: names of its other columns.
        columns: the number of data columns.
        casts: the target's types of data columns that are text here and something else in the target.
        only: SQL of the condition that the rows fulfil.
    """

    table: str
    extra: tuple[str, ...]
    columns: int
    casts: Mapping[int, str] = field(default_factory=dict)
    only: str = "true"

    def row(self, number: int) -> StagingTable:
        """The row of a number alone."""
        return replace(self, only=f"{quoted(NUMBER)} = {number}")

    def source(self, alias: str = "s") -> str:
        """FROM item of the rows, in the types of the target."""
        cells = [f"c{i}{self.cast(i)} AS c{i}" for i in range(self.columns)]
        names = ", ".join([*map(quoted, self.extra), *cells])
        return f"(SELECT {names} FROM {self.table} WHERE {self.only}) {alias}"

    @property
    def texts(self) -> str:
        """FROM item of the rows as they came, with their places in the staging table as `id`, alias s."""
        return f"(SELECT ctid AS id, * FROM {self.table} WHERE {self.only}) s"

    def cast(self, column: int) -> str:
        """SQL that brings a data column into the target's type; empty if it has that type."""
        return f"::{self.casts[column]}" if column in self.casts else ""


@dataclass(frozen=True)
class CopySession:
    """A connection in a transaction; `table`: the table that rows are for, in error messages."""

    session: Session
    table: str

    def stage(
        self,
        name: str,
        extra: Mapping[str, pa.Array],
        data: Sequence[pa.Array | pa.ChunkedArray],
        columns: Sequence[Column],
        casts: Mapping[int, str],
    ) -> StagingTable:
        """Sends rows to a new temporary table; `casts`: as in `Staged`."""
        kinds = [f"{quoted(n)} {_SQL[n]}" for n in extra]
        kinds += [f"c{i} {sql_type(c.type)}" for i, c in enumerate(columns)]
        into = f"pg_temp.{name}"  # an earlier chunk may have left one
        new = f"CREATE TEMP TABLE {name} ({', '.join(kinds)}) ON COMMIT DROP"
        self.session.execute(f"DROP TABLE IF EXISTS {into}; {new}".encode())
        if self.copy(into, [*extra.values(), *data]) >= _ANALYZE_ROWS:
            self.session.execute(f"ANALYZE {into}".encode())
        return StagingTable(into, tuple(extra), len(columns), casts)

    def copy(self, into: str, columns: Iterable[pa.Array | pa.ChunkedArray]) -> int:
        """Sends rows to a table (quoted SQL, with column names or not); returns their number."""
        arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
        batch = pa.record_batch(arrays, [f"c{i}" for i in range(len(arrays))])
        statement = f"COPY {into} FROM STDIN (FORMAT binary)".encode()
        with self.session.cursor() as cursor, cursor.copy(statement) as out:
            out.write(pgbinary.HEADER)
            for begin in range(0, batch.num_rows, _COPY_ROWS):
                for data in copy_data(batch.slice(begin, _COPY_ROWS), self.table):
                    out.write(data)
            out.write(pgbinary.TRAILER)
        return int(batch.num_rows)

    def numbers(self, query: str, *names: str) -> npt.NDArray[np.void]:
        """The rows of a query whose columns are bigints, never NULL; `names`: of their fields."""
        columns = [field for name in names for field in ((f"{name}_size", ">i4"), (name, ">i8"))]
        row, data, head = np.dtype([("fields", ">i2"), *columns]), self.answer(query), len(pgbinary.HEADER)
        return np.frombuffer(data, row, (len(data) - head - len(pgbinary.TRAILER)) // row.itemsize, head)

    def answer(self, query: str, form: str = "binary") -> bytes:
        """The result of a query, as COPY sends it."""
        statement = f"COPY ({query}) TO STDOUT (FORMAT {form})".encode()
        with self.session.cursor() as cursor, cursor.copy(statement) as out:
            return b"".join(out)


def copy_data(batch: pa.RecordBatch, table: str) -> Iterator[memoryview]:
    """Rows as COPY takes them; ApplyError for a value that PostgreSQL cannot hold."""
    try:
        yield from pgbinary.rows(batch)
    except ValueRangeError as error:
        raise ApplyError(error.what, where=table, hint=error.hint) from error
