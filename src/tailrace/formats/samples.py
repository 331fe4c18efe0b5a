"""The first rows of tables in files as Arrow, without Spark: what `inspect` reads."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import FormatError
from ..wire import delimited
from ..wire.delimited import Dialect
from .base import Options
from .files import refuse_nothing, refuse_tables_in_one
from .first_rows import TableSample
from .folders import data_files, is_empty, kind_of, places
from .parquet import in_micros
from .text import head

ROWS = 1000
CELLS = 200_000
"""A sample of a wide table has fewer rows than `ROWS`: at most this many values."""


def samples(
    path: str, options: Options | None = None, *, whole: Sequence[str] = ()
) -> dict[str, TableSample]:
    """The tables under a path by name, as `files.load` finds them; empty files are skipped.

    Args:
        path: a file, a folder of files, or a folder of tables.
        options: the encoding and the delimiter of text.
        whole: names of tables (in lower case) of which all rows are wanted, not the first.

    Raises:
        ConfigError: there is nothing, or nothing that is a table.
        FormatError: a file cannot be read as what its name says, or all are empty.
    """
    refuse_nothing(path)
    there = {n: p for n, p in places(path).items() if not is_empty(p)}
    return {n: sample(p, every=n.lower() in whole, options=options) for n, p in there.items()}


def sample(place: Path, *, every: bool = False, options: Options | None = None) -> TableSample:
    """The first rows of one table: a file, a folder of files of one kind, or a Delta table.

    Raises:
        FormatError: it cannot be read as what its name says.
    """
    kind = kind_of(place)
    with _readable(place):
        if kind == "delta":
            return _delta(place, every)
        inside = data_files(place)
        refuse_tables_in_one(place, options or Options())
        if kind == "parquet":
            return _parquet(inside, every)
        inside = [f for f in inside if f.stat().st_size] or inside
        file = inside[0]
        with _readable(file), _opened(file) as stream:
            asked = options or Options()
            if kind == "csv":
                start = head(str(file), encoding=asked.encoding, delimiter=asked.delimiter)
                found = of_csv(stream, start.names, start.dialect, every=every)
            else:
                found = of_json(stream, every=every, encoding=asked.encoding)
        return found if len(inside) == 1 else TableSample(found.rows, None, text=True)


@contextmanager
def _readable(place: Path) -> Iterator[None]:
    """Raises FormatError with the place for what goes wrong inside."""
    try:
        yield
    except (OSError, EOFError, ValueError, TypeError, RecursionError, pa.ArrowException) as error:
        raise FormatError(f"it cannot be read: {error}", where=str(place)) from error


def _most(columns: int, every: bool) -> int:
    return 1 << 62 if every else max(10, min(ROWS, CELLS // max(columns, 1)))


def _parquet(inside: Sequence[Path], every: bool) -> TableSample:
    footers = list(map(_footer, inside))
    most = _most(footers[0].num_columns, every)
    parts: list[pa.Table] = []
    for file in inside:
        left = most - sum(p.num_rows for p in parts)
        if left <= 0:
            break
        with _readable(file):
            parts.append(_first_rows(file, left))
    rows = pa.concat_tables(map(in_micros, parts), promote_options="permissive")
    return TableSample(rows, sum(f.num_rows for f in footers))


def _footer(file: Path) -> pq.FileMetaData:
    with _readable(file):
        return pq.read_metadata(file)


def _first_rows(file: Path, most: int) -> pa.Table:
    batches = pq.ParquetFile(file).iter_batches(batch_size=min(most, 1 << 16))
    first: list[pa.RecordBatch] = []
    while sum(map(len, first)) < most and (batch := next(batches, None)) is not None:
        first.append(batch)
    schema = first[0].schema if first else pq.read_schema(file)
    return pa.Table.from_batches(first, schema).slice(0, most)


def _delta(place: Path, every: bool) -> TableSample:
    from deltalake import DeltaTable

    from ..lake.reading import dataset

    rows = dataset(DeltaTable(str(place)))
    # `head` counts in 32 bits.
    found = rows.to_table() if every else rows.head(_most(len(rows.schema), every))
    return TableSample(found, found.num_rows if every else rows.count_rows())


def _opened(file: Path) -> IO[bytes]:
    return gzip.open(file) if file.suffix.lower() == ".gz" else file.open("rb")  # type: ignore[return-value]


def of_csv(
    stream: IO[bytes], names: Sequence[str], dialect: Dialect, *, every: bool = False, header: bool = True
) -> TableSample:
    """The first rows of delimited text, parsed as in reading; invalid lines are left out.

    Raises:
        FormatError: as `delimited.read`; the header line has other names.
    """
    left = most = _most(len(names), every)
    parts = [pa.schema([(n, pa.string()) for n in names]).empty_table()]
    named = names if header else ()
    for block in delimited.read(stream.read, dialect, len(names), header=header, named=named):
        rows = pa.table(block.columns, names=list(names))
        parts.append(rows.filter(pc.is_null(block.why)) if block.why.null_count < len(block.why) else rows)
        left -= len(block.rows)
        if left < 0:
            break
    rows = pa.concat_tables(parts)
    return TableSample(rows.slice(0, most), rows.num_rows if left >= 0 else None, text=True)


def of_json(stream: IO[bytes], *, every: bool = False, encoding: str = "utf-8") -> TableSample:
    """The first rows of JSON lines: columns in the order of the first line, values as text.

    Raises:
        ValueError: a line is not a JSON object, or of another encoding.
    """
    lines = map(_object, _lines(stream, encoding))
    ahead = list(islice(lines, 1))
    names = dict.fromkeys(n for line in ahead for n in line)
    most = _most(len(names), every)
    rows = [*ahead, *islice(lines, most - 1)]
    names |= dict.fromkeys(n for row in rows for n in row)
    cells = ([_text(row.get(n)) for n in names] for row in rows)
    done = next(lines, None) is None
    made = _texts(list(names), cells, every=True)
    return TableSample(made.rows, len(rows) if done else None, text=True)


def _lines(stream: IO[bytes], encoding: str) -> Iterator[str]:
    """The lines of a stream that are not blank. A buffer finds them: Arrow's streams cannot be iterated."""
    buffered = io.BufferedReader(stream)  # type: ignore[type-var]
    with io.TextIOWrapper(buffered, encoding=encoding, newline="\n") as lines:
        first = next(lines, "").removeprefix("\ufeff")
        yield from (line for line in chain([first], lines) if line.strip())


def _object(line: str) -> dict[str, Any]:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object: {line.strip()[:80]}")
    return found


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _texts(names: Sequence[str], lines: Iterator[Sequence[str | None]], every: bool) -> TableSample:
    """Lines of values as columns of text; missing values are NULL, extra ones are left out."""
    most = _most(len(names), every)
    rows = list(islice((line for line in lines if line), most))
    done = next(lines, None) is None
    columns = [[(row[i] or None) if i < len(row) else None for row in rows] for i in range(len(names))]
    arrays = [pa.array(values, pa.string()) for values in columns]
    return TableSample(
        pa.Table.from_arrays(arrays, names=list(names)), len(rows) if done else None, text=True
    )
