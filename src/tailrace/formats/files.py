"""Tables in folders: Parquet, CSV, JSON lines and Delta, read and written through Spark.

A path is one table (a file, a folder of files of one kind, a Delta table), named after itself, or a folder of
tables. CSV has a header line, quotes doubled, NULL as nothing and the empty string as `""`; binary is hex in
CSV and JSON. Text kinds come in as text in every column: types are the format's business (`shape.conform`).
Lines that are none come in with their reason in `WHY`; what is not read at all is told in `FILE`'s metadata.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, FormatError
from . import parquet, text
from .base import FILE, RAW, ROW, WHY, Options
from .shape import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KINDS = {
    "parquet": (".parquet",),
    "csv": (".csv", ".csv.gz"),
    "json": (".json", ".jsonl", ".json.gz", ".jsonl.gz"),
}
"""File kind -> endings; a Delta table is a folder that has `_delta_log`."""
CSV = {
    "header": "true", "quote": '"', "escape": '"', "multiLine": "true", "encoding": "UTF-8",
    "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false",
}  # fmt: skip
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".tar.gz", ".bz2", ".xz", ".zst", ".z", ".parquet.gz")
"""Endings of files that are refused by name."""
ELSEWHERE = (".cd",)
"""Endings of files that formats read by themselves."""
NOTE = "tailrace"
"""In the metadata of the column `FILE`: what loading found odd about the files."""
UNCOUNTED = "tailraceUncounted"
"""In the metadata of the column `ROW`: rows are not numbered yet (`count_rows`)."""
_LINE = "\ue000line"


def kind_of(path: Path) -> str | None:
    """The kind of a file or of a folder's files; None if it is not supported, or a folder of tables."""
    if (path / "_delta_log").is_dir():
        return "delta"
    if path.is_file():
        return next((k for k, ends in KINDS.items() if path.name.lower().endswith(ends)), None)
    kinds = {
        k for f in path.iterdir() if f.is_file() and not f.name.startswith((".", "_")) and (k := kind_of(f))
    }
    return kinds.pop() if len(kinds) == 1 else None


def load(
    spark: SparkSession,
    path: str,
    options: Options | None = None,
    knows: Callable[[Sequence[str]], float] | None = None,
) -> parquet.LoadedTables:
    """The tables under a path by name, each with `FILE` and `ROW` behind its columns. Those that cannot be
    read and that nobody wants (`knows`: how sure one is of columns) are told of.

    Raises:
        ConfigError: see `places`.
        FormatError: every file is empty, or one cannot be read.
    """
    found = places(path)
    notes = _not_read(Path(path), found.values())
    tables = parquet.LoadedTables()
    for name, place in found.items():
        if is_empty(place):
            notes.append(f"{place.name} is empty: it does not even have column names")
            continue
        try:
            tables[name] = read(spark, place, options)
        except FormatError as error:
            if knows is None or _wanted(place, knows):
                raise
            notes.append(f"{name} is not read: {error.what}")
    if not tables:
        raise FormatError(notes[-1], where=path, hint="is the extract complete?")
    if notes:
        name = next(iter(tables))
        tables[name] = tables[name].withMetadata(FILE, {NOTE: notes})
    for name in tables:
        if kind_of(found[name]) == "parquet":
            tables.lies_in(name, data_files(found[name]))
    return tables


def places(path: str) -> dict[str, Path]:
    """The paths of the tables under a path, by name.

    Raises:
        ConfigError: there is nothing, nothing that is a table, or an archive.
    """
    root = there(path)
    refuse_archives([root, *root.iterdir()] if root.is_dir() else [root])
    found = {}
    if kind_of(root) and not _stems_differ(root):
        found[_name(root)] = root
    elif root.is_dir():
        found = {
            _name(p): p for p in sorted(root.iterdir()) if not p.name.startswith((".", "_")) and kind_of(p)
        }
    if not found:
        raise ConfigError(
            f"{path} contains no table", hint="Parquet, CSV and JSON files and Delta tables are read"
        )
    return found


