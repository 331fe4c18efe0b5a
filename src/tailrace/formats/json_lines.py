"""Reads JSON lines with values as text; numbers keep their digits exactly.

In UTF-8, Spark returns the original text of a number. In other encodings it converts it to DOUBLE, so there
the numbers of a line are quoted before they are parsed.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .base import FILE
from .spark_functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CHARSETS = {
    "utf-8": "UTF-8", "utf-8-sig": "UTF-8", "ascii": "US-ASCII", "iso8859-1": "ISO-8859-1",
    "utf-16-le": "UTF-16LE", "utf-16-be": "UTF-16BE",
}  # fmt: skip
"""Encodings in which Spark can find lines: Python's names, and Java's."""
LINES = "tailraceLines"
"""In the metadata of the column `FILE`: columns are known only from the lines of JSON."""
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_DEPTH = 8


def _nested() -> str:
    """Returns a pattern of a nested object or array, whose text stays unchanged."""
    inner = ""
    for _ in range(_DEPTH):
        inner = rf'[\[{{](?:[^"{{}}\[\]]|{_STRING}{inner and "|" + inner})*+[\]}}]'
    return inner


_NUMBER = r"-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][+-]?+\d++)?+"
_TO_NUMBER = rf'\G((?:^\s*+\{{)?+(?:[^"\d\-\[{{]|{_STRING}|{_nested()})*+)({_NUMBER})(?=[\s,}}])'
"""From the end of the last number to the next number of the line's own object. It never backtracks, so even
long lines do not exhaust Java's stack or take long."""


def charset(encoding: str, where: str) -> str:
    """Returns Java's name of an encoding.

    Raises:
        ConfigError: Spark cannot read JSON in it.

    >>> charset("latin-1", "x.json"), charset("utf8", "x.json")
    ('ISO-8859-1', 'UTF-8')
    """
    found = _CHARSETS.get(codecs.lookup(encoding).name)
    if found is None:
        hint = f"convert the files to UTF-8; Spark reads {', '.join(sorted(_CHARSETS))}"
        raise ConfigError(f"JSON in the encoding {encoding} cannot be read", where=where, hint=hint)
    return found


def reader_options(encoding: str, line: str, where: str) -> dict[str, str]:
    """Returns options of Spark's reader for lines in an encoding; invalid lines go to the column `line`."""
    found = {"columnNameOfCorruptRecord": line, "mode": "PERMISSIVE"}
    java = charset(encoding, where)
    return found if java == "UTF-8" else {**found, "encoding": java, "lineSep": "\n"}


def read(
    spark: SparkSession, paths: Sequence[str], columns: StructType, *, line: str, encoding: str, where: str
) -> DataFrame:
    """Returns the lines' values as `columns`, which are text or have text inside, and `FILE`; lines that are
    not JSON go to the column `line`, if it is one of them.

    Raises:
        ConfigError: Spark cannot read JSON in this encoding.
    """
    options, at = reader_options(encoding, line, where), F.col("_metadata.file_path").alias(FILE)
    if "encoding" not in options:
        return spark.read.options(**options).schema(columns).json(list(paths)).select("*", at)
    bytes_ = F.col("value").cast("binary")
    asked = {k: options[k] for k in ("encoding", "lineSep")}
    lines = (
        spark.read.options(**asked)
        .text(list(paths))
        .select(F.decode(bytes_, asked["encoding"]).alias("t"), at)
    )
    parsed = F.from_json(
        _numbers_quoted(F.col("t")), columns, {k: options[k] for k in options if k not in asked}
    )
    rows = lines.filter(F.col("t").rlike(r"\S")).select("t", parsed.alias("r"), FILE)
    values = {c: F.col("r")[c] for c in columns.names}
    if line in values:  # unchanged
        values[line] = F.when(values[line].isNotNull(), F.col("t"))
    return rows.select(*(v.alias(c) for c, v in values.items()), FILE)


def is_of_lines(df: DataFrame) -> bool:
    """Whether a table's columns are known only from the lines of JSON."""
    return FILE in df.columns and bool(df.schema[FILE].metadata.get(LINES))


def _numbers_quoted(text: Column) -> Column:
    return F.regexp_replace(text, _TO_NUMBER, '$1"$2"')


__all__ = ["LINES", "charset", "is_of_lines", "read", "reader_options"]
