"""Writes rows to a temporary folder as Spark's parts, before they get Qlik's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs

from ...errors import FormatError
from ...lake.delta import filesystem
from ...model.quoting import quoted
from ..base import OWN
from ..folders import unglobbed
from ..typed import bytes_as_text
from . import layout as lay
from .delta_tables import is_hidden
from .options import QlikOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITION = OWN + "partition"
CSV_OPTIONS = {
    "fieldDelimiter": ",", "recordDelimiter": "\n", "nullValue": "", "quoteChar": '"', "escapeChar": "",
}  # fmt: skip
_TEXT: dict[str, dict[str, str]] = {
    "csv": {
        "header": "true", "sep": ",", "quote": '"', "escape": '"', "lineSep": "\n", "nullValue": "",
        "emptyValue": '""', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false",
        "encoding": "UTF-8",
    },
    "json": {"ignoreNullFields": "false"},
}  # fmt: skip


@dataclass(frozen=True)
class StagedFile:
    """A file that Spark wrote: its path, the folder of its partition, its rows, its first and last change's
    commit time."""

    path: str
    partition: str
    rows: int
    first: str | None
    last: str | None


def staged(
    df: DataFrame, place: str, kind: str, prefix: str | None, options: QlikOptions
) -> list[StagedFile]:
    """Writes the rows as Spark's parts, by partition if there are any, and counts the rows of each."""
    from pyspark.sql import functions as F

    heads = {} if prefix is None else lay.headers_of(df.columns, prefix)
    rows = as_text(df, heads, options) if kind != "parquet" else df
    schema, by = rows.schema, heads.get("partition_name")
    if by is not None:
        # The column stays in the files: masks count it.
        rows = rows.select("*", F.coalesce(F.col(quoted(by)), F.lit("")).alias(PARTITION))
    writer = rows.write.mode("error").options(**_TEXT.get(kind, {}))
    if by is not None:
        writer = writer.partitionBy(PARTITION)
    if options.gzip and kind != "parquet":
        writer = writer.option("compression", "gzip")
    writer.format(kind).save(place)
    reader = df.sparkSession.read.schema(schema).options(**_TEXT.get(kind, {}), recursiveFileLookup="true")
    back = reader.option("multiLine", str(kind == "csv")).format(kind).load(unglobbed(place))
    seq = F.substring(F.col(quoted(heads["change_seq"])), 1, 14) if heads else F.lit(None).cast("string")
    counted = back.groupBy(F.col("_metadata.file_path").alias("path")).agg(
        F.count(F.lit(1)).alias("rows"), F.min(seq).alias("first"), F.max(seq).alias("last")
    )
    return _parts(place, {_short(unquote(r["path"])): r for r in counted.collect()})


def _short(path: str) -> str:
    """A part's path from its partition's folder on: parts of different partitions may have the same names."""
    return "/".join(path.split("/")[-2:])


def _parts(place: str, rows: Mapping[str, Any]) -> list[StagedFile]:
    """The parts in a folder, with their counts.

    Raises:
        FormatError: rows were counted in a part that is not there.
    """
    fs, root = filesystem(place)
    made, left = [], dict(rows)
    for info in sorted(fs.get_file_info(pa.fs.FileSelector(root, recursive=True)), key=lambda f: str(f.path)):
        name = info.base_name
        if info.type != pa.fs.FileType.File or not name.startswith("part-"):
            continue
        row = left.pop(_short(info.path), None)
        partition = _folder(info.path.rpartition("/")[0].rpartition("/")[2])
        made.append(
            StagedFile(info.path, partition, row["rows"], row["first"], row["last"]) if row
            else StagedFile(info.path, partition, 0, None, None)
        )  # fmt: skip
    if left:
        raise FormatError(
            f"rows were written to {min(left)}, which is not there",
            where=place,
            hint="does something else write to this folder? write to another one",
        )
    with_rows = [p for p in made if p.rows]
    return with_rows or made[:1]


def _folder(staged_in: str) -> str:
    """The folder of a partition, given the one that Spark wrote to: its name as Spark escapes it, in Hive's
    form if it would be hidden; empty if there is no partition.

    >>> _folder(PARTITION + "=a%3Ab"), _folder(PARTITION + "=_a"), _folder("rows")
    ('a%3Ab', 'partition_name=_a', '')
    """
    name = staged_in.removeprefix(f"{PARTITION}=")
    if name in (staged_in, "__HIVE_DEFAULT_PARTITION__"):
        return ""
    return f"partition_name={name}" if is_hidden(name) else name


def as_text(df: DataFrame, heads: Mapping[str, str], options: QlikOptions) -> DataFrame:
    """Values that CSV and JSON cannot represent, as text: bytes, arrays, times, floating-point numbers."""
    from pyspark.sql import functions as F

    from ..openedge.arrays import join_array

    made: list[Column] = []
    for f in df.schema:
        value, kind = F.col(quoted(f.name)), f.dataType.simpleString()
        if kind == "binary":
            mask = f.name == heads.get("change_mask")
            value = bytes_as_text(value, base64=options.binary_text == "base64" and not mask)
        elif kind.startswith("array"):
            value = join_array(value)  # as `saving.as_text` has them: `as_type` reads them again
        elif kind in ("date", "timestamp", "timestamp_ntz", "float", "double"):
            value = value.cast("string")
        made.append(value.alias(f.name))
    return df.select(*made)
