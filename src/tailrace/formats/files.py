"""Tables in folders: Parquet, CSV, JSON lines and Delta, read and written through Spark.

A path is one table (a file, a folder of files of one kind, a Delta table), named after itself, or a folder of
tables. CSV has a header line, quotes doubled, NULL as nothing and the empty string as `""`; binary is hex in
CSV and JSON. Text kinds come in as text in every column: types are the format's business (`shape.conform`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .base import FILE, ROW
from .shape import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
# Spark takes `""` for NULL when NULL is read from nothing: so nothing is read as these letters (of no
# alphabet), which become NULL, and `""` stays empty.
_NOTHING = {"nullValue": "\ue000\ue001\ue002"}


def kind_of(path: Path) -> str | None:
    """The kind of a file or of a folder's files; None when it is none of ours, or a folder of tables."""
    if (path / "_delta_log").is_dir():
        return "delta"
    if path.is_file():
        return next((k for k, ends in KINDS.items() if path.name.lower().endswith(ends)), None)
    kinds = {
        k for f in path.iterdir() if f.is_file() and not f.name.startswith((".", "_")) and (k := kind_of(f))
    }
    return kinds.pop() if len(kinds) == 1 else None


def load(spark: SparkSession, path: str) -> dict[str, DataFrame]:
    """The tables under a path by name, each with `FILE` and `ROW` behind its columns.

    Raises:
        ConfigError: there is nothing, or nothing that is a table.
    """
    return {name: read(spark, place) for name, place in places(path).items()}


def places(path: str) -> dict[str, Path]:
    """Where the tables under a path lie, by name.

    Raises:
        ConfigError: there is nothing, or nothing that is a table.
    """
    root = Path(path)
    if not root.exists():
        raise ConfigError(f"there is no {path}", hint="give a file, a folder of files, or a folder of tables")
    found = {}
    if kind_of(root) and not _stems_differ(root):
        found[_name(root)] = root
    elif root.is_dir():
        found = {
            _name(p): p for p in sorted(root.iterdir()) if not p.name.startswith((".", "_")) and kind_of(p)
        }
    if not found:
        raise ConfigError(
            f"{path} holds no table", hint=f"read are {', '.join(KINDS)} files and delta tables"
        )
    return found


def _stems_differ(root: Path) -> bool:
    """Whether a folder's files are tables of their own: text files whose names are not part numbers."""
    if root.is_file() or kind_of(root) == "delta":
        return False
    files = [f for f in root.iterdir() if f.is_file() and kind_of(f)]
    return len(files) > 1 and not any(f.name.startswith("part-") or f.name[0].isdigit() for f in files)


def _name(path: Path) -> str:
    name = path.name
    for end in (".gz", ".parquet", ".csv", ".jsonl", ".json"):
        name = name.removesuffix(end) if path.is_file() else name
    return name


def read(spark: SparkSession, path: Path) -> DataFrame:
    """One table with `FILE` and `ROW`; text kinds as text."""
    from pyspark.sql import functions as F

    kind = kind_of(path)
    reader = spark.read
    if kind == "csv":
        df = reader.options(**CSV, **_NOTHING).csv(str(path))
    elif kind == "json":
        df = reader.option("primitivesAsString", "true").json(str(path))
    elif kind == "delta":
        df = reader.format("delta").load(str(path))
    else:
        df = reader.option("mergeSchema", "true").parquet(str(path))
    names = _in_order(df.columns, path) if kind == "json" else df.columns
    # Text rows have no number of their own: negative figures, which `count_rows` turns into numbers if asked.
    row = F.col("_metadata.row_index") + 1 if kind == "parquet" else -1 - F.monotonically_increasing_id()
    place = F.col("_metadata.file_path").alias(FILE)
    return df.select(*[F.col(quoted(c)) for c in names], place, row.alias(ROW))


def count_rows(rows: DataFrame, table: DataFrame) -> DataFrame:
    """`rows` with real row numbers in `ROW`, for rows of text files; `table` is what `read` gave.

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
    """Spark gives JSON's names in alphabetical order; masks count columns in the order they were written
    in."""
    first = path if path.is_file() else min(f for f in path.iterdir() if kind_of(f))
    with gzip.open(first) if first.suffix == ".gz" else first.open("rb") as lines:
        written = list(json.loads(next(lines, b"{}")))
    return [*(n for n in written if n in names), *(n for n in names if n not in written)]


def save(tables: Mapping[str, DataFrame], path: str, kind: str) -> None:
    """Writes each table into a folder of its name.

    Raises:
        ConfigError: the folder has something in it already.
    """
    for name, df in tables.items():
        place = Path(path) / name
        if place.exists() and any(place.iterdir()):
            raise ConfigError(f"{place} is not empty", hint="write into a new folder")
        writer = (as_text(df) if kind in ("csv", "json") else df).write.mode("append")
        if kind == "csv":
            writer.options(**CSV).csv(str(place))
        elif kind == "json":
            writer.option("ignoreNullFields", "false").json(str(place))
        else:
            writer.format(kind).save(str(place))


def as_text(df: DataFrame) -> DataFrame:
    """Binary columns as upper-case hex, timestamps with all their digits."""
    from pyspark.sql import functions as F

    made = []
    for field in df.schema:
        value, kind = F.col(quoted(field.name)), field.dataType.simpleString()
        if kind == "binary":
            value = F.hex(value)
        elif kind.startswith("timestamp") or kind in ("double", "float"):
            value = value.cast("string")
        made.append(value.alias(field.name))
    return df.select(*made)
