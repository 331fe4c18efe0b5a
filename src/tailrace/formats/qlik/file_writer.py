"""Writes Qlik tables to files, each with a DFM, with the start and DDL settings of the Store Changes page.

Spark first writes parts into a temporary folder. They are counted, get the vendor's names and their DFM
files, and only then are moved to the table's folder.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs

from ...errors import ConfigError, FormatError
from ...lake import delta as lake
from ...lake.storage import filesystem
from ...model.quoting import quoted
from ..base import OWN, Tables
from ..file_writer import as_text, prepare_delta_table, table_schema
from ..folders import unglobbed
from ..spark_functions import F
from . import dfm
from . import layout as lay
from .data_file import DFM, is_hidden, stem_of
from .files import listing
from .options import QlikOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    """A file that Spark wrote: its path, the folder of its partition, its rows, and the commit times of its
    first and last change."""

    path: str
    partition: str
    rows: int
    first: str | None
    last: str | None


def staged(
    df: DataFrame, table_path: str, kind: str, prefix: str | None, options: QlikOptions
) -> list[StagedFile]:
    """Writes the rows as Spark's parts, by partition if there are partitions, and counts the rows of each
    part."""
    heads = {} if prefix is None else lay.headers_of(df.columns, prefix)
    octets = {*df.columns} - {heads.get("change_mask")} if options.binary_text == "base64" else ()
    rows = as_text(df, base64=octets) if kind != "parquet" else df
    schema, by = rows.schema, heads.get("partition_name")
    if by is not None:
        # The column stays in the files, because bits of masks count it.
        rows = rows.select("*", F.coalesce(F.col(quoted(by)), F.lit("")).alias(PARTITION))
    writer = rows.write.mode("error").options(**_TEXT.get(kind, {}))
    if by is not None:
        writer = writer.partitionBy(PARTITION)
    if options.gzip and kind != "parquet":
        writer = writer.option("compression", "gzip")
    writer.format(kind).save(table_path)
    reader = df.sparkSession.read.schema(schema).options(**_TEXT.get(kind, {}), recursiveFileLookup="true")
    back = reader.option("multiLine", str(kind == "csv")).format(kind).load(unglobbed(table_path))
    seq = F.substring(F.col(quoted(heads["change_seq"])), 1, 14) if heads else F.lit(None).cast("string")
    counted = back.groupBy(F.col("_metadata.file_path").alias("path")).agg(
        F.count(F.lit(1)).alias("rows"), F.min(seq).alias("first"), F.max(seq).alias("last")
    )
    return _parts(table_path, {_short(unquote(r["path"])): r for r in counted.collect()})


def _short(path: str) -> str:
    """Returns a part's path from its partition's folder on: parts of different partitions may have the same
    name."""
    return "/".join(path.split("/")[-2:])


def _parts(folder: str, rows: Mapping[str, Any]) -> list[StagedFile]:
    """Returns the parts in a folder, with their counts.

    Raises:
        FormatError: rows were counted in a part that does not exist.
    """
    fs, root = filesystem(folder)
    result, left = [], dict(rows)
    for info in sorted(fs.get_file_info(pa.fs.FileSelector(root, recursive=True)), key=lambda f: str(f.path)):
        name = info.base_name
        if info.type != pa.fs.FileType.File or not name.startswith("part-"):
            continue
        row = left.pop(_short(info.path), None)
        partition = _folder(info.path.rpartition("/")[0].rpartition("/")[2])
        result.append(
            StagedFile(info.path, partition, row["rows"], row["first"], row["last"]) if row
            else StagedFile(info.path, partition, 0, None, None)
        )  # fmt: skip
    if left:
        raise FormatError(
            f"rows were written to {min(left)}, which does not exist",
            where=folder,
            hint="does another program write to this folder? write to another one",
        )
    with_rows = [p for p in result if p.rows]
    return with_rows or result[:1]


def _folder(staged_in: str) -> str:
    """Returns the folder of a partition, given the one that Spark wrote to: the name with Spark's escapes, in
    Hive's form if it would be hidden; empty without partitions.

    >>> _folder(PARTITION + "=a%3Ab"), _folder(PARTITION + "=_a"), _folder("rows")
    ('a%3Ab', 'partition_name=_a', '')
    """
    name = staged_in.removeprefix(f"{PARTITION}=")
    if name in (staged_in, "__HIVE_DEFAULT_PARTITION__"):
        return ""
    return f"partition_name={name}" if is_hidden(name) else name


def save(tables: Tables, path: str, kind: str, options: QlikOptions) -> None:
    """Writes the tables into folders of their names, as `parquet`, `csv`, `json` or `delta`.

    Without full-load rows, a table with changes gets no folder for them.

    Raises:
        ConfigError: Qlik has no such kind of file.
    """
    if kind not in ("parquet", "csv", "json", "delta"):
        raise ConfigError(f"Qlik tables are not written as {kind}", hint="use parquet, csv, json or delta")
    fs, root = filesystem(path)
    named: list[str] = []
    for name, df in tables.items():
        table_path = f"{path.rstrip('/')}/{name}"
        if kind == "delta":
            _delta(df, table_path, options)
            continue
        has_changes = name + options.suffix in tables
        named += [
            f"{name},{f}"
            for f in _table(fs, root, table_path, name, df, kind, options, empty=not has_changes)
        ]
    if options.reference and kind != "delta":
        _write_reference(fs, root, named, options)


def _delta(df: DataFrame, path: str, options: QlikOptions) -> None:
    """Writes a Delta table; an existing table keeps its columns with DDL `ignore`. With start `drop`, a table
    with another layout is first emptied in a separate commit."""
    df = _plain(df)
    schema = table_schema(df)
    if options.start == "drop" and lake.exists(path) and lake.arrow_schema(path) != schema:
        lake.replace_all(path, [], schema=schema, progress={})
    if options.ddl == "ignore" and lake.exists(path):
        df = _in_columns(df, lay.layout_of(df.sparkSession.read.format("delta").load(path)), options)
    prepare_delta_table(df, path)
    df.write.format("delta").mode("append" if options.start == "keep" else "overwrite").save(path)


def _plain(df: DataFrame) -> DataFrame:
    """Returns only the vendor's columns."""
    return df.select(*[F.col(quoted(c)) for c in lay.columns_of(df)])


