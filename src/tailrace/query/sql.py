"""SQL over answers, by DuckDB in this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import ConfigError, TailraceError
from .calls import statements
from .duck import every_column, optional, reader_of
from .result import Result, named_apart

if TYPE_CHECKING:
    import duckdb

_EXPLAIN = re.compile(r"\s*explain\b(?:\s+analyze\b|\s*\([^()]*\))?", re.IGNORECASE)


def asked(
    connection: duckdb.DuckDBPyConnection,
    statement: str,
    given: Mapping[str, Result] | None = None,
    why: Callable[[Exception], TailraceError | None] = lambda error: None,
) -> Result:
    """The rows of a statement, which is run anew each time they are read; `given`: answers that it names,
    each of which is read as often as the statement scans it; `why`: what to say in place of an error of
    DuckDB's.

    Raises:
        ConfigError: it cannot be run, is several ones, or one that does more than give rows.
    """
    db = optional("duckdb")
    ended, rest = statements(statement)
    if len(ended) + bool(rest) > 1:
        raise ConfigError("these are several statements", where=statement, hint="ask one after the other")

    def run() -> pa.RecordBatchReader:
        for name, rows in (given or {}).items():
            connection.register(f"{name}_rows", _Scanned(rows))
            listed = every_column(rows.schema)
            connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT {listed} FROM {name}_rows")
        try:
            if _is_question(db, statement):
                return reader_of(connection.sql(statement))
        except db.Error as error:
            failed = ConfigError(f"the statement cannot be run: {error}", where=statement)
            raise why(error) or failed from None
        except RuntimeError as error:
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            connection.interrupt()  # otherwise closing it waits until the statement has run
            raise KeyboardInterrupt from None
        raise ConfigError(
            "the statement is not a query: it returns no rows, or changes something",
            where=statement,
            hint="write a SELECT",
        )

    schema = named_apart(run().schema)
    return Result(schema, lambda: (pa.record_batch(batch.columns, schema=schema) for batch in run()))


@dataclass(frozen=True)
class _Scanned:
    """An answer as DuckDB scans it, which may be more than once: each scan streams it anew."""

    rows: Result

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.arrow().__arrow_c_stream__(requested_schema)


def _is_question(db: Any, statement: str) -> bool:
    """Whether a statement only gives rows: what EXPLAIN ANALYZE explains is run, too."""
    if explained := _EXPLAIN.match(statement):
        return _is_question(db, statement[explained.end() :])
    *_, last = db.extract_statements(statement) or [None]
    return last is not None and last.type == db.StatementType.SELECT
