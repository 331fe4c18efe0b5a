"""SQL over results, by DuckDB in this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import ConfigError, TailraceError
from .duckdb_session import import_optional, read_relation, select_list
from .result import Result, unique_names
from .table_functions import split_statements

if TYPE_CHECKING:
    import duckdb

_EXPLAIN = re.compile(r"\s*explain\b(?:\s+analyze\b|\s*\([^()]*\))?", re.IGNORECASE)


def run_query(
    connection: duckdb.DuckDBPyConnection,
    statement: str,
    given: Mapping[str, Result] | None = None,
    why: Callable[[Exception], TailraceError | None] = lambda error: None,
) -> Result:
    """Returns the rows of a statement. Each reading runs the statement again.

    Args:
        connection: the DuckDB connection.
        statement: one SELECT.
        given: results that the statement refers to, by name. Each is read once per scan.
        why: replaces DuckDB's errors; None keeps the error.

    Raises:
        ConfigError: the statement fails, is more than one, or does not only return rows.
    """
    db = import_optional("duckdb")
    ended, rest = split_statements(statement)
    if len(ended) + bool(rest) > 1:
        raise ConfigError("the text has several statements", where=statement, hint="run them one by one")

    def run() -> pa.RecordBatchReader:
        for name, rows in (given or {}).items():
            connection.register(f"{name}_rows", _ScannedResult(rows))
            listed = select_list(rows.schema)
            connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT {listed} FROM {name}_rows")
        try:
            if _only_reads(db, statement):
                return read_relation(connection.sql(statement))
        except db.Error as error:
            failed = ConfigError(f"the statement cannot be run: {error}", where=statement)
            raise why(error) or failed from None
        except RuntimeError as error:
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            connection.interrupt()  # otherwise close() waits for the statement
            raise KeyboardInterrupt from None
        raise ConfigError(
            "the statement is not a query: it returns no rows, or changes something",
            where=statement,
            hint="write a SELECT",
        )

    schema = unique_names(run().schema)
    return Result(schema, lambda: (pa.record_batch(batch.columns, schema=schema) for batch in run()))


@dataclass(frozen=True)
class _ScannedResult:
    """A result as a DuckDB table. Each scan reads it again."""

    rows: Result

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.arrow().__arrow_c_stream__(requested_schema)


def _only_reads(db: Any, statement: str) -> bool:
    """Returns whether a statement only returns rows. EXPLAIN ANALYZE runs its statement, so that one is
    checked too."""
    if explained := _EXPLAIN.match(statement):
        return _only_reads(db, statement[explained.end() :])
    *_, last = db.extract_statements(statement) or [None]
    return last is not None and last.type == db.StatementType.SELECT
