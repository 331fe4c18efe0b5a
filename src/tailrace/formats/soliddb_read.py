"""SYS_LOG, SYS_TABLES and SYS_COLUMNS -> canonical change tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .. import mask
from ..change import BEFORE, DELETE, HEADERS, INSERT, NATIVE, OPERATIONS, TRUNCATE, UPDATE, ChangeTable
from ..laketypes import arrow_type
from ..wire import soliddb as codec
from ..wire.soliddb_address import RANKS
from .base import FILE, RAW, ROW, WHY, Read, Tables, VendorTable
from .shape import also, canonical, conform, data_start, quoted
from .soliddb_log import (
    COLUMNS,
    COMMIT,
    DATA,
    DDL,
    OPERS,
    RANK,
    REC_BEFORE,
    REC_DELETE,
    REC_INSERT,
    REC_UPDATE,
    ROWS,
    SEQ,
    SQL,
    START,
    SYS_LOG,
    address_length,
    checked,
    in_transactions,
    is_mark,
    is_skipped,
    is_truncate,
    recname,
    truncate_body,
    truncated_name,
)  # fmt: skip
from .soliddb_options import SolidOptions
from .soliddb_place import sequence_of
from .soliddb_tables import FROM, SYS_COLUMNS, SYS_TABLES, SYSTEM, Layout, Row, layouts, made_up, same, union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORDS, TABLES, FIELDS = (f"{SYSTEM}.{t.name}" for t in (SYS_LOG, SYS_TABLES, SYS_COLUMNS))
"""Change tables of what is no row change: records of other kinds, and the system tables."""
KEPT = ("LOGADDR", "RECID", "RECNAME", "RELID", "FLAGS", "TEXTDATA", "DATA")
"""SYS_LOG columns that travel as headers of their own where writing would not make the same."""
NAMES = ["statement_id", *(NATIVE + c for c in KEPT)]
_RANK_OPERS = {RANKS[o]: o for o in (BEFORE, DELETE, INSERT, UPDATE, TRUNCATE)}
_MADE_OF = {
    RANKS[BEFORE]: (REC_BEFORE, REC_DELETE), RANKS[DELETE]: (REC_DELETE,), RANKS[INSERT]: (REC_INSERT,),
    RANKS[UPDATE]: (REC_UPDATE, REC_INSERT), RANKS[TRUNCATE]: (DDL,),
}  # fmt: skip


def read(tables: Tables, options: SolidOptions) -> Read:
    """Canonical change tables of log extracts. SYS_TABLES and SYS_COLUMNS are collected (they are small), and
    one record's LOGADDR is looked at for its length unless the options say it."""
    sorted_out = {
        kind.name: [
            _conformed(df, kind, name, options) for name, df in tables.items() if kind_of(df.columns) == kind
        ]
        for kind in (SYS_LOG, SYS_TABLES, SYS_COLUMNS)
    }
    one = {name: reduce(_union, dfs) for name, dfs in sorted_out.items() if dfs}
    rows = [_collected(one.get(t.name), t) for t in (SYS_TABLES, SYS_COLUMNS)]
    found = [x for x in layouts(rows[0], rows[1], options.key_columns()) if options.wants(x.table)]
    made: dict[str, ChangeTable] = {}
    pending = {}
    by_table: dict[str, list[Layout]] = {}
    for x in found:
        by_table.setdefault(x.table, []).append(x)
    if (log := one.get(SYS_LOG.name)) is not None:
        log = checked(log, options.logaddr_bytes or address_length(log))
        for name, mine in by_table.items():
            made[name] = _table(log, name, mine, found, options)
        others = in_transactions(_told_apart(log, found, options))
        waits = _waits()
        pending[SYS_LOG.name] = others.filter(waits).select(*_vendor(others))
        made[RECORDS] = _system(others.filter(~waits), SYS_LOG, RECORDS, _records(options))
    if options.keep_records and not _implied(rows, by_table):
        for name, kind in ((TABLES, SYS_TABLES), (FIELDS, SYS_COLUMNS)):
            if kind.name in one:
                made[name] = _system(one[kind.name], kind, name, None)
    return Read(made, pending, _notes(one, by_table, tables))


