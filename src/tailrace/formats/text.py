"""Reads delimited text files as DataFrames: parsed in Spark's tasks (`wire.delimited`), one file per task.

Columns are text. Invalid lines have a reason in `WHY` and their text in `RAW`; all their values are NULL.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import FormatError
from ..execution import over_rows
from ..lake.storage import filesystem
from ..wire import delimited
from ..wire.delimited import Dialect
from .base import FILE, RAW, ROW, WHY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LANES = 4
"""Tasks per core: files differ in size."""
OTHERS = (";", "\t", "|")
"""Delimiters to try in a first line without a comma, if none is configured."""
HINT = "is it truncated? remove it, or name its encoding (`--option encoding=...`)"


@dataclass(frozen=True)
class Head:
    """The first line of a file: column names (`_c3` for a missing one), and the dialect of the rest."""

    names: tuple[str, ...]
    dialect: Dialect


def head(
    path: str,
    *,
    encoding: str = "utf-8",
    delimiter: str = "",
    dialect: Dialect | None = None,
    header: bool = True,
) -> Head:
    """Returns the column names of a file, and its dialect if only the file itself shows it. `header`: whether
    its first line has names; otherwise they are `_c0` and so on.

    Raises:
        FormatError: the file cannot be read, or two columns have the same name.
    """
    with _opened(path) as file:
        start = file.read(1 << 16)
    chosen = dialect
    if chosen is None:
        comma = delimiter.replace("\\t", "\t") or ","
        chosen = Dialect(delimiter=comma, encoding=encoding, ends=_ends(start, encoding))
    found = _names(path, chosen)
    if dialect is None and not delimiter and len(found) == 1:
        for other in OTHERS:
            tried = replace(chosen, delimiter=other)
            if len(more := _names(path, tried)) > 1:
                found, chosen = more, tried
                break
    names = [n if n is not None and header else f"_c{i}" for i, n in enumerate(found)]
    times = Counter(n.lower() for n in names)
    if twice := next((n for n in names if times[n.lower()] > 1), None):
        raise FormatError(f"two columns {twice}", where=path, hint="letter case does not distinguish columns")
    return Head(tuple(names), chosen)


def _ends(start: bytes, encoding: str) -> str:
    text = start.decode(encoding, "replace")
    line = text.partition("\n")[0]
    return "\r\n" if line.endswith("\r") else "\n" if "\n" in text or "\r" not in text else "\r"


def _names(path: str, dialect: Dialect) -> list[str | None]:
    with _opened(path) as file:
        return delimited.names(file.read, dialect)


def json_names(lines: Iterable[str]) -> list[str]:
    """Returns the names in the first line that is a JSON object with any, in its order; empty if no line is.

    >>> json_names(["[1]", "{}", '{"b": 1, "a": {}}'])
    ['b', 'a']
    """
    for line in lines:
        with suppress(ValueError, RecursionError):
            if isinstance(one := json.loads(line.removeprefix("\ufeff")), dict) and one:
                return list(one)
    return []


def compression_of(path: str) -> str | None:
    """Returns the compression of a file, by its name in any letter case, as pyarrow names it.

    >>> compression_of("LOAD00000001.CSV.GZ"), compression_of("item.csv")
    ('gzip', None)
    """
    return "gzip" if path.lower().endswith(".gz") else None


@contextmanager
def _opened(path: str) -> Iterator[pa.NativeFile]:
    """Opens a file's text, uncompressed if its name ends with `.gz`; errors name the file."""
    try:
        fs, file_path = filesystem(path)
        with fs.open_input_stream(file_path, compression=compression_of(file_path)) as file:
            yield file
    except FormatError as error:
        raise FormatError(error.what, where=path, hint=error.hint or HINT) from error
    except (OSError, EOFError, pa.ArrowException) as error:
        raise FormatError(f"the file cannot be read: {error}", where=path, hint=HINT) from error


class _ReadTask:
    """Reads a task's files in batches with simple column names (`mapInArrow` cannot handle dots)."""

    def __init__(self, files: Sequence[str], named: Sequence[str], dialect: Dialect, header: bool) -> None:
        self.files, self.named, self.dialect, self.header = list(files), list(named), dialect, header

    def names(self) -> list[str]:
        return [*(f"c{i}" for i in range(len(self.named))), "file", "row", "why", "raw"]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for n in batch.column(0).to_pylist():
                yield from self._read(self.files[n])

    def _read(self, path: str) -> Iterator[pa.RecordBatch]:
        shown = path if "://" in path else Path(path).absolute().as_uri()
        with _opened(path) as file:
            width, header = len(self.named), self.header
            for block in delimited.read(file.read, self.dialect, width, header=header, named=self.named):
                size = len(block.rows)
                arrays = [*block.columns, pa.array([shown] * size, pa.string()), pa.array(block.rows),
                          block.why, block.raw]  # fmt: skip
                yield pa.RecordBatch.from_arrays(arrays, names=self.names())


def read(
    spark: SparkSession, files: Sequence[str], names: Sequence[str], dialect: Dialect, *, header: bool = True
) -> DataFrame:
    """Returns the lines of files of one layout: `names` as text, then `FILE`, `ROW` (from 1), `WHY`, `RAW`.

    Raises:
        FormatError: raised by the tasks: a file has other names in its first line, has another encoding, or
            is truncated.
    """
    task = _ReadTask(files, names, dialect, header)
    kinds = ", ".join(f"{n} {'bigint' if n == 'row' else 'string'}" for n in task.names())
    lanes = max(1, min(len(files), LANES * spark.sparkContext.defaultParallelism))
    lines = over_rows(spark.range(0, len(files), 1, lanes), task, kinds)
    return lines.toDF(*names, FILE, ROW, WHY, RAW)


__all__ = ["Head", "compression_of", "head", "json_names", "read"]
