"""LOG as solidDB's SYS_LOG, with SYS_TABLES and SYS_COLUMNS, for readers of solidDB's log.

Every change becomes the records that solidDB would have written: an update has its before image where LOG has
one, and a key change is a delete and an insert. Values have the row layout of the options. The LOGADDR is
derived from the change sequence. The system tables have each layout of a table, with the LOGADDR from which
it is valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from .. import formats
from ..errors import ConfigError, FormatError, UnsupportedError
from ..execution import over_rows
from ..formats import file_writer, new_folder
from ..formats.base import VendorTable
from ..formats.option_names import no_table
from ..formats.report import counted
from ..formats.shape import arrow_rows
from ..formats.soliddb.options import SolidOptions
from ..formats.soliddb.records import SCHEMA
from ..formats.soliddb.tables import FROM, SYS_COLUMNS, SYS_TABLES, Row, column_id, generated_rows, layouts
from ..lake import delta as lake
from ..lake import log
from ..model.positions import ChangeNumber
from ..model.types import arrow_type
from ..store.kept import kept
from ..store.log_files import LogFile, LogFiles
from ..store.running import Piece, records
from ..wire import soliddb_address
from .sys_log_task import LOSSES, SYS_LOG_SCHEMA, LogTable, SysLogTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG = "SYS_LOG"
_EVERYTHING = 1 << 62


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        rows: rows by table.
        absent_columns: the number of images without some columns, which are NULL in SYS_LOG, where an image
            has every column. Deletes of sources that send only the key are such images.
        kept_after: LOG no longer has records up to this change number; None if it has all records.
        empty_binary: the number of images with empty bytes that are written as NULL (row layout A).
        empty_text: the number of images with empty text that is written as NULL (row layout A without
            `trailing_nul`).
    """

    rows: dict[str, int]
    absent_columns: int
    kept_after: ChangeNumber | None = None
    empty_binary: int = 0
    empty_text: int = 0


_RELIDS = 1 << 31


@dataclass(frozen=True)
class SysLog:
    """The input of an export: the rows of the system tables, and the task that converts records of LOG."""

    tables: list[Row]
    columns: list[Row]
    task: SysLogTask
    files: list[LogFile]


def needs_spark(log_path: str, kind: str, given: Mapping[str, str], limit: int) -> str | None:
    """Returns why an export needs Spark; None if this process can write it.

    Args:
        log_path: LOG.
        kind: the kind of file.
        given: the options of the format.
        limit: the maximum bytes of LOG's files that this process exports.
    """
    if kind not in file_writer.KINDS:
        return f"it writes {kind} files"
    if kind == "csv" and given.get("binary", "hex") != "hex":
        return "it writes base64"
    size = sum(f.size for f in _files(log_path))
    return f"LOG has {size:,} bytes" if size > limit else None


def export_sys_log(
    log_path: str,
    relations_path: str,
    out: str,
    *,
    spark: SparkSession | None = None,
    kind: str = "parquet",
    options: Mapping[str, str] | None = None,
) -> Exported:
    """Writes the LOG of a task into a folder `out` as SYS_LOG, SYS_TABLES, SYS_COLUMNS.

    With a session, Spark's tasks write the files, otherwise this process. The rows are the same. `options`
    are those of the format `soliddb`, as text: `{"row_layout": "B", "logaddr_bytes": "28"}`.

    Raises:
        ConfigError: an option that the format does not have, or the folder is not empty.
        FormatError: LOG has a value that its column's lake type cannot hold.
    """
    given: Any = formats.options(formats.get("soliddb"), dict(options or {}))
    found = sys_log(log_path, relations_path, given)
    with new_folder.filled(out):
        if spark is None:
            rows, lost = _here(found, log_path, out, kind)
        else:
            rows, lost = _by_spark(spark, found, log_path, out, kind, given)
    return Exported(rows, kept_after=kept(log_path), **lost)


def refuse(log_path: str, out: str, kind: str, given: Mapping[str, str]) -> None:
    """Raises ConfigError for arguments that `export_sys_log` refuses, and if there is no LOG."""
    form = formats.get("soliddb")
    formats.options(form, dict(given))
    if kind not in form.files:
        raise ConfigError(
            f"{form.name} cannot be written as {kind} files", hint=f"it has {', '.join(form.files)}"
        )
    new_folder.refuse_used(out)
    if not lake.exists(log_path):
        raise ConfigError("there is no LOG yet", where=log_path, hint="`tailrace run` captures one")