def kind_of(columns: Iterable[str]) -> VendorTable | None:
    """Which of solidDB's tables has these columns.

    >>> kind_of(["recid", "logaddr"]).name
    'SYS_LOG'
    """
    have = {c.upper() for c in columns}
    signs = (
        (SYS_LOG, {"RECID", "LOGADDR"}),
        (SYS_COLUMNS, {"REL_ID", "COLUMN_NAME"}),
        (SYS_TABLES, {"ID", "TABLE_NAME"}),
    )
    return next((table for table, names in signs if names <= have), None)


def F_col(name: str) -> Column:  # noqa: N802
    from pyspark.sql import functions as F

    return F.col(name)


def _conformed(df: DataFrame, kind: VendorTable, name: str, options: SolidOptions) -> DataFrame:
    made = conform(df, kind, where=name, base64=options.binary == "base64")
    return made.select(
        *[c.name for c in kind.columns], *[c for c in (FILE, ROW, WHY, RAW) if c in made.columns]
    )


def _union(a: DataFrame, b: DataFrame) -> DataFrame:
    return a.unionByName(b, allowMissingColumns=True)


def _collected(df: DataFrame | None, kind: VendorTable) -> list[Row]:
    if df is None:
        return []
    names = [c.name for c in kind.columns]
    return [r.asDict() for r in df.filter(F_col(WHY).isNull()).select(*names).collect()]


def _implied(rows: Sequence[Sequence[Row]], by_table: dict[str, list[Layout]]) -> bool:
    """Whether the system tables are what writing these tables would make up."""
    specs = [(n, tuple(union(x)), x[-1].key) for n, x in by_table.items()]
    made = made_up(specs)
    return same(rows[0], made[0], SYS_TABLES) and same(rows[1], made[1], SYS_COLUMNS)


def _notes(one: dict[str, DataFrame], by_table: dict[str, list[Layout]], tables: Tables) -> tuple[str, ...]:
    notes = [
        f"{n} is none of solidDB's tables: not read"
        for n, df in tables.items()
        if kind_of(df.columns) is None
    ]
    if SYS_LOG.name in one and len(one) < 3:
        notes.append(
            "rows cannot be read without SYS_TABLES and SYS_COLUMNS: put extracts of both beside SYS_LOG"
        )
    notes += [f"{n} has no key: say it with the option keys" for n, x in by_table.items() if not x[-1].key]
    return tuple(notes)


# -- a table's changes


def _table(
    log: DataFrame, name: str, mine: Sequence[Layout], all: Sequence[Layout], options: SolidOptions
) -> ChangeTable:
    from pyspark.sql import functions as F

    columns = union(mine)
    log = log.filter(F.col(WHY).isNull())
    changes = (F.col("RECID").isin(*ROWS) & F.col("RELID").isin(*{x.relid for x in mine})) | _truncates(
        mine, all
    )
    log = (
        log.filter(changes | F.col("RECID").isin(START, COMMIT))
        .withColumn("_layout", layout_of(mine))
        .drop(RAW)
    )
    decoding = Decoding(tuple(x.fields for x in mine), tuple(columns), options.style())
    log = log.mapInArrow(decoding, decoding.schema(log))
    log = in_transactions(log).filter(~F.col("RECID").isin(START, COMMIT))
    log = log.filter((F.col("_committed") | ~F.col("_newest")) & ~is_skipped(options.capture_off))
    log = also(log, (F.col("_bad").isNotNull(), F.col("_bad")), (~F.col("_committed"), _NO_COMMIT))
    key = [f"_c{i}" for i, (c, _) in enumerate(columns) if c in mine[-1].key]
    log = paired(log, key)
    exact = F.when(F.col("RECID") == DDL, F.col("DATA") == F.lit(truncate_body(name))).otherwise(
        F.col("_exact")
    )
    kept = F.coalesce(
        F.col("_made") & exact & (F.col("FLAGS") == DATA) & (F.col("RECNAME") == recname(F.col("RECID")))
        & F.col("TEXTDATA").isNull(),
        F.lit(False),
    )  # fmt: skip
    log = log.withColumn("_kept", kept)
    log = log.withColumn(RAW, F.to_json(F.struct(*COLUMNS)))
    values = {c: F.col(f"_c{i}") for i, (c, _) in enumerate(columns)}
    return canonical(log, _headers(mine, [c for c, _ in columns], exact), values, key=mine[-1].key, name=name)


