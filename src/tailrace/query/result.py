"""Result of a query: a stream of record batches, convertible to the common table types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .duckdb_session import BATCH_ROWS, connect, filter_rows, import_optional, select_list

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, repr=False)
class Result:
    """Rows of a query's result. Each method and `len` reads them again; iteration yields dictionaries.

    Attributes:
        schema: the columns.
        batches: returns an iterator over the record batches.
        rejects: change rows that could not be used, with the reason in `why`; usually empty.
    """

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    rejects: pa.Table = field(default_factory=lambda: pa.table({}))

    @staticmethod
    def of(rows: pa.Table, rejects: pa.Table | None = None) -> Result:
        """Returns the rows of a table as a Result."""
        nothing = pa.table({}) if rejects is None else rejects
        return Result(rows.schema, lambda: iter(rows.to_batches(max_chunksize=BATCH_ROWS)), nothing)

    def arrow(self) -> pa.RecordBatchReader:
        """Returns a stream of record batches, to be read once. The rows need not fit into memory."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def table(self) -> pa.Table:
        """Returns an Arrow table."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a list of dictionaries, for few rows."""
        return list(self.table().to_pylist())

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self.batches())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        return f"Result({', '.join(abbreviate([f'{f.name}: {f.type}' for f in self.schema]))})"

    def _repr_html_(self) -> str:
        """Returns the first rows as an HTML table for notebooks."""
        from .render import html_table

        rows, more = self._first(20)
        return html_table(self.schema.names, rows) + ("<p>...</p>" if more else "")

    def show(self, *columns: str, limit: int = 20) -> None:
        """Prints the first rows, with the given columns or all."""
        from .render import text_table

        found = self.select(list(columns)) if columns else self
        rows, more = found._first(limit)
        print(text_table(found.schema.names, rows) + ("\n..." if more else ""))  # noqa: T201

    def _first(self, limit: int) -> tuple[list[list[Any]], bool]:
        """Returns the values of the first rows, and whether there are more rows."""
        from .render import mark_unknown, python_rows

        rows: list[list[Any]] = []
        for batch in self.batches():
            part = python_rows(batch.slice(0, limit + 1 - len(rows)))
            rows += [list(mark_unknown(row).values()) for row in part]
            if len(rows) > limit:
                break
        return rows[:limit], len(rows) > limit

    def pandas(self) -> pd.DataFrame:
        """Returns a pandas DataFrame."""
        found: pd.DataFrame = self.table().to_pandas()
        return found

    def polars(self) -> pl.DataFrame:
        """Returns a polars DataFrame.

        Raises:
            UnsupportedError: polars is not installed.
        """
        found: pl.DataFrame = import_optional("polars").from_arrow(self.table())
        return found

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Returns a DuckDB relation, of `connection` if given.

        Raises:
            UnsupportedError: DuckDB is not installed.
        """
        found: duckdb.DuckDBPyRelation = (connection or connect()).from_arrow(self.table())
        return found.project(select_list(self.schema))

    def spark(self, session: SparkSession | None = None) -> DataFrame:
        """Returns a Spark DataFrame. The rows pass through this process.

        Times without a zone become `timestamp_ntz`, whatever the session's zone.

        Args:
            session: the Spark session; the active one by default.

        Raises:
            ConfigError: no session is given, and none is active.
        """
        from pyspark.sql import SparkSession

        from ..formats.shape import arrow_rows

        found = session or SparkSession.getActiveSession()
        if found is None:
            from ..errors import ConfigError

            raise ConfigError("there is no Spark session", hint="pass one: spark(session)")
        return arrow_rows(found, self.table())

    def where(self, condition: str) -> Result:
        """Returns the rows for which an SQL condition in DuckDB's dialect holds.

        `before.qty > 7` reads a field of a struct. Times without a zone are UTC.

        Raises:
            UnsupportedError: DuckDB is not installed.
            ConfigError: the condition is not valid.
        """
        return Result(self.schema, filter_rows(self.schema, self.arrow, condition), self.rejects)

    def select(self, columns: list[str]) -> Result:
        """Returns the given columns.

        Raises:
            ConfigError: a column does not exist.
        """
        from ..errors import ConfigError

        if missing := [n for n in columns if n not in self.schema.names]:
            raise ConfigError(
                f"there is no column {', '.join(missing)}", hint=f"columns: {', '.join(self.schema.names)}"
            )
        schema = pa.schema([self.schema.field(n) for n in columns])
        return Result(schema, lambda: (b.select(columns) for b in self.batches()), self.rejects)


def abbreviate(texts: Sequence[str], many: int = 12) -> list[str]:
    """Returns the first texts and the number of the remaining ones.

    >>> abbreviate(["a", "b", "c"], 2)
    ['a', 'and 2 more']
    """
    return [*texts] if len(texts) <= many else [*texts[: many - 1], f"and {len(texts) - many + 1} more"]


def unique_names(schema: pa.Schema) -> pa.Schema:
    """Returns a schema in which each column name is unique; a join's columns may repeat names.

    >>> unique_names(pa.schema([("id", pa.int64()), ("id", pa.string()), ("id_1", pa.string())])).names
    ['id', 'id_2', 'id_1']
    """
    known, there, fields = {*schema.names}, set[str](), []
    for one in schema:
        name, number = one.name, 0
        while name in there or (number and name in known):
            number += 1
            name = f"{one.name}_{number}"
        there.add(name)
        fields.append(one.with_name(name))
    return pa.schema(fields)