def sys_log(log_path: str, relations_path: str, options: SolidOptions) -> SysLog:
    """Returns the system tables of a LOG, and the task that converts its records."""
    every = log.history(relations_path)
    if odd := options.unfit(every):
        raise FormatError(no_table("tables", odd[0], every), where=relations_path, hint="leave it out")
    history = {n: x for n, x in every.items() if options.wants(n)}
    if bare := [n for n, x in history.items() if not any(one.relation.columns for one in x)]:
        raise UnsupportedError(
            "solidDB has no tables without columns",
            where=", ".join(bare),
            hint="name the tables to export with the option tables",
        )
    if large := [n for n, x in history.items() if any(one.relation.relid >= _RELIDS for one in x)]:
        raise UnsupportedError(
            f"solidDB's RELID is a whole number below {_RELIDS:,}, and the source's table has a larger OID",
            where=", ".join(large),
            hint="name the tables to export with the option tables",
        )
    length = options.logaddr_bytes or soliddb_address.LENGTHS[0]
    rows: tuple[list[Row], list[Row]] = ([], [])
    starts = {n: _starts(x, length) for n, x in history.items()}
    for name, mine in history.items():
        for one, start in zip(mine, starts[name], strict=True):
            columns = tuple((c.name, c.type) for c in one.relation.columns)
            made = generated_rows([(name, columns, tuple(one.relation.key))], one.relation.relid)
            rows[0].extend([] if start else made[0])
            relid, made_columns = one.relation.relid, zip(made[1], one.relation.columns, strict=True)
            rows[1].extend(
                {**r, "ID": column_id(relid, c.attnum), FROM: start or None} for r, c in made_columns
            )
    known = layouts(rows[0], rows[1], {})
    tables = [
        LogTable.of(
            n, list(zip(x, starts[n], strict=True)), [k for k in known if k.table == n], options, length
        )
        for n, x in history.items()
    ]
    return SysLog(*rows, SysLogTask(tuple(tables), length), _files(log_path))


def _starts(history: Sequence[log.Layout], length: int) -> list[bytes]:
    """Returns the LOGADDR from which each layout is valid; empty for the first one of each table id."""
    seen: set[int] = set()
    found = []
    for one in history:
        first = one.relation.relid not in seen
        found.append(b"" if first else soliddb_address.make(one.from_seq, 0, length))
        seen.add(one.relation.relid)
    return found


def _files(log_path: str) -> list[LogFile]:
    return LogFiles(log_path, -1).batch(-1, _EVERYTHING)


def _here(found: SysLog, log_path: str, out: str, kind: str) -> tuple[dict[str, int], dict[str, int]]:
    """Writes the tables in this process; returns the rows by table, and the numbers of images with losses."""
    lost = dict.fromkeys(LOSSES, 0)
    writer = file_writer.TableWriter(Path(out) / LOG, SYS_LOG_SCHEMA, kind)
    for batch in found.task(records(log_path, _pieces(found.files))):
        for loss in LOSSES:
            lost[loss] += pc.sum(batch[loss]).as_py() or 0
        writer.write(batch.drop_columns(list(LOSSES)))
    writer.close()
    rows = {LOG: writer.rows}
    for one, some in ((SYS_TABLES, found.tables), (SYS_COLUMNS, found.columns)):
        table = _system(one, some)
        writer = file_writer.TableWriter(Path(out) / one.name, table.schema, kind)
        for batch in table.to_batches():
            writer.write(batch)
        writer.close()
        rows[one.name] = writer.rows
    return rows, lost


def _by_spark(
    spark: SparkSession, found: SysLog, log_path: str, out: str, kind: str, options: SolidOptions
) -> tuple[dict[str, int], dict[str, int]]:
    """Writes the tables by Spark's tasks, like `_here`."""
    from pyspark.sql import functions as F

    whole = _records(spark, found, log_path)
    figures = [F.count(F.lit(1)).alias("rows"), *(F.count_if(x).alias(x) for x in LOSSES)]
    df, seen = counted(whole, f"export {LOG}", figures)
    tables = {LOG: df.drop(*LOSSES)}
    rows = {}
    for one, some in ((SYS_TABLES, found.tables), (SYS_COLUMNS, found.columns)):
        table = _system(one, some)
        tables[one.name], rows[one.name] = arrow_rows(spark, table), table.num_rows
    form = formats.get("soliddb")
    assert form.save is not None  # noqa: S101 - that format has its own options
    form.save(tables, out, kind, options)
    numbers = seen.figures()
    return {LOG: numbers["rows"], **rows}, {x: numbers[x] for x in LOSSES}


def _records(spark: SparkSession, found: SysLog, log_path: str) -> DataFrame:
    """Returns the records of LOG, computed by tasks of about the same size. A task has whole files, and so
    whole transactions."""
    tasks = max(1, min(len(found.files), spark.sparkContext.defaultParallelism))
    shares = _shares(found.files, tasks)
    task = found.task

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from task(records(log_path, shares[number]))

    schema = ", ".join([SCHEMA, *(f"{x} boolean" for x in LOSSES)])
    return over_rows(spark.range(0, tasks, 1, tasks), work, schema)


def _shares(files: Sequence[LogFile], many: int) -> list[list[Piece]]:
    """Returns the files in order, divided into shares of about the same size.

    >>> [[p.path for p in one] for one in _shares([LogFile(n, 10) for n in "abc"], 2)]
    [['a', 'b'], ['c']]
    """
    total = max(sum(f.size for f in files), 1)
    shares: list[list[Piece]] = [[] for _ in range(many)]
    before = 0
    for file in files:
        shares[min(many - 1, before * many // total)].append(Piece(file.path, file.size))
        before += file.size
    return shares


def _pieces(files: Sequence[LogFile]) -> list[Piece]:
    return reduce(lambda a, b: a + b, _shares(files, 1))


def _system(kind: VendorTable, rows: Sequence[Row]) -> pa.Table:
    schema = pa.schema([(c.name, arrow_type(c.type)) for c in kind.columns])
    return pa.Table.from_pylist([dict(r) for r in rows], schema=schema)
