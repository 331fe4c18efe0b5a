"""SQL over answers, by DuckDB in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import ConfigError
from .result import BATCH_ROWS, Result, optional
from .watch import scratch

if TYPE_CHECKING:
    import duckdb


def connected() -> duckdb.DuckDBPyConnection:
    """A connection of its own, whose scratch files are where `watching` says. Times without a zone are UTC,
    whatever the machine's zone.

    Raises:
        UnsupportedError: DuckDB is not installed.
    """
    made: duckdb.DuckDBPyConnection = optional("duckdb").connect()
    made.execute("SET TimeZone = 'UTC'")
    if (folder := scratch()) is not None:
        made.execute("SET temp_directory = ?", [folder])
    return made


def filtered(rows: Result, condition: str) -> Result:
    """The rows for which a condition holds, streamed."""
    db = optional("duckdb")
    try:
        connection = connected()
        connection.register("rows", rows.schema.empty_table())
        connection.sql(f"SELECT * FROM rows WHERE ({condition}\n)").fetchall()
    except db.Error as error:
        raise ConfigError(f"the condition cannot be read: {error}", where=condition) from None

    def batches() -> Iterator[pa.RecordBatch]:
        connection = connected()
        connection.register("rows", rows.arrow())
        found = connection.sql(f"SELECT * FROM rows WHERE ({condition}\n)")
        for batch in reader_of(found):
            yield batch.cast(rows.schema) if batch.schema != rows.schema else batch

    return Result(rows.schema, batches, rows.aside)


def reader_of(found: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    """The rows of a relation as they come."""
    ask = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
    reader: pa.RecordBatchReader = ask(BATCH_ROWS)
    return reader


def asked(
    connection: duckdb.DuckDBPyConnection,
    statement: str,
    given: Mapping[str, Callable[[], pa.RecordBatchReader]] | None = None,
) -> Result:
    """The rows of a statement, which is run anew each time they are read; `given`: rows that it names, and
    that can be read once.

    Raises:
        ConfigError: it cannot be run, or gives no rows.
    """
    db = optional("duckdb")

    def run() -> pa.RecordBatchReader:
        for name, rows in (given or {}).items():
            connection.register(name, rows())
        try:
            found = connection.sql(statement)
            if found is not None:
                return reader_of(found)
        except db.Error as error:
            raise ConfigError(f"the statement cannot be run: {error}", where=statement) from None
        raise ConfigError("the statement gives no rows", where=statement, hint="write a SELECT")

    return Result(run().schema, lambda: iter(run()))
