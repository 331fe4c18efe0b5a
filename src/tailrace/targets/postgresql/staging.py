"""Temporary tables with rows of a batch: filled by COPY, and dropped when the batch is committed."""

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
"""Column with the number of a row, by which query results refer to it."""
_SQL = {OP: '"char"', KEPT: "text", TAKE: "bigint", ADD: "bigint", NUMBER: "bigint"}
_ANALYZE_ROWS = 1000
"""Tables with fewer rows are planned well enough without statistics."""
_COPY_ROWS = 1 << 17


@dataclass(frozen=True)
class StagingTable:
    """A staging table, or some of its rows.

    Attributes:
        table: the staging table as quoted SQL. It has the columns `extra`, then the data columns c0, c1, ...
        extra: the names of its other columns.
        columns: the number of data columns.
        casts: by index of the data column, its type in the target, if it is text here and another type there.
        only: the SQL condition that selects the rows.
    """

    table: str
    extra: tuple[str, ...]
    columns: int
    casts: Mapping[int, str] = field(default_factory=dict)
    only: str = "true"

    def row(self, number: int) -> StagingTable:
        """Returns the row with a number."""
        return replace(self, only=f"{quoted(NUMBER)} = {number}")

    def source(self, alias: str = "s") -> str:
        """Returns the FROM item of the rows, in the types of the target."""
        cells = [f"c{i}{self.cast(i)} AS c{i}" for i in range(self.columns)]
        names = ", ".join([*map(quoted, self.extra), *cells])
        return f"(SELECT {names} FROM {self.table} WHERE {self.only}) {alias}"

    @property
    def texts(self) -> str:
        """The FROM item (alias s) of the rows as they were sent, with their ctid as `id`."""
        return f"(SELECT ctid AS id, * FROM {self.table} WHERE {self.only}) s"

    def cast(self, column: int) -> str:
        """Returns the SQL cast of a data column to the target's type; empty if it has that type."""
        return f"::{self.casts[column]}" if column in self.casts else ""


@dataclass(frozen=True)
class CopySession:
    """Copies rows to and from a database in a transaction; `table`: the source table, for error messages."""

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
        """Copies rows to a new temporary table; `casts`: as in `StagingTable`."""
        kinds = [f"{quoted(n)} {_SQL[n]}" for n in extra]
        kinds += [f"c{i} {sql_type(c.type)}" for i, c in enumerate(columns)]
        into = f"pg_temp.{name}"  # an earlier chunk may have left one
        new = f"CREATE TEMP TABLE {name} ({', '.join(kinds)}) ON COMMIT DROP"
        self.session.execute(f"DROP TABLE IF EXISTS {into}; {new}".encode())
        if self.copy(into, [*extra.values(), *data]) >= _ANALYZE_ROWS:
            self.session.execute(f"ANALYZE {into}".encode())
        return StagingTable(into, tuple(extra), len(columns), casts)

    def copy(self, into: str, columns: Iterable[pa.Array | pa.ChunkedArray]) -> int:
        """Copies rows to a table (quoted SQL, with or without column names); returns their number."""
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
        """Returns the rows of a query whose columns are bigints and never NULL; `names`: the field names."""
        columns = [field for name in names for field in ((f"{name}_size", ">i4"), (name, ">i8"))]
        row, data, head = np.dtype([("fields", ">i2"), *columns]), self.answer(query), len(pgbinary.HEADER)
        return np.frombuffer(data, row, (len(data) - head - len(pgbinary.TRAILER)) // row.itemsize, head)

    def answer(self, query: str, form: str = "binary") -> bytes:
        """Returns the result of a query in the format of COPY."""
        statement = f"COPY ({query}) TO STDOUT (FORMAT {form})".encode()
        with self.session.cursor() as cursor, cursor.copy(statement) as out:
            return b"".join(out)


def copy_data(batch: pa.RecordBatch, table: str) -> Iterator[memoryview]:
    """Yields rows in the format of COPY.

    Raises:
        ApplyError: PostgreSQL cannot hold a value.
    """
    try:
        yield from pgbinary.rows(batch)
    except ValueRangeError as error:
        raise ApplyError(error.what, where=table, hint=error.hint) from error