def _table(
    fs: pa.fs.FileSystem, root: str, path: str, name: str, df: DataFrame, kind: str, options: QlikOptions,
    *, empty: bool,
) -> list[str]:  # fmt: skip
    """Writes one table; returns its data files below the root. Existing files are removed last."""
    folder = f"{root.rstrip('/')}/{name}"
    df = _in_existing_layout(_plain(df), folder, fs, options)
    prefix = lay.find_prefix(df.columns)
    now = datetime.now(timezone.utc)
    started = dfm.iso(now)
    if options.source_of(name) is None:
        df, started = _without_headers(df, started)
    columns = _dfm_columns(df, prefix)
    stage = f"_stage-{uuid.uuid4().hex}"
    fs.create_dir(f"{folder}/{stage}", recursive=True)
    try:
        parts = staged(df, f"{path}/{stage}/rows", kind, prefix, options)
        if not empty and options.source_of(name) is None and not sum(p.rows for p in parts):
            parts = []
        if options.start != "keep":
            _clear(fs, folder, but=stage)
        return _move_parts(fs, root, name, parts, columns, kind, options, now, started)
    finally:
        fs.delete_dir(f"{folder}/{stage}")
        if not fs.get_file_info(pa.fs.FileSelector(folder)):
            fs.delete_dir(folder)


def _in_existing_layout(df: DataFrame, folder: str, fs: pa.fs.FileSystem, options: QlikOptions) -> DataFrame:
    """Returns the rows with the table's existing columns, if those stay: with DDL `ignore`, unless it is
    dropped."""
    there = fs.get_file_info(folder).type != pa.fs.FileType.NotFound
    if options.start == "drop" or options.ddl == "apply" or not there:
        return df
    files = listing(folder, options.model_copy(update={"reference": ""})).files  # the one to be written
    if not files:
        return df
    meta = max(files, key=lambda f: f.age).meta
    if meta is None:
        raise ConfigError(f"{folder}: its newest file has no DFM", hint="use ddl=apply or start=drop")
    return _in_columns(df, lay.QlikLayout({c.name: c.spark(options.datetime) for c in meta.columns}), options)


def _in_columns(df: DataFrame, want: lay.QlikLayout, options: QlikOptions) -> DataFrame:
    """Returns the rows in these columns, removed ones as NULL; with the new layout's key."""
    have = {f.name: f.metadata for f in df.schema}
    prefix = lay.find_prefix(df.columns, options.prefix)
    df = lay.arrange(
        df, want, prefix, little=options.mask_order == "little", base64=options.binary_text == "base64"
    )
    return df.select(*[F.col(quoted(n)).alias(n, metadata=have.get(n, {})) for n in want.names])


def _without_headers(df: DataFrame, now: str) -> tuple[DataFrame, str]:
    """Returns full-load rows as in files, and the start of their load: one value, from the rows."""
    heads = [f.name for f in df.schema if f.metadata.get(lay.HEADER)]
    at = next((c for c in heads if c.lower().endswith("timestamp")), None)
    if at is None:
        return df.drop(*heads), now
    first = F.date_format(F.min(F.col(quoted(at))), "yyyy-MM-dd'T'HH:mm:ss.SSS")
    return df.drop(*heads), df.agg(first).collect()[0][0] or now


