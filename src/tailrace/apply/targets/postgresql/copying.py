"""Arrow rows to temporary tables of one transaction, and what queries over them answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....model.change import Column
from ....sources.postgresql.connect import Session
from ....wire import pgbinary
from .stage import ANALYZE_ROWS, copy_rows
from .types import sql_type


@dataclass(frozen=True)
class Sending:
    """A connection in a transaction; `table`: whose rows they are, for errors."""

    on: Session
    table: str

    def copy(
        self, into: str, extra: str, values: Iterable[pa.Array | pa.ChunkedArray], columns: Iterable[Column]
    ) -> None:
        """Sends rows to a new table of the transaction: extra columns, then c0, c1, ..."""
        columns_sql = ", ".join([extra, *(f"c{i} {sql_type(c.type)}" for i, c in enumerate(columns))])
        self.on.execute(f"CREATE TEMP TABLE {into.partition('.')[2]} ({columns_sql}) ON COMMIT DROP".encode())
        if self.send(into, values) >= ANALYZE_ROWS:
            self.on.execute(f"ANALYZE {into}".encode())

    def send(self, into: str, values: Iterable[pa.Array | pa.ChunkedArray]) -> int:
        """Sends rows; gives how many."""
        arrays = [v.combine_chunks() if isinstance(v, pa.ChunkedArray) else v for v in values]
        batch = pa.record_batch(arrays, [f"c{i}" for i in range(len(arrays))])
        parts = (batch.slice(begin, 1 << 17) for begin in range(0, batch.num_rows, 1 << 17))
        return copy_rows(self.on, into, parts, self.table)

    def numbers(self, query: str, *names: str) -> npt.NDArray[np.void]:
        """The rows of a query whose columns are bigints, never NULL; `names`: of their fields."""
        columns = [field for name in names for field in ((f"{name}_size", ">i4"), (name, ">i8"))]
        row, data, head = np.dtype([("fields", ">i2"), *columns]), self.answer(query), len(pgbinary.HEADER)
        return np.frombuffer(data, row, (len(data) - head - len(pgbinary.TRAILER)) // row.itemsize, head)

    def answer(self, query: str, form: str = "binary") -> bytes:
        """What COPY gives of a query."""
        statement = f"COPY ({query}) TO STDOUT (FORMAT {form})".encode()
        with self.on.cursor() as cursor, cursor.copy(statement) as out:
            return b"".join(out)