def refuse_nothing(path: str) -> None:
    """Raises ConfigError if there is no table at a path, FormatError if all are empty."""
    found = places(path)
    if all(is_empty(place) for place in found.values()):
        raise FormatError(
            f"{path} is empty: it does not even have column names", hint="is the extract complete?"
        )


def there(path: str) -> Path:
    """That path; ConfigError when nothing is there."""
    root = Path(path)
    if "://" not in path and not root.exists():
        raise ConfigError(f"there is no {path}", hint="give a file, a folder of files, or a folder of tables")
    return root


def notes_of(tables: Mapping[str, DataFrame]) -> list[str]:
    """What loading found odd about the files of tables."""
    found = [df.schema[FILE].metadata.get(NOTE, []) for df in tables.values() if FILE in df.columns]
    return [note for notes in found for note in notes]


def refuse_archives(paths: Iterable[Path]) -> None:
    """Raises ConfigError for a file that must be unpacked first."""
    for path in paths:
        lower = path.name.lower()
        if lower.endswith(ARCHIVES) and not lower.endswith(tuple(e for k in KINDS.values() for e in k)):
            raise ConfigError(
                f"{path.name} is an archive",
                where=str(path.parent),
                hint="unpack it; only .gz of CSV and JSON is read",
            )


def _wanted(place: Path, knows: Callable[[Sequence[str]], float]) -> bool:
    """Whether a text table is a known one, or its columns are unknown."""
    first = next(f for f in data_files(place) if f.stat().st_size)
    if kind_of(first) != "csv":
        return True
    return knows(text.head(str(first)).names) > 0


def is_empty(place: Path) -> bool:
    """Whether a table consists of empty text files."""
    return kind_of(place) in ("csv", "json") and not any(f.stat().st_size for f in data_files(place))


def data_files(place: Path) -> list[Path]:
    """A table's data files, in order."""
    if place.is_file():
        return [place]
    return sorted(
        f for f in place.iterdir() if not f.name.startswith((".", "_")) and f.is_file() and kind_of(f)
    )


def _not_read(root: Path, tables: Iterable[Path]) -> list[str]:
    """Files in a folder that are not read."""
    known = set(tables)
    there = [p for p in sorted(root.iterdir()) if not p.name.startswith((".", "_"))] if root.is_dir() else []
    if root in known:  # one table: all files are its own
        known |= {p for p in there if p.is_dir() or kind_of(p)}
    return [
        f"{p.name} is not a table: not read" for p in there if p not in known and p.suffix not in ELSEWHERE
    ]


def _stems_differ(root: Path) -> bool:
    """Whether a folder's files are separate tables: text files whose names are not part numbers."""
    if root.is_file() or kind_of(root) == "delta":
        return False
    files = [f for f in root.iterdir() if f.is_file() and kind_of(f)]
    return len(files) > 1 and not any(f.name.startswith("part-") or f.name[0].isdigit() for f in files)


def _name(path: Path) -> str:
    name = path.name
    for end in (".gz", ".parquet", ".csv", ".jsonl", ".json"):
        name = name.removesuffix(end) if path.is_file() else name
    return name


def read(spark: SparkSession, path: Path, options: Options | None = None) -> DataFrame:
    """One table with `FILE` and `ROW`; text kinds as text, with `WHY` and `RAW` if lines may be invalid."""
    from pyspark.sql import functions as F

    kind, options = kind_of(path), options or Options()
    if kind == "csv":
        return _csv(spark, path, options)
    if kind == "parquet":
        return parquet.read(spark, path, data_files(path))
    delta = spark.read.format("delta")
    df = _json(spark, path, options) if kind == "json" else delta.load(str(path))
    names = _in_order(df.columns, path) if kind == "json" else df.columns
    # These rows have no numbers of their own: negative values, which `count_rows` turns into numbers.
    row, marks = -1 - F.monotonically_increasing_id(), {UNCOUNTED: 1}
    place = F.col("_metadata.file_path").alias(FILE)
    broken = []
    if _LINE in names:
        names = [n for n in names if n != _LINE]
        broken = [no_line(_LINE, names[0], "not JSON").alias(WHY), F.col(_LINE).alias(RAW)] if names else []
    return df.select(*[F.col(quoted(c)) for c in names], place, row.alias(ROW, metadata=marks), *broken)