def _dfm_columns(df: DataFrame, prefix: str | None) -> tuple[dfm.DfmColumn, ...]:
    heads = {} if prefix is None else {n: h for h, n in lay.headers_of(df.columns, prefix).items()}
    return tuple(
        dfm.column(
            i,
            f.name,
            f.dataType.simpleString(),
            key=int(f.metadata.get(lay.KEY_POS, 0)),
            header=heads.get(f.name),
        )
        for i, f in enumerate(df.schema, 1)
    )


def _clear(fs: pa.fs.FileSystem, folder: str, *, but: str) -> None:
    """Removes everything in a folder, except one folder in it."""
    for info in fs.get_file_info(pa.fs.FileSelector(folder)):
        if info.base_name == but:
            continue
        if info.type == pa.fs.FileType.Directory:
            fs.delete_dir(info.path)
        else:
            fs.delete_file(info.path)


def _move_parts(
    fs: pa.fs.FileSystem, root: str, name: str, parts: Sequence[StagedFile],
    columns: tuple[dfm.DfmColumn, ...], kind: str, options: QlikOptions, now: datetime, started: str,
) -> list[str]:  # fmt: skip
    """Moves the parts to the vendor's names, then writes their DFM files: a data file without a DFM is not
    finished."""
    changes = options.source_of(name) is not None
    schema, _, table = name.rpartition(".")
    extension = kind + (".gz" if options.gzip and kind != "parquet" else "")
    used = {stem_of(n.rpartition("/")[2]) for n in _existing_files(fs, f"{root}/{name}")}
    result = []
    at, counter = now, 0
    for part in parts:
        at, counter, stem = _next(at, counter, used, changes)
        folder = "/".join(filter(None, (root, name, part.partition)))
        fs.create_dir(folder, recursive=True)
        fs.move(part.path, f"{folder}/{stem}.{extension}")
        meta = dfm.Dfm(
            name=f"{stem}.{kind}",
            columns=columns,
            extension=extension,
            content="changes" if changes else "data",
            start=dfm.iso(now) if changes else started,
            end=dfm.iso(datetime.now(timezone.utc)),
            first=_iso(part.first),
            last=_iso(part.last),
            records=part.rows,
            format={"csv": "delimited"}.get(kind, kind),
            options=CSV_OPTIONS if kind == "csv" else {},
            schema=schema,
            table=table,
            task=options.task,
            server=options.server,
        )
        with fs.open_output_stream(f"{folder}/{stem}{DFM}") as out:
            out.write(meta.to_json().encode())
        result.append("/".join(filter(None, (name, part.partition, f"{stem}.{extension}"))))
    return result


def _existing_files(fs: pa.fs.FileSystem, folder: str) -> list[str]:
    return [
        f.path
        for f in fs.get_file_info(pa.fs.FileSelector(folder, recursive=True))
        if f.type == pa.fs.FileType.File
    ]


def _next(at: datetime, counter: int, used: set[str], changes: bool) -> tuple[datetime, int, str]:
    """Returns the next free file name: a time for changes, a number for full loads."""
    while True:
        counter, at = counter + 1, at + timedelta(milliseconds=1)
        stem = f"{at:%Y%m%d-%H%M%S}{at.microsecond // 1000:03d}" if changes else f"LOAD{counter:08d}"
        if stem not in used:
            return at, counter, stem


def _iso(digits: str | None) -> str | None:
    """Returns the time part of a change sequence (to the second) as in DFM files.

    >>> _iso("20160802100504")
    '2016-08-02T10:05:04.000'
    """
    if digits is None or len(digits) != 14 or not digits.isdigit():
        return None
    d = digits
    return f"{d[:4]}-{d[4:6]}-{d[6:8]}T{d[8:10]}:{d[10:12]}:{d[12:]}.000"


def _write_reference(fs: pa.fs.FileSystem, root: str, named: Sequence[str], options: QlikOptions) -> None:
    """Writes the next reference file: which table each data file belongs to, and its path."""
    rows = [f"{line.split(',', 1)[0]},{root.strip('/')}/{line.split(',', 1)[1]}" for line in named]
    places = (f"{root}/{options.reference}{number:08d}.csv" for number in count(1))
    free = next(p for p in places if fs.get_file_info(p).type == pa.fs.FileType.NotFound)
    with fs.open_output_stream(free) as out:
        out.write(("\n".join(rows) + "\n").encode())
