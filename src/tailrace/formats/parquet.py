"""Reads Parquet files through Spark; times in nanoseconds (pandas and Arrow write them) become microseconds.

Spark returns such a column as a number. Lost digits are counted, as in text (`FINER`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import FormatError
from ..model.quoting import quoted
from .base import FILE, ROW
from .folders import unglobbed
from .shape import finer_too
from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_TOO_LONG = r"\bdecimal256\((39|[4-9]\d),"
_UNREAD = re.compile(rf"\btime(32|64)\[|\bhalffloat\b|\barrow\.uuid\b|{_TOO_LONG}")
_ANY, _TEXT = re.compile(""), re.compile(r"(string|binary)$")
_SAME = (
    (re.compile(r"dictionary<values=(\w+), indices=\w+, ordered=\w+>"), r"\1"),
    (re.compile(r"\blarge_|_view\b|\bfixed_size_(?=binary)|(?<=binary)\[\d+\]"), ""),
    (re.compile(r"timestamp\[\w+"), "timestamp[us"),
    (re.compile(r"\btz=[^\]]+"), "tz=UTC"),
    (re.compile(r"(?<=list<)\w+: | not null\b"), ""),
    (re.compile(r"\buint8\b"), "int16"),
    (re.compile(r"\buint16\b"), "int32"),
    (re.compile(r"\buint32\b"), "int64"),
    (re.compile(r"\buint64\b"), "decimal128(20, 0)"),
    (re.compile(r"\bdecimal\d+\(\d+, (-?\d+)\)"), r"decimal(*, \1)"),
)
"""Types that Arrow distinguishes and Spark does not, and their common name; Spark combines decimals of the
same scale exactly."""


class LoadedTables(dict[str, "DataFrame"]):
    """Tables by name, and the files of plain Parquet tables: some of them are read file by file."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, tuple[DataFrame, list[Path]]] = {}

    def add_files(self, name: str, files: list[Path]) -> None:
        """Records the Parquet files of a table."""
        self._files[name] = (self[name], files)

    def files_of(self, name: str) -> list[Path] | None:
        """Returns the Parquet files of a table; None if it has other files, or its rows were replaced."""
        df, files = self._files.get(name, (None, None))
        return files if df is not None and df is self.get(name) else None


def nanoseconds(types: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the columns, given as names and Arrow types (text), with times in nanoseconds or lists of them
    -> the Spark type of a time.

    >>> nanoseconds([("id", "int64"), ("at", "timestamp[ns]"), ("b", "list<element: timestamp[ns, tz=UTC]>")])
    {'at': 'timestamp_ntz', 'b': 'timestamp'}
    """
    return {
        name: "timestamp" if "timestamp[ns, tz=" in kind else "timestamp_ntz"
        for name, kind in types
        if "timestamp[ns" in kind
    }


def read(spark: SparkSession, files: Iterable[Path]) -> DataFrame:
    """Returns the files of one table with `FILE`, `ROW`, and `FINER` if there are nanoseconds. Files may have
    different columns and units of time. Spark gets single files: folder names do not become columns.

    Raises:
        FormatError: a file is not Parquet, or has a column of a type that Spark cannot read or that differs
            from the other files.
    """
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    schemas: dict[Path, list[tuple[str, str]]] = {}
    for file in files:
        try:
            schema = pq.read_schema(file)
        except (OSError, pa.ArrowException) as error:
            raise FormatError(f"it cannot be read: {error}", where=str(file)) from error
        types = list(zip(schema.names, map(str, schema.types), strict=True))
        refuse(types, str(file))
        found, schemas[file] = nanoseconds(types), types
        groups.setdefault(tuple(found.items()), []).append(unglobbed(str(file)))
    # Spark refuses different types of a column in one read; a union of groups accepts some of them.
    _refuse_two_kinds(schemas, _TEXT if len(groups) < 2 else _ANY)
    reader = spark.read.option("mergeSchema", "true")
    try:
        parts = [taken(reader.parquet(*paths), dict(found)) for found, paths in groups.items()]
    except Exception as error:
        if "CANNOT_MERGE" in str(error):
            _refuse_two_kinds(schemas)
        raise
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)


def _refuse_two_kinds(
    schemas: Mapping[Path, Sequence[tuple[str, str]]], among: re.Pattern[str] = _ANY
) -> None:
    """Raises FormatError for a column that has two types in two files, one of them `among` these."""
    first: dict[str, tuple[str, str, Path]] = {}
    for file, types in schemas.items():
        for name, arrow in types:
            kind = reduce(lambda text, same: same[0].sub(same[1], text), _SAME, arrow)
            before, other_type, other = first.setdefault(name.lower(), (kind, arrow, file))
            if kind != before and (among.match(kind) or among.match(before)):
                raise FormatError(
                    f"the column {name} is of the type {arrow}, in {other.name} {other_type}",
                    where=str(file),
                    hint="write it with the same type in all files of the table",
                )


def refuse(types: Iterable[tuple[str, str]], where: str) -> None:
    """Raises FormatError for a column (name, Arrow type as text) of a type that Spark cannot read.

    >>> refuse([("at", "time64[us]")], "t.parquet")
    Traceback (most recent call last):
    ...
    tailrace.errors.FormatError: the column at is of the type time64[us], which Spark does not read
      where: t.parquet
      hint: write it as text (a time of day as 23:59:59.999999), or leave it out
    """
    for name, kind in types:
        if _UNREAD.search(kind):
            long = re.search(_TOO_LONG, kind) is not None
            how = (
                "with at most 38 digits, or as text" if long else "as text (a time of day as 23:59:59.999999)"
            )
            raise FormatError(
                f"the column {name} is of the type {kind}, which Spark does not read",
                where=where,
                hint=f"write it {how}, or leave it out",
            )


def taken(df: DataFrame, times: Mapping[str, str]) -> DataFrame:
    """Returns rows of Parquet files in which the columns `times` are nanoseconds, with `FILE`, `ROW`,
    `FINER`."""
    columns, cut = [], []
    for field in df.schema:
        value = F.col(quoted(field.name))
        kind = field.dataType.simpleString()
        if field.name in times and kind in ("bigint", "array<bigint>"):  # Spark itself converts INT96
            cut.append(_is_finer(value, kind))
            value = _micros(value, kind, times[field.name])
        columns.append(value.alias(field.name, metadata=field.metadata))
    file = F.col("_metadata.file_path").alias(FILE)
    row = (F.col("_metadata.row_index") + 1).alias(ROW)
    return df.select(*columns, file, row, *finer_too(df, cut))


def _micros(value: Column, kind: str, wanted: str) -> Column:
    if kind.startswith("array"):
        return F.transform(value, lambda one: _micros(one, "bigint", wanted))
    whole = F.call_function("div", value, F.lit(1000).cast("bigint"))  # towards 0
    down = ((value < 0) & _is_finer(value, kind)).cast("bigint")
    return F.timestamp_micros(whole - down).cast(wanted)


def _is_finer(value: Column, kind: str) -> Column:
    if kind.startswith("array"):
        return F.coalesce(F.exists(value, lambda one: _is_finer(one, "bigint")), F.lit(False))
    return F.coalesce(F.pmod(value, F.lit(1000)) != 0, F.lit(False))


__all__ = ["LoadedTables", "nanoseconds", "read", "taken"]