def no_line(line: str, other: str, why: str) -> Column:
    """The reason if the column `line` has a line that could not be read. Spark refuses queries that need
    only that column of a file, so the reason also uses another one."""
    from pyspark.sql import functions as F

    nothing = F.coalesce(F.substring(F.col(quoted(other)).cast("string"), 1, 0), F.lit(""))
    return F.when(F.col(quoted(line)).isNotNull(), F.concat(F.lit(why), nothing))


def _csv(spark: SparkSession, path: Path, options: Options) -> DataFrame:
    """A table of delimited text; its files must have the same columns in the same order, because masks count
    them."""
    heads = {}
    for file in data_files(path):
        if file.stat().st_size:
            heads[file] = text.head(str(file), encoding=options.encoding, delimiter=options.delimiter)
    first, head = next(iter(heads.items()))
    for file, other in heads.items():
        if other.names and other.names != head.names:
            raise FormatError(
                f"{file.name} has other columns than {first.name}", where=str(path),
                hint=f"{', '.join(other.names)} are not {', '.join(head.names)}: read the files one by one",
            )  # fmt: skip
    return text.read(spark, [str(f) for f, h in heads.items() if h.names], head.names, head.dialect)


def _json(spark: SparkSession, path: Path, options: Options) -> DataFrame:
    """JSON lines, every value as text; with a column `_LINE` if some lines are invalid."""
    from pyspark.sql.types import StringType, StructField, StructType

    asked = {"primitivesAsString": "true", "columnNameOfCorruptRecord": _LINE}
    if options.encoding.lower() not in ("utf-8", "utf8"):
        asked |= {"encoding": options.encoding, "lineSep": "\n"}
    df = spark.read.options(**asked).json(str(path))
    if _LINE not in df.columns:
        return df
    fields = [f for f in df.schema if f.name != _LINE]
    if not fields:
        raise FormatError("no line is JSON", where=str(path), hint="a JSON file has one object per line")
    return (
        spark.read.options(**asked)
        .schema(StructType([*fields, StructField(_LINE, StringType())]))
        .json(str(path))
    )


def count_rows(rows: DataFrame, table: DataFrame) -> DataFrame:
    """`rows` with real row numbers in `ROW`, for rows of text files; `table` is the result of `read`.

    Counted only for what is reported, by one pass over the table. Files that are read in several pieces give
    NULL: Spark does not say how many rows are before a piece.
    """
    from pyspark.sql import functions as F

    at = -1 - F.col(ROW)
    pieces = F.countDistinct(F.shiftright(at, 33)).alias("_pieces")  # 33: below them rows, above the task
    files = table.filter(F.col(ROW) < 0).groupBy(F.col(FILE).alias("_from"))
    first = F.broadcast(files.agg(F.min(at).alias("_first"), pieces))
    joined = rows.join(first, F.col(FILE) == F.col("_from"), "left")
    number = F.when(F.col(ROW) > 0, F.col(ROW)).when(F.col("_pieces") == 1, at - F.col("_first") + 1)
    return joined.withColumn(ROW, number).drop("_from", "_first", "_pieces")


def _in_order(names: list[str], path: Path) -> list[str]:
    """Spark returns JSON's names in alphabetical order, but masks count columns in the order in which they
    were written: that of the first line that is an object."""
    first = next((f for f in data_files(path) if f.stat().st_size), None)
    if first is None:
        return names
    with gzip.open(first) if first.suffix == ".gz" else first.open("rb") as lines:
        written = text.json_names(lines)
    return [*(n for n in written if n in names), *(n for n in names if n not in written)]
