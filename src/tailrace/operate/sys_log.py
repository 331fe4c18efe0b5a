"""LOG as solidDB's SYS_LOG, with SYS_TABLES and SYS_COLUMNS, for readers of solidDB's log.

Every change becomes the records that solidDB would have written (an update's before image where LOG has one,
a key change as delete and insert), its values in the row layout of the options, its LOGADDR made from its
change sequence; each layout a table had is in the system tables from the LOGADDR on where it came into force.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .. import formats
from ..errors import ConfigError, FormatError
from ..formats import convert
from ..formats.base import VendorTable, header_gap
from ..formats.counts import counted
from ..formats.soliddb.options import SolidOptions
from ..formats.soliddb.reading import FIELDS, TABLES
from ..formats.soliddb.tables import FROM, SYS_COLUMNS, SYS_TABLES, Row, made_up, wider
from ..lake import delta as lake
from ..lake import log
from ..model.change import NATIVE, PREFIX, ChangeTable
from ..model.types import arrow_type, header_schema, schema_of
from ..store import images
from ..store.kept import kept
from ..store.task import LOG_COLUMNS, lake_batch
from ..store.tracking import numbers
from ..wire import soliddb_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHORT = header_gap("column_mask")  # counted: an image of SYS_LOG has every column
HEADERS = ("change_seq", "change_oper", "transaction_id", "column_mask")
"""The change table headers that writing needs."""


@dataclass(frozen=True)
class Exported:
    """What was written: rows by table, and how many images lacked columns (written as NULL there: an image
    of SYS_LOG has every column; deletes of sources that send only the key lack the others). LOG has all
    records behind the change number `kept_after`, and no longer those up to it."""

    rows: dict[str, int]
    absent_columns: int
    kept_after: int = 0


def export_sys_log(
    spark: SparkSession,
    log_path: str,
    relations_path: str,
    out: str,
    *,
    kind: str = "parquet",
    **options: str,
) -> Exported:
    """Writes the LOG of a task into a folder `out` as SYS_LOG, SYS_TABLES, SYS_COLUMNS.

    `options` are those of the format `soliddb`, as text: `row_layout="B"`, `logaddr_bytes="28"`, ...

    Raises:
        ConfigError: an option that the format does not have, or the folder is not empty.
        FormatError: LOG has a value that its column's lake type cannot hold.
    """
    form = formats.get("soliddb")
    given: Any = formats.options(form, options)
    changes = change_tables(spark, log_path, relations_path, given)
    masked = {
        name: (ct, convert.observed(ct, [_SHORT], fail=False))
        for name, ct in changes.items()
        if name not in (TABLES, FIELDS)
    }
    changes |= {name: ct.with_df(df) for name, (ct, (df, _)) in masked.items()}
    written = {n: counted(df, f"export {n}") for n, df in form.write(changes, given).items()}
    assert form.save is not None  # noqa: S101 - that format has its own options
    form.save({n: df for n, (df, _) in written.items()}, out, kind, given)
    rows = {n: seen.figures()["rows"] for n, (_, seen) in written.items()}
    absent = sum(seen.figures()["lost 0"] for _, (_, seen) in masked.values())
    return Exported(rows, absent, max(kept(log_path), 0))


def refuse(log_path: str, out: str, kind: str, given: Mapping[str, str]) -> None:
    """Raises ConfigError for what `export_sys_log` refuses before it reads anything, and without any LOG."""
    form = formats.get("soliddb")
    formats.options(form, dict(given))
    if kind not in form.files:
        raise ConfigError(
            f"{form.name} cannot be written as {kind} files", hint=f"it has {', '.join(form.files)}"
        )
    convert.new_folder(out)
    if not lake.exists(log_path):
        raise ConfigError("there is no LOG yet", where=log_path, hint="`tailrace run` captures one")


def change_tables(
    spark: SparkSession, log_path: str, relations_path: str, options: SolidOptions
) -> dict[str, ChangeTable]:
    """The change tables of a LOG, and the system tables that belong to them."""
    history = {n: x for n, x in log.history(relations_path).items() if options.wants(n)}
    records = spark.read.format("delta").load(log_path).select(*LOG_COLUMNS)
    found = {name: _changes(records, name, mine) for name, mine in history.items()}
    rows: tuple[list[Row], list[Row]] = ([], [])
    for name, mine in history.items():
        seen: set[int] = set()
        for one in mine:
            first = one.relation.relid not in seen
            seen.add(one.relation.relid)
            start = None if first else soliddb_address.make(one.from_seq, 0, options.logaddr_bytes or 20)
            columns = tuple((c.name, c.type) for c in one.relation.columns)
            made = made_up([(name, columns, tuple(one.relation.key))], one.relation.relid)
            rows[0].extend(made[0] if first else [])
            rows[1].extend({**r, FROM: start} for r in made[1])
    found[TABLES] = _system(spark, SYS_TABLES, rows[0], TABLES)
    found[FIELDS] = _system(spark, SYS_COLUMNS, rows[1], FIELDS)
    return found


def _system(spark: SparkSession, kind: VendorTable, rows: Sequence[Row], name: str) -> ChangeTable:
    schema = pa.schema([(c.name, arrow_type(c.type)) for c in kind.columns])
    df = spark.createDataFrame(pa.Table.from_pylist([dict(r) for r in rows], schema=schema))
    return ChangeTable(df, [], schema.names, name=name)


def _changes(records: DataFrame, name: str, layouts: Sequence[log.Layout]) -> ChangeTable:
    from pyspark.sql import functions as F

    types: dict[str, str] = {}
    for one in reversed(layouts):
        for c in one.relation.columns:
            types[c.name] = wider(types.get(c.name, c.type), c.type)
    relids = {x.relation.relid for x in layouts}
    kinds = (log.INSERT, log.UPDATE, log.DELETE, log.DDL)
    decoding = FromLog(tuple(layouts), tuple(types.items()))
    df = records.filter(F.col("RELID").isin(*relids) & F.col("RECID").isin(*kinds))
    df = df.mapInArrow(decoding, decoding.schema())
    # LOG's transaction ids are numbers; change tables show them as 32 hex digits.
    digits = F.conv(F.substring(PREFIX + "transaction_id", 17, 16), 16, 10)
    df = df.withColumns({PREFIX + "transaction_id": digits, PREFIX + NATIVE + "RELID": F.col("_relid")}).drop(
        "_relid"
    )
    return ChangeTable(df, layouts[-1].relation.key, list(types), name=name)


@dataclass(frozen=True)
class FromLog:
    """Decodes one table's records of LOG, a batch at a time; what Spark's tasks run."""

    layouts: tuple[log.Layout, ...]
    columns: tuple[tuple[str, str], ...]

    def schema(self) -> str:
        """The Spark schema of the rows that come out."""
        from ..formats.shape import quoted
        from ..model.change import HEADERS as TYPES

        made = [f"{PREFIX}{h} {TYPES[h]}" for h in HEADERS] + [f"{quoted(c)} {t}" for c, t in self.columns]
        return ", ".join([*made, "_relid int"])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decodes a task's batches."""
        for batch in batches:
            records = lake_batch(batch)
            at, relids = numbers(records["CHANGE_SEQ"]), records["RELID"].to_numpy()
            for relid in np.unique(relids).tolist():
                mine = [x for x in self.layouts if x.relation.relid == relid]
                starts = [0, *(log.number(x) for x in mine[1:]), np.iinfo(np.int64).max]
                for k, one in enumerate(mine):
                    rows = np.flatnonzero((relids == relid) & (at >= starts[k]) & (at < starts[k + 1]))
                    if len(rows):
                        yield from self._decoded(records.take(pa.array(rows)), one)

    def _decoded(self, records: pa.RecordBatch, layout: log.Layout) -> Iterator[pa.RecordBatch]:
        relation = layout.relation
        schema = pa.schema([*header_schema(), *schema_of(relation.columns)])
        ddl = records["RECID"].to_numpy() == log.DDL
        if ddl.any():
            yield self._shaped(images.truncates(records.filter(pa.array(ddl)), schema), relation.relid)
        if not ddl.all():
            found = images.decode(records.filter(pa.array(~ddl)), relation, schema)
            if found.bad:
                one = found.bad[0]
                raise FormatError(f"{one.text!r} does not fit", where=f"{relation.table}.{one.column}, LOG")
            yield self._shaped(found.rows, relation.relid)

    def _shaped(self, rows: pa.RecordBatch, relid: int) -> pa.RecordBatch:
        there = set(rows.schema.names)
        arrays = [rows[PREFIX + h] for h in HEADERS]
        for name, kind in self.columns:
            target = arrow_type(kind)
            arrays.append(rows[name].cast(target) if name in there else pa.nulls(rows.num_rows, target))
        arrays.append(pa.array(np.full(rows.num_rows, relid, np.int32)))
        names = [*(PREFIX + h for h in HEADERS), *(c for c, _ in self.columns), "_relid"]
        return pa.RecordBatch.from_arrays(arrays, names=names)
