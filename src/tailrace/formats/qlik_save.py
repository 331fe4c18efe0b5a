"""Qlik tables into files, a DFM beside each: the start and DDL settings of the Store Changes page.

Spark writes parts into a folder of its own first; they are counted, get the vendor's names and their DFM
files, and only then lie in the table's folder.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs

from ..errors import ConfigError
from ..lake import filesystem
from . import qlik_dfm as dfm
from . import qlik_files as found
from . import qlik_layout as lay
from .base import Tables
from .qlik_options import QlikOptions
from .shape import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARTITION = "_partition"
CSV_OPTIONS = {
    "fieldDelimiter": ",", "recordDelimiter": "\n", "nullValue": "", "quoteChar": '"', "escapeChar": "",
}  # fmt: skip
_CSV = {
    "header": "true", "sep": ",", "quote": '"', "escape": '"', "lineSep": "\n", "nullValue": "",
    "emptyValue": '""', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false",
    "encoding": "UTF-8",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A file that Spark wrote: its path, its partition, its rows, its first and last change's commit time."""

    path: str
    partition: str
    rows: int
    first: str | None
    last: str | None


def save(tables: Tables, path: str, kind: str, options: QlikOptions) -> None:
    """Writes the tables into folders of their names, as `parquet`, `csv`, `json` or `delta`.

    Full-load rows that there are none of leave no folder when the table has changes.

    Raises:
        ConfigError: there is no such kind of file.
    """
    if kind not in ("parquet", "csv", "json", "delta"):
        raise ConfigError(f"Qlik tables are not written as {kind}", hint="use parquet, csv, json or delta")
    fs, root = filesystem(path)
    named: list[str] = []
    for name, df in tables.items():
        place = f"{path.rstrip('/')}/{name}"
        if kind == "delta":
            _delta(df, place, options)
            continue
        beside = name + options.suffix in tables
        named += [f"{name},{f}" for f in _table(fs, root, place, name, df, kind, options, empty=not beside)]
    if options.reference and kind != "delta":
        _referring(fs, root, named, options)


def _delta(df: DataFrame, place: str, options: QlikOptions) -> None:
    writer = df.select(*[df[quoted(c)] for c in lay.columns_of(df)]).write.format("delta")
    if options.start == "drop":
        writer.mode("overwrite").option("overwriteSchema", "true").save(place)
        return
    merge = "true" if options.ddl == "apply" else "false"
    writer.mode("overwrite" if options.start == "truncate" else "append").option("mergeSchema", merge).save(
        place
    )


def _table(
    fs: pa.fs.FileSystem, root: str, place: str, name: str, df: DataFrame, kind: str, options: QlikOptions,
    *, empty: bool,
) -> list[str]:  # fmt: skip
    """Writes one table; gives its data files below the root."""
    folder = f"{root.rstrip('/')}/{name}"
    df = _as_it_was(df, folder, fs, options)
    prefix = lay.find_prefix(lay.columns_of(df), None)
    if options.source_of(name) is None:
        df, started = _without_headers(df)
    else:
        started = None
    columns = _dfm_columns(df, prefix)
    stage = f"_stage-{uuid.uuid4().hex}"
    now = datetime.now(timezone.utc)
    if options.start != "keep":
        _clear(fs, folder)
    fs.create_dir(folder, recursive=True)
    try:
        parts = _staged(df, f"{place}/{stage}/rows", kind, prefix, options)
        if not empty and options.source_of(name) is None and not sum(p.rows for p in parts):
            parts = []
        return _named(fs, root, name, parts, columns, kind, options, now, started or dfm.iso(now))
    finally:
        if fs.get_file_info(f"{folder}/{stage}").type != pa.fs.FileType.NotFound:
            fs.delete_dir(f"{folder}/{stage}")
        if not fs.get_file_info(pa.fs.FileSelector(folder)):
            fs.delete_dir(folder)


