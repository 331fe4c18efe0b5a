"""DuckDB in this process, and other modules of the extra `query`."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import ConfigError, UnsupportedError
from .watch import scratch_folder

if TYPE_CHECKING:
    import duckdb

BATCH_ROWS = 64 << 10


def import_optional(module: str) -> Any:
    """Imports a module of the extra `query`.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise UnsupportedError(f"{module} is not installed", hint="pip install 'tailrace[query]'") from None


def connect() -> duckdb.DuckDBPyConnection:
    """Returns a new DuckDB connection. Its temporary files are in the folder set by `watching`.

    Times without a zone are UTC, whatever the machine's zone.

    Raises:
        UnsupportedError: DuckDB is not installed.
    """
    made: duckdb.DuckDBPyConnection = import_optional("duckdb").connect()
    made.execute("SET TimeZone = 'UTC'")
    if (folder := scratch_folder()) is not None:
        made.execute("SET temp_directory = ?", [folder])
    return made


def select_list(schema: pa.Schema) -> str:
    """Returns a SELECT list that makes DuckDB compare floating-point numbers itself, so that NaN is the
    greatest.

    DuckDB leaves comparisons of plain columns to Arrow, where no comparison with NaN holds.

    >>> select_list(pa.schema([("id", pa.int64()), ("f", pa.float64())]))
    '* REPLACE (CASE WHEN "f" IS NULL THEN NULL ELSE "f" END AS "f")'
    """
    spelled = Counter(name.lower() for name in schema.names)  # DuckDB's names ignore case
    floats = [f.name for f in schema if _floats(f.type) and spelled[f.name.lower()] == 1]
    quoted = ['"' + name.replace('"', '""') + '"' for name in floats]
    kept = ", ".join(f"CASE WHEN {q} IS NULL THEN NULL ELSE {q} END AS {q}" for q in quoted)
    return f"* REPLACE ({kept})" if kept else "*"


def _floats(kind: pa.DataType) -> bool:
    """Returns whether a type is floating-point, or a struct with such a field."""
    if pa.types.is_struct(kind):
        return any(_floats(field.type) for field in kind)
    return bool(pa.types.is_floating(kind))


def filter_rows(
    schema: pa.Schema, rows: Callable[[], pa.RecordBatchReader], condition: str
) -> Callable[[], Iterator[pa.RecordBatch]]:
    """Returns a function that streams the rows for which a condition holds.

    Raises:
        ConfigError: the condition is not valid.
    """
    db = import_optional("duckdb")
    # A unique name: the rows can be read only once, so a subquery of the condition must not read them.
    name = f"rows_{uuid.uuid4().hex}"
    asked = f'SELECT * FROM (SELECT {select_list(schema)} FROM {name}) AS "rows" WHERE ({condition}\n)'
    try:
        connection = connect()
        connection.register(name, schema.empty_table())
        connection.sql(asked).fetchall()
    except db.Error as error:
        raise ConfigError(f"the condition is not valid: {error}", where=condition) from None

    def batches() -> Iterator[pa.RecordBatch]:
        connection = connect()
        connection.register(name, rows())
        for batch in read_relation(connection.sql(asked)):
            yield batch.cast(schema) if batch.schema != schema else batch

    return batches


def read_relation(found: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    """Returns a stream of the rows of a relation."""
    ask = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader
    reader: pa.RecordBatchReader = ask(BATCH_ROWS)
    return reader
