"""Reads tables in folders through Spark: Parquet, CSV, JSON lines and Delta.

`folders` finds the tables and their files. CSV has a header line, quotes are doubled, NULL is an empty field
and the empty string is `""`; binary is hex in CSV and JSON. All columns of text files are read as text:
formats convert types (`shape.conform`). Invalid lines become rows with a reason in `WHY`; files that are not
read are noted in the metadata of `FILE`.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import FormatError
from ..lake.opened import open_table
from ..model.quoting import quoted
from ..wire.delimited import Dialect
from . import json_lines, parquet, text
from .base import FILE, OWN, RAW, ROW, WHY, Options
from .folders import below, data_files, firsts, is_empty, kind_of, not_read, tables_at, unglobbed
from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CSV = {
    "header": "true", "quote": '"', "escape": '"', "multiLine": "true", "encoding": "UTF-8",
    "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false",
}  # fmt: skip
NOTE = "tailrace"
"""In the metadata of the column `FILE`: notes about the files."""
UNCOUNTED = "tailraceUncounted"
"""In the metadata of the column `ROW`: rows are not numbered yet (`count_rows`)."""
_LINE, _FROM, _FIRST, _PIECES = (OWN + name for name in ("line", "from", "first", "pieces"))


def load(
    spark: SparkSession,
    path: str,
    options: Options | None = None,
    knows: Callable[[Sequence[str]], float] | None = None,
    *,
    hidden: Sequence[Path] = (),
) -> parquet.LoadedTables:
    """Returns the tables under a path by name, each with `FILE` and `ROW` after its columns. Tables that
    cannot be read and that `knows` does not recognise by their columns are noted. `hidden`: see `tables_at`.

    Raises:
        ConfigError: see `tables_at`.
        FormatError: every file is empty, or one cannot be read.
    """
    found = tables_at(path, hidden=hidden)
    notes = not_read(Path(path), found.values())
    tables = parquet.LoadedTables()
    for name, table_path in found.items():
        if is_empty(table_path):
            notes.append(f"{table_path.name} is empty: it does not even have column names")
            continue
        try:
            tables[name] = read(spark, table_path, options)
        except FormatError as error:
            if knows is None or _is_wanted(table_path, knows, options or Options()):
                raise
            notes.append(f"{name} is not read: {error.what}")
    if not tables:
        raise FormatError(notes[-1], where=path, hint="is the extract complete?")
    if notes:
        name = next(iter(tables))
        marks = {**tables[name].schema[FILE].metadata, NOTE: notes}
        tables[name] = tables[name].withMetadata(FILE, marks)
    for name in tables:
        if kind_of(found[name]) == "parquet":
            tables.add_files(name, data_files(found[name]))
    return tables


def refuse_nothing(path: str) -> None:
    """Raises ConfigError if there is no table at a path, FormatError if all are empty."""
    found = tables_at(path)
    if all(is_empty(table_path) for table_path in found.values()):
        raise FormatError(
            f"{path} is empty: it does not even have column names", hint="is the extract complete?"
        )


def columns_at(path: str, options: Options | None = None) -> dict[str, Sequence[str]]:
    """Returns the columns of the tables under a path, by table as `load` finds them, without Spark. For JSON
    lines, they are those of the first line that has any. Empty tables are left out.

    Raises:
        ConfigError: see `tables_at`.
        FormatError: every file is empty, or one cannot be read.
    """
    refuse_nothing(path)
    return {n: columns_of(p, options or Options()) for n, p in tables_at(path).items() if not is_empty(p)}


def columns_of(path: Path, options: Options) -> Sequence[str]:
    """Returns the columns of one table, without Spark."""
    if kind_of(path) == "delta":
        return [field.name for field in open_table(str(path)).schema().fields]
    refuse_tables_in_one(path, options)
    inside = data_files(path)
    return _names(next((f for f in inside if f.stat().st_size), inside[0]), options)


def notes_of(tables: Mapping[str, DataFrame]) -> list[str]:
    """Returns the notes of `load` about the files of tables."""
    found = [df.schema[FILE].metadata.get(NOTE, []) for df in tables.values() if FILE in df.columns]
    return [note for notes in found for note in notes]


def _is_wanted(path: Path, knows: Callable[[Sequence[str]], float], options: Options) -> bool:
    """Whether a text table is recognised, or its columns are unknown."""
    first = next(f for f in data_files(path) if f.stat().st_size)
    if kind_of(first) != "csv":
        return True
    return knows(_names(first, options)) > 0


def read(spark: SparkSession, path: Path, options: Options | None = None) -> DataFrame:
    """Returns one table with `FILE` and `ROW`; text files as text, with `WHY` and `RAW` if lines may be
    invalid.

    Raises:
        FormatError: a file cannot be read; files in different folders of the table have different columns.
    """
    kind, options = kind_of(path), options or Options()
    if kind == "parquet":
        df = parquet.read(spark, data_files(path))
    else:
        df = _csv(spark, path, options) if kind == "csv" else _numbered(spark, path, kind, options)
    refuse_tables_in_one(path, options)
    return df


def refuse_tables_in_one(table_path: Path, options: Options) -> None:
    """Raises FormatError if files in different folders of one table have different columns: they may be
    different tables. Partitions' folders may differ."""
    if kind_of(table_path) == "delta" or len(some := firsts(table_path)) < 2:
        return
    names = [set(_names(file, options)) for file in some]
    if other := next((f for f, n in zip(some, names, strict=True) if n != names[0]), None):
        raise FormatError(
            f"{below(other, table_path)} has other columns than {below(some[0], table_path)}",
            where=str(table_path),
            hint="if its folders are tables, give its path alone; otherwise put its files into one folder",
        )