def _as_it_was(df: DataFrame, folder: str, fs: pa.fs.FileSystem, options: QlikOptions) -> DataFrame:
    """The rows in the columns the table has, when they are to stay: on DDL `ignore`, unless it is dropped."""
    if (
        options.start == "drop"
        or options.ddl == "apply"
        or fs.get_file_info(folder).type == pa.fs.FileType.NotFound
    ):
        return df.select(*[df[quoted(c)] for c in lay.columns_of(df)])
    there = found.listing(folder, options).files
    if not there:
        return df
    meta = max(there, key=lambda f: f.age).meta
    if meta is None:
        raise ConfigError(f"{folder}: its newest file has no DFM", hint="use ddl=apply or start=drop")
    want = lay.Layout({c.name: c.spark(options.datetime) for c in meta.columns})
    have = {f.name: f.metadata for f in df.schema}
    prefix = lay.find_prefix(lay.columns_of(df), options.prefix)
    df = lay.arrange(df, want, prefix, little=options.mask_order == "little")
    keyed = [df[quoted(n)].alias(n, metadata=have.get(n, {})) for n in want.names]
    return df.select(*keyed)


def _without_headers(df: DataFrame) -> tuple[DataFrame, str | None]:
    """Full-load rows as files have them, and when their load started (one value, from the rows)."""
    from pyspark.sql import functions as F

    heads = [c for c in df.columns if c.lower().endswith(("change_seq", "timestamp")) and _is_header(df, c)]
    at = next((c for c in heads if c.lower().endswith("timestamp")), None)
    started = df.agg(F.date_format(F.min(at), "yyyy-MM-dd'T'HH:mm:ss.SSS")).collect()[0][0] if at else None
    return df.drop(*heads), started


def _is_header(df: DataFrame, name: str) -> bool:
    return bool(df.schema[name].metadata.get(lay.HEADER))


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


def _clear(fs: pa.fs.FileSystem, folder: str) -> None:
    if fs.get_file_info(folder).type == pa.fs.FileType.Directory:
        fs.delete_dir_contents(folder)


def _staged(df: DataFrame, place: str, kind: str, prefix: str | None, options: QlikOptions) -> list[Part]:
    """Writes the rows as Spark's parts and counts what is in each."""
    from pyspark.sql import functions as F

    heads = {} if prefix is None else lay.headers_of(df.columns, prefix)
    names = df.columns
    by = heads.get("partition_name")
    rows = _as_text(df, heads, options) if kind != "parquet" else df
    if by is not None:
        # The column stays in the files: it is one of those that masks count.
        rows = rows.select(
            *[F.col(quoted(c)) for c in names], F.coalesce(F.col(quoted(by)), F.lit("")).alias(PARTITION)
        )
    writer = rows.write.mode("error")
    if by is not None:
        writer = writer.partitionBy(PARTITION)
    if kind == "csv":
        writer = writer.options(**_CSV)
    if kind == "json":
        writer = writer.option("ignoreNullFields", "false")
    if options.gzip and kind != "parquet":
        writer = writer.option("compression", "gzip")
    writer.format(kind).save(place)
    reader = df.sparkSession.read.schema(rows.drop(PARTITION).schema)
    if kind == "csv":
        reader = reader.options(**_CSV, multiLine="true")
    back = reader.format(kind).option("recursiveFileLookup", "true").load(found.unglobbed(place))
    seq = F.substring(F.col(quoted(heads["change_seq"])), 1, 14) if heads else F.lit(None).cast("string")
    counted = back.groupBy(F.col("_metadata.file_path").alias("path")).agg(
        F.count(F.lit(1)).alias("rows"), F.min(seq).alias("first"), F.max(seq).alias("last")
    )
    return _parts(place, {_short(unquote(r["path"])): r for r in counted.collect()})


def _short(path: str) -> str:
    """A part's path from its partition's folder on: each partition has parts of the same names."""
    return "/".join(path.split("/")[-2:])