_NO_COMMIT = "its transaction has no COMMIT, though its TRXID begins again"


def _truncates(mine: Sequence[Layout], all: Sequence[Layout]) -> Column:
    """Truncates of a table: by RELID, or by the name in DATA when no table has the RELID."""
    from pyspark.sql import functions as F

    names = {n for x in mine for n in x.names}
    taken = {n for x in all if x.table != mine[0].table for n in x.names}
    relid = F.coalesce(F.col("RELID"), F.lit(0))
    unknown = ~relid.isin(*{x.relid for x in all})
    by_name = unknown & truncated_name().isin(*(names - taken))
    return is_truncate() & (relid.isin(*{x.relid for x in mine}) | by_name)


def layout_of(mine: Sequence[Layout], relid: str | None = "RELID") -> Column:
    """The place in `mine` of the layout in force for a record of rows; NULL when there is none."""
    from pyspark.sql import functions as F

    found = F.lit(None).cast("int")
    for place, x in sorted(enumerate(mine), key=lambda p: p[1].start):
        fits = F.lit(True) if relid is None else F.col(relid).isNull() | (F.col(relid) == x.relid)
        found = F.when(fits & (F.col("LOGADDR") >= F.lit(x.start)), place).otherwise(found)
    return F.when(F.col("RECID").isin(*ROWS), found)


