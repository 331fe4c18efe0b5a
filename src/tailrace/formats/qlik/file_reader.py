"""Loads Qlik tables from files and DFM through Spark: reads each layout separately, then merges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ...model.quoting import quoted
from .. import json_lines, parquet, text
from ..base import ADDED_COLUMNS, FILE, OWN, RAW, ROW, WHY
from ..file_reader import no_line
from ..shape import TypedColumns, finer_too, looked_up, reasons
from ..spark_functions import F
from . import files as found
from . import layout as lay
from .data_file import DFM, DataFile
from .files import Listing
from .masks import is_little
from .options import HEADERS, QlikOptions
from .reader import NOTE, in_doubt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LINE = OWN + "line"


def load(spark: SparkSession, path: str, options: QlikOptions) -> dict[str, DataFrame]:
    """Returns the tables under a path (a file, a table's folder, or a folder of tables), `FILE`, `ROW` last.

    Columns have the types of their DFM (text files) or of the file (Parquet). Rows of files with different
    layouts are merged. `header__timestamp` of full-load rows is the time when their file was started.

    Raises:
        ConfigError: there is nothing, no Qlik table, an archive, or another table with a Delta table's name.
        FormatError: a DFM or the head of a file cannot be read, or all files are empty.
    """
    listed = found.listing(path, options)
    found.refuse_nothing(listed, path)
    delta, tables = found.delta_by_name(listed, options), {}
    for name, files in found.tables(listed, options).items():
        result = _all_layouts(spark, listed, files, options)
        lines = {json_lines.LINES: 1} if any(f.kind == "json" and f.meta is None for f in files) else {}
        notes = [f"{name}: {n}" for n in file_notes(listed, files)]
        tables[name] = result.withMetadata(FILE, {NOTE: notes, **lines})
    for name, folder in delta.items():
        df = spark.read.format("delta").load(listed.spark_path(folder))
        columns = [_or_null(df, c) for c in df.columns]
        tables[name] = df.select(*columns, file_path().alias(FILE), null_of("bigint").alias(ROW))
    return tables


def file_path() -> Column:
    """Returns the path of a row's file."""
    return F.col("_metadata.file_path")


def null_of(kind: str) -> Column:
    """Returns NULL of a type."""
    return F.lit(None).cast(kind)


def _or_null(df: DataFrame, name: str) -> Column:
    return F.col(quoted(name)).alias(name, metadata=df.schema[name].metadata)


def file_notes(listed: Listing, files: Sequence[DataFile]) -> list[str]:
    """Returns notes about a table's files, and about other files in their folders."""
    own = {f.path.lower() for f in files}
    own |= {(f.path.rpartition("/")[0] + "/" + f.stem + DFM).lower() for f in files}
    own |= {path.lower() for path, other in listed.copies.items() if other.lower() in own}
    folders = {f.path.rpartition("/")[0] for f in files}
    inside = tuple(f"{folder}/" for folder in folders if folder)
    said = []
    for note in listed.notes:
        path = note.split(": ")[0]
        if path.lower() in own or path.startswith(inside) or ("" in folders and "/" not in path):
            said.append(note)
    layouts = len(dict.fromkeys(f.layout for f in files))
    return said + ([f"{layouts} layouts were merged into one"] if layouts > 1 else [])


def _all_layouts(
    spark: SparkSession, listed: Listing, files: Sequence[DataFile], options: QlikOptions
) -> DataFrame:
    """Returns one table of files of one or several layouts, oldest first."""
    groups: dict[tuple[Any, ...], list[DataFile]] = {}
    for file in files:
        groups.setdefault(file.layout, []).append(file)
    # A layout is as old as its last file, so the current layout is the last one.
    ordered = sorted(groups.values(), key=lambda g: max(f.age for f in g))
    parts = [_one_layout(spark, listed, group, options) for group in ordered]
    prefix = lay.find_prefix(lay.columns_of(parts[-1]), options.prefix)
    if len(parts) == 1:
        return parts[0]
    want = lay.merged([lay.layout_of(p) for p in parts])
    if prefix is None:
        result = [lay.arrange(p, want, None, base64=options.binary_text == "base64") for p in parts]
    else:
        heads = {n.lower() for n in lay.headers_of(want.names, prefix).values()}
        data = {n.lower() for n in want.names} - heads
        if any(data - {c.lower() for c in p.columns} for p in parts):
            want = lay.QlikLayout({**want.types, prefix + lay.COLUMN_MASK: "binary"}, want.keys)
        little = options.mask_order == "little"
        if options.mask_order == "auto" and any(in_doubt(p, prefix) for p in parts):
            little = next((order for p in parts if (order := is_little(p, prefix)) is not None), False)
        result = [
            lay.arrange(p, want, prefix, little=little, base64=options.binary_text == "base64") for p in parts
        ]
    df = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), result)
    return lay.keyed(df, want.keys)