def _names(file: Path, options: Options) -> Sequence[str]:
    """Returns the names of a file's columns; for JSON those of the first line that has any.

    Raises:
        FormatError: the file cannot be read as the kind that its name indicates.
    """
    kind = kind_of(file)
    try:
        if kind == "parquet":
            return pq.read_schema(file).names  # type: ignore[no-any-return]
        if kind == "csv":
            return text.head(str(file), encoding=options.encoding, delimiter=options.delimiter).names
        with gzip.open(file) if text.compression_of(str(file)) else file.open("rb") as stream:
            lines = io.TextIOWrapper(stream, encoding=options.encoding, errors="replace", newline="\n")
            return text.json_names(lines)
    except (OSError, EOFError, pa.ArrowException) as error:
        raise FormatError(f"it cannot be read: {error}", where=str(file)) from error


def _numbered(spark: SparkSession, path: Path, kind: str | None, options: Options) -> DataFrame:
    """Returns a table of JSON lines or Delta, whose rows have no numbers yet."""
    if kind == "json":
        df = _json(spark, path, options)
        names = _written_order([c for c in df.columns if c != FILE], path, options)
        file = F.col(FILE).alias(FILE, metadata={json_lines.LINES: 1})
    else:
        df = spark.read.format("delta").load(str(path))
        names, file = df.columns, F.col("_metadata.file_path").alias(FILE)
    # Spark does not number these rows: they get negative values, which `count_rows` turns into numbers.
    row, marks = -1 - F.monotonically_increasing_id(), {UNCOUNTED: 1}
    broken = []
    if _LINE in names:
        names = [n for n in names if n != _LINE]
        broken = [no_line(_LINE, names[0], "not JSON").alias(WHY), F.col(_LINE).alias(RAW)] if names else []
    return df.select(*[F.col(quoted(c)) for c in names], file, row.alias(ROW, metadata=marks), *broken)


def no_line(line: str, other: str, why: str) -> Column:
    """Returns the reason `why` if the column `line` has a line that could not be read. Spark refuses queries
    that need only that column of a file, so the reason also uses another one."""
    nothing = F.coalesce(F.substring(F.col(quoted(other)).cast("string"), 1, 0), F.lit(""))
    return F.when(F.col(quoted(line)).isNotNull(), F.concat(F.lit(why), nothing))


