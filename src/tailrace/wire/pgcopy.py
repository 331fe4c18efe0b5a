"""What `COPY ... TO STDOUT (FORMAT csv)` sends -> columns. Source: PostgreSQL manual, COPY, "CSV Format".

NULL is an empty field without quotes, the empty string is `""`. Rows end with a line feed; values with line
feeds are quoted.
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
    r"""The columns of whole CSV rows (no header) as text, null for NULL.

    FormatError if a row does not have that many columns, the text is not UTF-8, or there are not `rows`
    rows.

    >>> [column.to_pylist() for column in tables(b'1,""\n2,\n', 2)]
    [['1', '2'], ['', None]]
    """
    buffer = pa.py_buffer(data)
    if not ncolumns or not (buffer.size or rows):
        return [pa.array([], pa.string()) for _ in range(ncolumns)]
    if not buffer.size:
        raise FormatError(f"{rows} rows were sent, none read", where="0 bytes")
    if bytes(memoryview(buffer)[:3]) == _BOM:
        buffer = pa.py_buffer(
            _BOM + bytes(buffer)
        )  # the reader drops one, and this one belongs to the first value
    names = [str(n) for n in range(ncolumns)]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(buffer),
            # One block: a row must not be split, whatever its length. Parallelism is one worker per part.
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
            hint="give whole rows, under 2 GiB at a time, of `COPY ... TO STDOUT (FORMAT csv)` in UTF8",
        ) from error
    if rows is not None and table.num_rows != rows:
        raise FormatError(f"{rows} rows were sent, {table.num_rows} read", where=f"{buffer.size} bytes")
    return [column.combine_chunks() for column in table.itercolumns()]


def batch(
    columns: Sequence[Column],
    data: bytes | bytearray | memoryview | pa.Buffer,
    *,
    rows: int | None = None,
) -> tuple[pa.RecordBatch, dict[str, pa.BooleanArray]]:
    """The rows as one typed batch, schema `laketypes.schema_of(columns)`, and masks of bad values.

    The second part has an entry for each column with values its lake type cannot hold (null in the batch).
    FormatError as `tables` raises it, and for rows without columns: a batch cannot count them.

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
