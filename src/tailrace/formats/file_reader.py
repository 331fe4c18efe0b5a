"""Tables in folders: Parquet, CSV, JSON lines and Delta, read and written through Spark.

`folders` finds the tables and their files. CSV has a header line, quotes doubled, NULL as
nothing and the empty string as `""`; binary is hex in CSV and JSON. Text kinds come in as text in every
column: types are the format's business (`shape.conform`). Lines that are none come in with their reason in
`WHY`; what is not read at all is noted in `FILE`'s metadata.
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
from deltalake import DeltaTable

from ..errors import FormatError
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
"""In the metadata of the column `FILE`: what loading found odd about the files."""
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
    """The tables under a path by name, each with `FILE` and `ROW` after its columns. Tables that cannot
    be read and that `knows` does not recognise by their columns are noted. `hidden`: see `tables_at`.

    Raises:
        ConfigError: see `tables_at`.
        FormatError: every file is empty, or one cannot be read.
    """
    found = tables_at(path, hidden=hidden)
    notes = not_read(Path(path), found.values())
    tables = parquet.LoadedTables()
    for name, place in found.items():
        if is_empty(place):
            notes.append(f"{place.name} is empty: it does not even have column names")
            continue
        try:
            tables[name] = read(spark, place, options)
        except FormatError as error:
            if knows is None or _wanted(place, knows, options or Options()):
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
            tables.lies_in(name, data_files(found[name]))
    return tables


def refuse_nothing(path: str) -> None:
    """Raises ConfigError if there is no table at a path, FormatError if all are empty."""
    found = tables_at(path)
    if all(is_empty(place) for place in found.values()):
        raise FormatError(
            f"{path} is empty: it does not even have column names", hint="is the extract complete?"
        )


def columns_at(path: str, options: Options | None = None) -> dict[str, Sequence[str]]:
    """The columns of the tables under a path, by table as `load` finds them, without Spark; of JSON lines
    those of the first line that has some. Empty tables are left out.

    Raises:
        ConfigError: see `tables_at`.
        FormatError: every file is empty, or one cannot be read.
    """
    refuse_nothing(path)
    return {n: columns_of(p, options or Options()) for n, p in tables_at(path).items() if not is_empty(p)}


def columns_of(place: Path, options: Options) -> Sequence[str]:
    """The columns of one table, without Spark."""
    if kind_of(place) == "delta":
        return [field.name for field in DeltaTable(str(place)).schema().fields]
    refuse_tables_in_one(place, options)
    inside = data_files(place)
    return _names(next((f for f in inside if f.stat().st_size), inside[0]), options)


def notes_of(tables: Mapping[str, DataFrame]) -> list[str]:
    """What loading found odd about the files of tables."""
    found = [df.schema[FILE].metadata.get(NOTE, []) for df in tables.values() if FILE in df.columns]
    return [note for notes in found for note in notes]


def _wanted(place: Path, knows: Callable[[Sequence[str]], float], options: Options) -> bool:
    """Whether a text table is a known one, or its columns are unknown."""
    first = next(f for f in data_files(place) if f.stat().st_size)
    if kind_of(first) != "csv":
        return True
    return knows(_names(first, options)) > 0


def read(spark: SparkSession, path: Path, options: Options | None = None) -> DataFrame:
    """One table with `FILE` and `ROW`; text kinds as text, with `WHY` and `RAW` if lines may be invalid.

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


def refuse_tables_in_one(place: Path, options: Options) -> None:
    """Raises FormatError if files in different folders of one table have different columns: they may well be
    tables of their own. Folders of partitions may have any."""
    if kind_of(place) == "delta" or len(some := firsts(place)) < 2:
        return
    names = [set(_names(file, options)) for file in some]
    if other := next((f for f, n in zip(some, names, strict=True) if n != names[0]), None):
        raise FormatError(
            f"{below(other, place)} has other columns than {below(some[0], place)}",
            where=str(place),
            hint="if its folders are tables, give its path alone; if not, put its files side by side",
        )