def _one_layout(
    spark: SparkSession, listed: Listing, files: Sequence[DataFile], options: QlikOptions
) -> DataFrame:
    """Returns a table of files of one layout."""
    first = files[0]
    df = _parquet(spark, listed, files) if first.kind == "parquet" else _text(spark, listed, files, options)
    prefix = lay.find_prefix(lay.columns_of(df), options.prefix)
    if prefix is not None:
        df = lay.binary_masks(df, prefix)
        heads = lay.headers_of(lay.columns_of(df), prefix)
        if "partition_name" not in heads and any(f.partition for f in files):
            from .partitions import NAME

            named = F.nullif(F.regexp_extract(F.col(FILE), f"({NAME})/[^/]*$", 1), F.lit(""))
            df = _appended(df, prefix + "partition_name", named)
    elif started := {f.stem: f.meta.start for f in files if f.meta and f.meta.start}:
        df = _appended(df, options.written_prefix() + "timestamp", _start(started), {lay.HEADER: 1})
    keys = {c.name: c.key for c in first.meta.columns if c.key} if first.meta else {}
    have = {c.lower(): c for c in df.columns}
    return lay.keyed(df, {have[n.lower()]: p for n, p in keys.items() if n.lower() in have})


def _start(started: Mapping[str, str]) -> Column:
    """Returns the time when a row's file was started, from its name."""
    times = set(started.values())
    if len(times) == 1:
        return F.try_to_timestamp(F.lit(times.pop()))
    stem = F.regexp_extract(F.col(FILE), r"([^/.]*)[^/]*$", 1)
    return F.try_to_timestamp(looked_up(started, stem))


def _appended(df: DataFrame, name: str, value: Column, marks: Mapping[str, int] | None = None) -> DataFrame:
    """Returns the rows with an additional column at the end, so that no mask's bits move."""
    before = [_or_null(df, c) for c in lay.columns_of(df)]
    return df.select(
        *before,
        value.alias(name, metadata=dict(marks or {})),
        *[F.col(c) for c in ADDED_COLUMNS if c in df.columns],
    )


def _parquet(spark: SparkSession, listed: Listing, files: Sequence[DataFile]) -> DataFrame:
    for file in files:
        parquet.refuse(zip(file.names, file.types, strict=True), listed.path(file.path))
    df = spark.read.parquet(*[listed.spark_path(f.path) for f in files])
    return parquet.taken(df, parquet.nanoseconds(zip(files[0].names, files[0].types, strict=True)))


def _text(spark: SparkSession, listed: Listing, files: Sequence[DataFile], options: QlikOptions) -> DataFrame:
    """Returns CSV or JSON files of one layout, values with DFM types, invalid lines with a reason."""
    first = files[0]
    types = _types(first, options)
    null = None
    if first.kind == "csv":
        df, null = _csv(spark, listed, files, list(types), options)
    else:
        df, types = _json(spark, listed, files, types, options)
    typed = TypedColumns()
    for name, kind in types.items():
        raw = F.col(quoted(name))
        if null is not None:
            said = F.col(WHY).isNull() & ~raw.eqNullSafe(F.lit(null))
            raw = F.when(said, F.coalesce(raw, F.lit("")))
        came = df.schema[name].dataType.simpleString()
        typed.add(name, raw, kind, came, base64=options.binary_text == "base64")
    whole = F.coalesce(F.col(RAW), F.to_json(F.struct(*[F.col(quoted(c)) for c in types])))
    return df.select(
        *[v.alias(n) for n, v in typed.values.items()], FILE, ROW,
        reasons([(F.col(WHY).isNotNull(), F.col(WHY)), *typed.bad]).alias(WHY), whole.alias(RAW),
        *finer_too(df, typed.cut),
    )  # fmt: skip