def _parts(place: str, told: Mapping[str, Any]) -> list[Part]:
    """The parts that lie in a folder, with what was counted in them."""
    fs, root = filesystem(place)
    made = []
    for info in sorted(fs.get_file_info(pa.fs.FileSelector(root, recursive=True)), key=lambda f: str(f.path)):
        name = info.base_name
        if info.type != pa.fs.FileType.File or not name.startswith("part-"):
            continue
        row = told.get(_short(unquote(info.path)))
        folder = info.path.rpartition("/")[0].rpartition("/")[2]
        partition = unquote(folder.removeprefix(f"{PARTITION}=")) if folder.startswith(PARTITION) else ""
        partition = "" if partition == "__HIVE_DEFAULT_PARTITION__" else partition
        made.append(
            Part(info.path, partition, row["rows"], row["first"], row["last"]) if row
            else Part(info.path, partition, 0, None, None)
        )  # fmt: skip
    with_rows = [p for p in made if p.rows]
    return with_rows or made[:1]


def _as_text(df: DataFrame, heads: Mapping[str, str], options: QlikOptions) -> DataFrame:
    """Values that CSV and JSON have no words for as text: bytes, times, floating numbers."""
    from pyspark.sql import functions as F

    made: list[Column] = []
    for f in df.schema:
        value, kind = F.col(quoted(f.name)), f.dataType.simpleString()
        if kind == "binary":
            mask = f.name == heads.get("change_mask")
            value = F.base64(value) if options.binary_text == "base64" and not mask else F.hex(value)
        elif kind in ("date", "timestamp", "timestamp_ntz", "float", "double"):
            value = value.cast("string")
        made.append(value.alias(f.name))
    return df.select(*made)


def _named(
    fs: pa.fs.FileSystem, root: str, name: str, parts: Sequence[Part], columns: tuple[dfm.DfmColumn, ...],
    kind: str, options: QlikOptions, now: datetime, started: str,
) -> list[str]:  # fmt: skip
    """Moves the parts to the vendor's names and writes their DFM files, which come last: a data file without
    one is not finished."""
    changes = options.source_of(name) is not None
    schema, _, table = name.rpartition(".")
    extension = kind + (".gz" if options.gzip and kind != "parquet" else "")
    used = {found.stem_of(n.rpartition("/")[2]) for n in _there(fs, f"{root}/{name}")}
    made = []
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
        with fs.open_output_stream(f"{folder}/{stem}{found.DFM}") as out:
            out.write(meta.to_json().encode())
        made.append("/".join(filter(None, (name, part.partition, f"{stem}.{extension}"))))
    return made


def _there(fs: pa.fs.FileSystem, folder: str) -> list[str]:
    return [
        f.path
        for f in fs.get_file_info(pa.fs.FileSelector(folder, recursive=True))
        if f.type == pa.fs.FileType.File
    ]


def _next(at: datetime, counter: int, used: set[str], changes: bool) -> tuple[datetime, int, str]:
    """The next free file name: a time for changes, a number for full loads."""
    while True:
        counter, at = counter + 1, at + timedelta(milliseconds=1)
        stem = f"{at:%Y%m%d-%H%M%S}{at.microsecond // 1000:03d}" if changes else f"LOAD{counter:08d}"
        if stem not in used:
            return at, counter, stem


def _iso(digits: str | None) -> str | None:
    """The time part of a change sequence (to the second) as DFM files have times.

    >>> _iso("20160802100504")
    '2016-08-02T10:05:04.000'
    """
    if digits is None or len(digits) != 14 or not digits.isdigit():
        return None
    d = digits
    return f"{d[:4]}-{d[4:6]}-{d[6:8]}T{d[8:10]}:{d[10:12]}:{d[12:]}.000"


def _referring(fs: pa.fs.FileSystem, root: str, named: Sequence[str], options: QlikOptions) -> None:
    """The reference file: which table each data file belongs to, and where it is."""
    rows = [f"{line.split(',', 1)[0]},{root.strip('/')}/{line.split(',', 1)[1]}" for line in named]
    with fs.open_output_stream(f"{root}/{options.reference}00000001.csv") as out:
        out.write(("\n".join(rows) + "\n").encode())


__all__ = ["save"]