def _names(file: Path, options: Options) -> Sequence[str]:
    """The names of a file's columns; of JSON those of the first line that has some.

    Raises:
        FormatError: the file cannot be read as what its name says.
    """
    kind = kind_of(file)
    try:
        if kind == "parquet":
            return pq.read_schema(file).names  # type: ignore[no-any-return]
        if kind == "csv":
            return text.head(str(file), encoding=options.encoding, delimiter=options.delimiter).names
        with gzip.open(file) if text.packing(str(file)) else file.open("rb") as stream:
            lines = io.TextIOWrapper(stream, encoding=options.encoding, errors="replace", newline="\n")
            return text.json_names(lines)
    except (OSError, EOFError, pa.ArrowException) as error:
        raise FormatError(f"it cannot be read: {error}", where=str(file)) from error


def _numbered(spark: SparkSession, path: Path, kind: str | None, options: Options) -> DataFrame:
    """A table of JSON lines or Delta, whose rows have no numbers yet."""
    if kind == "json":
        df = _json(spark, path, options)
        names = _in_order([c for c in df.columns if c != FILE], path, options)
        place = F.col(FILE).alias(FILE, metadata={json_lines.LINES: 1})
    else:
        df = spark.read.format("delta").load(str(path))
        names, place = df.columns, F.col("_metadata.file_path").alias(FILE)
    # These rows have no numbers of their own: negative values, which `count_rows` turns into numbers.
    row, marks = -1 - F.monotonically_increasing_id(), {UNCOUNTED: 1}
    broken = []
    if _LINE in names:
        names = [n for n in names if n != _LINE]
        broken = [no_line(_LINE, names[0], "not JSON").alias(WHY), F.col(_LINE).alias(RAW)] if names else []
    return df.select(*[F.col(quoted(c)) for c in names], place, row.alias(ROW, metadata=marks), *broken)


def no_line(line: str, other: str, why: str) -> Column:
    """The reason if the column `line` has a line that could not be read. Spark refuses queries that need
    only that column of a file, so the reason also uses another one."""
    nothing = F.coalesce(F.substring(F.col(quoted(other)).cast("string"), 1, 0), F.lit(""))
    return F.when(F.col(quoted(line)).isNotNull(), F.concat(F.lit(why), nothing))


def _csv(spark: SparkSession, path: Path, options: Options) -> DataFrame:
    """A table of delimited text; files of one dialect are read together."""
    names, found = _by_dialect(path, options)
    parts = [text.read(spark, files, names, dialect) for dialect, files in found.items()]
    return reduce(lambda a, b: a.union(b), parts)


def _by_dialect(path: Path, options: Options) -> tuple[tuple[str, ...], dict[Dialect, list[str]]]:
    """The column names of a table of delimited text, and its files by dialect.

    Raises:
        FormatError: files have other columns, or in another order, though masks count them.
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
    """JSON lines, every value as text, and `FILE`; with a column `_LINE` if some lines are invalid."""
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
    """`rows` with real row numbers in `ROW`, for rows of text files; `table` is the result of `read`.

    Counted only for what is reported, by one pass over the table. Files that are read in several pieces give
    NULL: Spark does not say how many rows are before a piece.
    """
    at = -1 - F.col(ROW)
    pieces = F.countDistinct(F.shiftright(at, 33)).alias(_PIECES)  # 33: below them rows, above the task
    files = table.filter(F.col(ROW) < 0).groupBy(F.col(FILE).alias(_FROM))
    first = F.broadcast(files.agg(F.min(at).alias(_FIRST), pieces))
    joined = rows.join(first, F.col(FILE) == F.col(_FROM), "left")
    number = F.when(F.col(ROW) > 0, F.col(ROW)).when(F.col(_PIECES) == 1, at - F.col(_FIRST) + 1)
    return joined.withColumn(ROW, number).drop(_FROM, _FIRST, _PIECES)


def _in_order(names: list[str], path: Path, options: Options) -> list[str]:
    """Spark returns JSON's names in alphabetical order, but masks count columns in the order in which they
    were written: that of the first line that is an object.

    Raises:
        FormatError: no line is one.
    """
    if not names:
        return names
    found = (_names(f, options) for f in data_files(path) if f.stat().st_size)
    if (written := next(filter(None, found), None)) is None:
        raise FormatError(
            "no line says in which order its columns are",
            where=str(path),
            hint="each line is a JSON object of its own, names in double quotes, in the encoding that is "
            "named (`--option encoding=...`)",
        )
    return [*(n for n in written if n in names), *(n for n in names if n not in written)]
