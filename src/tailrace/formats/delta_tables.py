"""Delta tables that a DataFrame's rows go to, whatever their columns are called.

Delta's own writer makes no table with blanks or any of `,;{}()=` in its columns' names, nor gives one such a
column; it appends to a table that has them. So tables are made, and get their columns, by delta-rs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..lake import delta as lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def table_schema(rows: DataFrame) -> pa.Schema:
    """The Arrow schema of a table for these rows, all columns nullable; timestamps are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    return pa.schema([pa.field(f.name, to_arrow_type(f.dataType, timezone="UTC")) for f in rows.schema])


def laid_out(rows: DataFrame, path: str) -> None:
    """Has a table at that path with at least the columns of these rows."""
    schema = table_schema(rows)
    lake.create(path, schema)
    lake.add_columns(path, list(schema))