def paired(log: DataFrame, key: Sequence[str]) -> DataFrame:
    """Records with their operation (`_oper`), whether their LOGADDR was made here (`_made`), and `SEQ` as it is
    for the change: B takes that of its U.

    Neighbours among the records of one statement and table: 5 with the 3 behind it is an update; inserts and
    deletes that strictly alternate, with different keys, are key changes (delete and insert in either order).
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    recid, rank = F.col("RECID"), F.col(RANK)
    made = F.coalesce(
        *[F.when((rank == r) & recid.isin(*of), True) for r, of in _MADE_OF.items()], F.lit(False)
    )
    moves = recid.isin(REC_INSERT, REC_DELETE)
    log = log.withColumns({"_made": made, "_moves": moves})
    same = ("TRXID", "_part", "STMTTRXID", "RELID", "_made", "_moves")
    order, whole = Window.partitionBy(*same).orderBy("LOGADDR"), Window.partitionBy(*same)
    told = F.struct(
        "RECID",
        SEQ,
        F.col(WHY).isNotNull().alias("bad"),
        F.struct(*key).alias("key") if key else F.lit(0).alias("key"),
    )
    log = log.withColumn("_self", told)
    log = log.withColumns(
        {
            "_next": F.lead("_self").over(order),
            "_last": F.lag("_self").over(order),
            "_place": F.row_number().over(order),
        }
    )
    strict = ~F.coalesce(F.max(F.col("_last.RECID") == recid).over(whole), F.lit(False))
    strict &= F.count(F.lit(1)).over(whole) % 2 == 0
    log = log.withColumn(
        "_strict", strict & F.col("_moves") & ~F.col("_made") & F.col("STMTTRXID").isNotNull()
    )
    other = F.when(F.col("_place") % 2 == 1, F.col("_next")).otherwise(F.col("_last"))
    moved = F.lit(False)
    if key:
        clean = F.col(WHY).isNull() & ~other["bad"]
        moved = F.coalesce(
            F.col("_strict") & clean & ~other["key"].eqNullSafe(F.col("_self.key")), F.lit(False)
        )
    update = (recid == REC_BEFORE) & (F.col("_next.RECID") == REC_UPDATE)
    by_rank, by_recid = (
        F.create_map(*[F.lit(x) for p in m.items() for x in p]) for m in (_RANK_OPERS, OPERS)
    )
    oper = (
        F.when(F.col("_made"), F.element_at(by_rank, rank))
        .when(moved, F.when(recid == REC_DELETE, BEFORE).otherwise(UPDATE))
        .otherwise(F.element_at(by_recid, recid))
    )
    seq = (
        F.when(F.col("_made"), F.col(SEQ))
        .when(moved, F.greatest(F.col(SEQ), other[SEQ]))
        .when(update, F.col("_next")[SEQ])
        .otherwise(F.col(SEQ))
    )
    return log.withColumns({"_oper": oper, SEQ: seq}).drop(
        "_self", "_next", "_last", "_place", "_strict", "_moves"
    )


def _headers(mine: Sequence[Layout], columns: Sequence[str], exact: Column) -> dict[str, Column]:
    """The canonical headers. What solidDB alone has is kept beside, unless writing makes the same again."""
    from pyspark.sql import functions as F

    made, kept = F.col("_made"), F.col("_kept")
    start = data_start([*HEADERS, *NAMES])
    there = F.lit(None).cast("binary")
    for place, x in enumerate(mine):
        has = {f.name for f in x.fields}
        if len(has) < len(columns):
            bits = mask.encode(start + i for i, c in enumerate(columns) if c in has)
            there = F.when(F.col("_layout") == place, F.lit(bits)).otherwise(there)
    opers = F.create_map(*[F.lit(x) for pair in OPERATIONS.items() for x in pair])
    headers = {
        "change_seq": F.col(SEQ),
        "change_oper": F.col("_oper"),
        "stream_position": F.when(~kept, F.hex("LOGADDR")),
        "operation": F.element_at(opers, F.col("_oper")),
        "transaction_id": F.when(~(made & (F.col("TRXID") < 0)), F.col("TRXID").cast("string")),
        "column_mask": there,
        "statement_id": F.col("STMTTRXID"),
    }
    headers |= {NATIVE + c: F.when(~kept, F.col(c)) for c in KEPT if c != "DATA"}
    headers[NATIVE + "DATA"] = F.when(~F.coalesce(exact, F.lit(False)), F.col("DATA"))
    return headers


# -- everything else


def _told_apart(log: DataFrame, found: Sequence[Layout], options: SolidOptions) -> DataFrame:
    """All records with `_change`: whether they are a known table's changes; and `_place`: their LOGADDR when it was
    made from a change sequence."""
    from pyspark.sql import functions as F

    relids = {x.relid for x in found}
    rows = F.col("RECID").isin(*ROWS)
    known = F.col("RELID").isin(*relids)
    truncates = reduce(lambda a, b: a | b, (_truncates([x], found) for x in found), F.lit(False))
    log = also(log, (rows & ~F.coalesce(known, F.lit(False)) & F.lit(not options.tables), _unknown_table()))
    good = F.col(WHY).isNull()
    log = log.withColumn("_change", F.coalesce(good & ((rows & known) | truncates), F.lit(False)))
    made = F.coalesce(
        *[F.when((F.col(RANK) == r) & F.col("RECID").isin(*of), True) for r, of in _MADE_OF.items()],
        F.lit(False),
    )
    log = log.withColumn(RAW, F.when(~good, F.col(RAW)))
    return log.withColumn("_place", F.when(F.col("_change") & made, F.col("LOGADDR")))


def _unknown_table() -> Column:
    from pyspark.sql import functions as F

    return F.concat(
        F.lit("RELID "),
        F.coalesce(F.col("RELID").cast("string"), F.lit("NULL")),
        F.lit(" is in no SYS_TABLES with SYS_COLUMNS"),
    )


def _waits() -> Column:
    """Whether a record belongs to a transaction whose COMMIT may still come."""
    from pyspark.sql import functions as F

    own = F.col(WHY).isNull() & F.col("RECID").isin(*ROWS, START, SQL, DDL)
    return F.coalesce(own & F.col("_newest") & ~F.col("_committed"), F.lit(False))


def _records(options: SolidOptions) -> Column:
    """Which records are kept as they are: no changes (or changes that are skipped), no marks that writing makes
    up again."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    whole = Window.partitionBy("TRXID", "_part")
    first, last = F.min("_place").over(whole), F.max("_place").over(whole)
    change = F.col("_change") & ~is_skipped(options.capture_off)
    bad = F.col(WHY).isNotNull()
    return bad | (F.lit(options.keep_records) & ~change & ~is_mark(first, last))