def _csv(spark: SparkSession, path: Path, options: Options) -> DataFrame:
    """Returns a table of delimited text; files of one dialect are read together."""
    names, found = _by_dialect(path, options)
    parts = [text.read(spark, files, names, dialect) for dialect, files in found.items()]
    return reduce(lambda a, b: a.union(b), parts)


def _by_dialect(path: Path, options: Options) -> tuple[tuple[str, ...], dict[Dialect, list[str]]]:
    """Returns the column names of a table of delimited text, and its files by dialect.

    Raises:
        FormatError: files have different columns, or a different order of columns (masks refer to it).
    """
    heads = {}
    for file in data_files(path):
        if file.stat().st_size:
            heads[file] = text.head(str(file), encoding=options.encoding, delimiter=options.delimiter)
    first, head = next(iter(heads.items()))
    for file, other in heads.items():
        if other.names and other.names != head.names:
            raise FormatError(
                f"{below(file, path)} has other columns than {below(first, path)}", where=str(path),
                hint=f"{', '.join(other.names)} are not {', '.join(head.names)}: read the files one by one",
            )  # fmt: skip
    found: dict[Dialect, list[str]] = {}
    for file, other in heads.items():
        found.setdefault(other.dialect, []).extend([str(file)] if other.names else [])
    return head.names, {d: files for d, files in found.items() if files} or found


def _json(spark: SparkSession, path: Path, options: Options) -> DataFrame:
    """Returns JSON lines with every value as text, and `FILE`; with a column `_LINE` if some lines are
    invalid."""
    from pyspark.sql.types import StringType, StructField, StructType

    asked = json_lines.reader_options(options.encoding, _LINE, str(path))
    paths = [unglobbed(str(f)) for f in data_files(path)]
    found = spark.read.options(**asked, primitivesAsString="true").json(paths).schema
    fields = [f for f in found if f.name != _LINE]
    if _LINE in found.names:
        if not fields:
            raise FormatError("no line is JSON", where=str(path), hint="a JSON file has one object per line")
        fields = [*fields, StructField(_LINE, StringType())]
    return json_lines.read(
        spark, paths, StructType(fields), line=_LINE, encoding=options.encoding, where=str(path)
    )


def count_rows(rows: DataFrame, table: DataFrame) -> DataFrame:
    """Returns `rows` of text files with real row numbers in `ROW`; `table` is the result of `read`.

    Only reported rows are numbered, with one pass over the table. Files that are read in several pieces get
    NULL: Spark does not report how many rows precede a piece.
    """
    at = -1 - F.col(ROW)
    pieces = F.countDistinct(F.shiftright(at, 33)).alias(
        _PIECES
    )  # 33: the lower bits are the row, the higher ones the task
    files = table.filter(F.col(ROW) < 0).groupBy(F.col(FILE).alias(_FROM))
    first = F.broadcast(files.agg(F.min(at).alias(_FIRST), pieces))
    joined = rows.join(first, F.col(FILE) == F.col(_FROM), "left")
    number = F.when(F.col(ROW) > 0, F.col(ROW)).when(F.col(_PIECES) == 1, at - F.col(_FIRST) + 1)
    return joined.withColumn(ROW, number).drop(_FROM, _FIRST, _PIECES)


def _written_order(names: list[str], path: Path, options: Options) -> list[str]:
    """Returns JSON's names in the order in which they were written: that of the first line that is an object.
    Spark returns them in alphabetical order, but masks refer to the original one.

    Raises:
        FormatError: no line is an object.
    """
    if not names:
        return names
    found = (_names(f, options) for f in data_files(path) if f.stat().st_size)
    if (written := next(filter(None, found), None)) is None:
        raise FormatError(
            "the order of columns is unknown, because no line is a JSON object",
            where=str(path),
            hint="write each line as a JSON object, names in double quotes, in UTF-8 or the given encoding "
            "(`--option encoding=...`)",
        )
    return [*(n for n in written if n in names), *(n for n in names if n not in written)]
