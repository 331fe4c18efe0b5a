"""Parses the output of `COPY ... TO STDOUT (FORMAT csv)`. Source: PostgreSQL manual, COPY, "CSV Format".

NULL is an empty field without quotes, and the empty string is `""`. Rows end with a line feed; values with
line feeds are quoted.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.csv

from ..errors import FormatError
from ..model.change import Column
from ..model.types import schema_of
from .pgvalues import of_column

_BOM = b"\xef\xbb\xbf"


def tables(
    data: bytes | bytearray | memoryview | pa.Buffer, ncolumns: int, *, rows: int | None = None
) -> list[pa.StringArray]:
    r"""Returns the columns of whole CSV rows (without header) as text, null for NULL.

    Raises:
        FormatError: a row does not have `ncolumns` columns, the text is not UTF-8, or there are not `rows`
            rows.

    >>> [column.to_pylist() for column in tables(b'1,""\n2,\n', 2)]
    [['1', '2'], ['', None]]
    """
    buffer = pa.py_buffer(data)
    if not ncolumns or not (buffer.size or rows):
        return [pa.array([], pa.string()) for _ in range(ncolumns)]
    if not buffer.size:
        raise FormatError(f"{rows} rows were sent, but none were read", where="0 bytes")
    if bytes(memoryview(buffer)[:3]) == _BOM:
        buffer = pa.py_buffer(
            _BOM + bytes(buffer)
        )  # the reader removes one mark, and this one belongs to the first value
    names = [str(n) for n in range(ncolumns)]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(buffer),
            # One block, so that a row of any length is not split. Parts are read in parallel instead.
            pyarrow.csv.ReadOptions(use_threads=False, block_size=buffer.size + 1, column_names=names),
            pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, OverflowError) as error:
        raise FormatError(
            f"not COPY's CSV with {ncolumns} columns: {error}",
            where=f"{buffer.size} bytes",
            hint="pass whole rows of `COPY ... TO STDOUT (FORMAT csv)` in UTF8, less than 2 GiB at a time",
        ) from error
    if rows is not None and table.num_rows != rows:
        raise FormatError(
            f"{rows} rows were sent, but {table.num_rows} were read", where=f"{buffer.size} bytes"
        )
    return [column.combine_chunks() for column in table.itercolumns()]


def batch(
    columns: Sequence[Column],
    data: bytes | bytearray | memoryview | pa.Buffer,
    *,
    rows: int | None = None,
) -> tuple[pa.RecordBatch, dict[str, pa.BooleanArray]]:
    """Returns the rows as one typed batch (`model.types.schema_of(columns)`), and masks of bad values.

    The masks are by column name, for columns with values that the lake type cannot hold; these are null in
    the batch.

    Raises:
        FormatError: as in `tables`, or rows have no columns, which a batch cannot count.

    >>> rows, bad = batch([Column("id", 1, "integer", "int4", "int")], b"7\\n")
    >>> rows.to_pylist(), bad
    ([{'id': 7}], {})
    """
    if not columns and (rows or memoryview(data).nbytes):
        raise FormatError(
            "rows without columns: a batch cannot count them",
            where=f"{memoryview(data).nbytes} bytes",
            hint="leave the table out (`source: {exclude: [schema.table]}`), or give it a column",
        )
    arrays: list[pa.Array] = []
    bad: dict[str, pa.BooleanArray] = {}
    for column, text in zip(columns, tables(data, len(columns), rows=rows), strict=True):
        values, wrong = of_column(column, text)
        arrays.append(values)
        if wrong is not None:
            bad[column.name] = wrong
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns)), bad