def _vendor(df: DataFrame) -> list[str]:
    return [*COLUMNS, *[c for c in (FILE, ROW) if c in df.columns]]


def _system(df: DataFrame, kind: VendorTable, name: str, which: Column | None) -> ChangeTable:
    """A system table, or records, as a change table of inserts with the vendor's own columns."""
    from pyspark.sql import functions as F

    if which is not None:
        df = df.withColumn("_which", which).filter("_which")
        seq = F.col(SEQ)
    else:
        seq = F.coalesce(sequence_of(F.col(FROM)), F.lit("0" * 35))
    raw = F.to_json(F.struct(*[c.name for c in kind.columns]))
    df = df.withColumn(RAW, F.coalesce(F.col(RAW), raw))
    headers = {"change_seq": seq, "change_oper": F.lit(INSERT), "operation": F.lit(OPERATIONS[INSERT])}
    columns = [c.name for c in kind.columns]
    return canonical(df, headers, {c: F.col(quoted(c)) for c in columns}, key=[], name=name)


@dataclass(frozen=True)
class Decoding:
    """Decodes DATA of one table's records, a batch at a time; what Spark's tasks run.

    Adds `_c0`, `_c1`, ... (`columns`), `_exact` (encoding gives the same bytes again) and `_bad` (a reason).
    """

    fields: tuple[tuple[codec.Field, ...], ...]
    columns: tuple[tuple[str, str], ...]
    style: codec.Style

    def schema(self, df: DataFrame) -> str:
        """The Spark schema of the rows that come out."""
        came = [f"{quoted(f.name)} {f.dataType.simpleString()}" for f in df.schema]
        return ", ".join(
            [*came, *(f"_c{i} {t}" for i, (_, t) in enumerate(self.columns)), "_exact boolean, _bad string"]
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decodes a task's batches."""
        for batch in batches:
            made = self.decode(batch["DATA"], batch["_layout"], batch["RECID"])
            names = [*batch.schema.names, *(f"_c{i}" for i in range(len(self.columns))), "_exact", "_bad"]
            yield pa.RecordBatch.from_arrays([*batch.columns, *made], names=names)

    def decode(self, data: pa.Array, layout: pa.Array, recid: pa.Array) -> list[pa.Array]:
        """The columns, `_exact` and `_bad` of records with these layouts."""
        which = layout.fill_null(-1).to_numpy(zero_copy_only=False)
        kinds = np.unique(which)
        parts, order = [], []
        for kind in kinds.tolist():
            rows = np.flatnonzero(which == kind)
            take = pa.array(rows)
            parts.append(self._part(kind, data.take(take) if len(kinds) > 1 else data, recid.take(take)))
            order.append(rows)
        if len(parts) == 1:
            return parts[0]
        back = (
            pa.array(np.argsort(np.concatenate(order), kind="stable")) if order else pa.array([], pa.int64())
        )
        if not parts:
            return [c.slice(0, 0) for c in self._part(-1, pa.nulls(1, pa.binary()), pa.nulls(1, pa.int32()))]
        return [pa.concat_arrays(list(p)).take(back) for p in zip(*parts, strict=True)]

    def _part(self, kind: int, data: pa.Array, recid: pa.Array) -> list[pa.Array]:
        n = len(data)
        if kind < 0:
            rows = np.isin(recid.fill_null(0).to_numpy(zero_copy_only=False), ROWS)
            none = pa.array(["no layout of its table is in force at its LOGADDR"]).take(
                pa.array(np.zeros(n, np.int64), mask=~rows)
            )
            columns = [pa.nulls(n, arrow_type(t)) for _, t in self.columns]
            return [*columns, pa.array(np.zeros(n, np.bool_)), none]
        found = codec.decode(data, self.fields[kind], self.style)
        by_name = {f.name: c for f, c in zip(self.fields[kind], found.columns, strict=True)}
        columns = [
            by_name[c].cast(arrow_type(t)) if c in by_name else pa.nulls(n, arrow_type(t))
            for c, t in self.columns
        ]
        return [*columns, found.exact, found.why]