def _types(file: DataFile, options: QlikOptions) -> dict[str, str]:
    """Returns the Spark SQL types of a text file's columns from its DFM; headers have fixed types, others are
    text."""
    types_there = {c.name: c.spark(options.datetime) for c in file.meta.columns} if file.meta else {}
    types = {n: types_there.get(n, "string") for n in file.names}
    prefix = lay.find_prefix(file.names, options.prefix)
    if prefix is not None:
        known = {**HEADERS, lay.COLUMN_MASK: "binary"}
        heads = lay.headers_of(file.names, prefix)
        types |= {n: known.get(h, "string") for h, n in heads.items() if h != "change_seq"}
        # Masks are always hex, however BYTES are written; a sequence is text, or it would lose digits.
        types |= {
            n: "string" for h, n in heads.items() if h in ("change_seq", "change_mask", lay.COLUMN_MASK)
        }
    return types


def _csv(
    spark: SparkSession, listed: Listing, files: Sequence[DataFile], names: list[str], options: QlikOptions
) -> tuple[DataFrame, str | None]:
    """Returns CSV files as text, and the DFM's text for NULL if it is not the empty string."""
    first = files[0]
    paths = [listed.path(f.path) for f in files]
    df = text.read(spark, paths, names, found.dialect(first, options), header=options.csv_header)
    return df, (first.meta.options.get("nullValue") or None) if first.meta else None


def _json(
    spark: SparkSession,
    listed: Listing,
    files: Sequence[DataFile],
    types: dict[str, str],
    options: QlikOptions,
) -> tuple[DataFrame, dict[str, str]]:
    """Returns JSON lines with every value as text, and the types for their columns."""
    from pyspark.sql.types import StringType, StructField, StructType

    paths, where = [listed.spark_path(f.path) for f in files], listed.path(files[0].path)
    if files[0].meta is None:
        # Only the lines themselves show the columns: needs one pass over them, so that none is lost.
        asked = json_lines.reader_options(options.encoding, LINE, where)
        there = spark.read.options(**asked, primitivesAsString="true").json(paths).columns
        types = types | {n: "string" for n in there if n not in types and n != LINE}
    columns = StructType([StructField(n, StringType()) for n in (*types, LINE)])
    df = json_lines.read(spark, paths, columns, line=LINE, encoding=options.encoding, where=where)
    why = no_line(LINE, next(iter(types)), "not JSON")
    ours = [F.col(quoted(c)) for c in types]
    extra = [F.col(FILE), null_of("bigint").alias(ROW), why.alias(WHY), F.col(LINE).alias(RAW)]
    return df.select(*ours, *extra), types


@dataclass(frozen=True)
class Count:
    """The number of rows of a file: in its DFM, and as read."""

    file: str
    said: int
    read: int


def completeness(spark: SparkSession, path: str, options: QlikOptions) -> list[Count]:
    """Returns the files under a path whose number of rows differs from `recordCount` of their DFM.

    Counts every file that has a DFM, in one pass over the files; of Parquet it reads few columns.
    """
    listed = found.listing(path, options)
    said = {f.path: f.meta.records for f in listed.files if f.meta and f.meta.records is not None}
    have = dict.fromkeys(said, 0)
    for files in found.tables(listed, options).values():
        if not (counted := [f for f in files if f.path in said]):
            continue
        df = _all_layouts(spark, listed, counted, options)
        for r in df.groupBy(FILE).agg(F.count(F.lit(1)).alias("n")).collect():
            have[unquote(r[FILE]).split(listed.root + "/", 1)[-1]] = r["n"]
    return [Count(f, n, have[f]) for f, n in sorted(said.items()) if have[f] != n]


def incomplete(spark: SparkSession, path: str, options: QlikOptions) -> list[str]:
    """Returns the result of `completeness` as text lines."""
    return [
        f"{c.file} has {c.read:,} rows, its DFM has {c.said:,}" for c in completeness(spark, path, options)
    ]
