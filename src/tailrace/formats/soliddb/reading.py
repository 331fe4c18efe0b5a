"""Converts SYS_LOG, SYS_TABLES and SYS_COLUMNS to canonical change tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...model.change import INSERT, OPERATIONS, ChangeTable
from ...model.sequence import WIDTH
from ..base import ASIDE, FILE, RAW, ROW, WHY, Read, Tables, VendorTable
from ..shape import also, any_of, canonical, conform, quoted
from .changes import is_made, table_changes, truncates
from .log import CAPTURE_OFF, COLUMNS, RANK, ROWS, SEQ, START, SYS_LOG, address_length, checked
from .options import SolidOptions
from .others import CHANGE, WAITS, OtherRecords
from .pairs import MADE, ordered
from .tables import FROM, SYS_COLUMNS, SYS_TABLES, SYSTEM, Row, SolidLayout, layouts, made_up, same, union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORDS, TABLES, FIELDS = (f"{SYSTEM}.{t.name}" for t in (SYS_LOG, SYS_TABLES, SYS_COLUMNS))
"""Tables of what is not a row change: records of other kinds, and the system tables."""
_SYSTEM = (RECORDS, TABLES, FIELDS)
_OFF, _WHOLE = "_off", "_whole"


def read(tables: Tables, options: SolidOptions) -> Read:
    """Canonical change tables of log extracts. SYS_TABLES and SYS_COLUMNS are collected (they are small),
    and one record's LOGADDR is read for its length unless the options give it."""
    from pyspark.sql import functions as F

    sorted_out = {
        kind.name: [
            _conformed(df, kind, name, options) for name, df in tables.items() if kind_of(df.columns) == kind
        ]
        for kind in (SYS_LOG, SYS_TABLES, SYS_COLUMNS)
    }
    one = {name: reduce(_union, dfs) for name, dfs in sorted_out.items() if dfs}
    if not one:
        hint = f"{SYS_LOG.name} has the columns RECID and LOGADDR"
        raise FormatError("none of solidDB's tables", where=", ".join(tables) or "nothing", hint=hint)
    rows = [_collected(one.get(t.name), t) for t in (SYS_TABLES, SYS_COLUMNS)]
    found = [x for x in layouts(rows[0], rows[1], options.key_columns()) if options.wants(x.table)]
    made: dict[str, ChangeTable] = {}
    pending = {}
    by_table: dict[str, list[SolidLayout]] = {}
    for x in found:
        by_table.setdefault(x.table, []).append(x)
    if (log := one.get(SYS_LOG.name)) is not None:
        log = checked(log, options.logaddr_bytes or address_length(log))
        for name, mine in by_table.items():
            made[name] = table_changes(log, name, mine, found, options)
        log = _sorted_out(log, found, options)
        waiting = _waiting(log.filter(F.col(WHY).isNull()), options)
        said = F.lit("its transaction has no COMMIT yet").alias(WHY)
        pending[SYS_LOG.name] = waiting.select(*_vendor(waiting), said)
        records = _others(_light(log, whole=_off(log, options)), options)
        made[RECORDS] = _system(records.filter(~F.col(WAITS)), SYS_LOG, RECORDS, F.col(SEQ))
    if options.keep_records and not _implied(rows, by_table):
        for name, kind in ((TABLES, SYS_TABLES), (FIELDS, SYS_COLUMNS)):
            if kind.name in one:
                made[name] = _system(one[kind.name], kind, name, None)
    apart = {n: "the log's own records" if n == RECORDS else "a system table" for n in made if n in _SYSTEM}
    return Read(made, pending, _notes(one, by_table, tables), apart=apart)


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


def _conformed(df: DataFrame, kind: VendorTable, name: str, options: SolidOptions) -> DataFrame:
    made = conform(df, kind, where=name, base64=options.binary == "base64")
    return made.select(*[c.name for c in kind.columns], *[c for c in ASIDE if c in made.columns])


def _union(a: DataFrame, b: DataFrame) -> DataFrame:
    return a.unionByName(b, allowMissingColumns=True)


def _collected(df: DataFrame | None, kind: VendorTable) -> list[Row]:
    if df is None:
        return []
    names = [c.name for c in kind.columns]
    rows = df.filter(f"{WHY} is null").select(*names).collect()
    return list({repr(r): r.asDict() for r in rows}.values())  # the same extract may be there twice


def _implied(rows: Sequence[Sequence[Row]], by_table: dict[str, list[SolidLayout]]) -> bool:
    """Whether the system tables are those that writing these tables would generate."""
    specs = [(n, tuple(union(x)), x[-1].key) for n, x in by_table.items()]
    made = made_up(specs)
    return same(rows[0], made[0], SYS_TABLES) and same(rows[1], made[1], SYS_COLUMNS)


def _notes(
    one: dict[str, DataFrame], by_table: dict[str, list[SolidLayout]], tables: Tables
) -> tuple[str, ...]:
    notes = [
        f"{n} is not one of solidDB's tables: not read"
        for n, df in tables.items()
        if kind_of(df.columns) is None
    ]
    if SYS_LOG.name in one and len(one) < 3:
        notes.append(
            "rows cannot be read without SYS_TABLES and SYS_COLUMNS: put extracts of both next to SYS_LOG"
        )
    notes += [f"{n} has no key: name it with the option keys" for n, x in by_table.items() if not x[-1].key]
    return tuple(notes)


def _sorted_out(log: DataFrame, found: Sequence[SolidLayout], options: SolidOptions) -> DataFrame:
    """All records with `CHANGE`: whether they are a table's changes; with `MADE`; what only bad ones need is
    there for them alone."""
    from pyspark.sql import functions as F

    relids = {x.relid for x in found}
    rows = F.col("RECID").isin(*ROWS)
    known = F.col("RELID").isin(*relids)
    emptied = any_of(truncates([x], found) for x in found)
    log = also(log, (rows & ~F.coalesce(known, F.lit(False)) & F.lit(not options.tables), _unknown_table()))
    good = F.col(WHY).isNull()
    log = log.withColumn(CHANGE, F.coalesce(good & ((rows & known) | emptied), F.lit(False)))
    bad = {c: F.when(~good, F.col(c)) for c in (SEQ, RAW)}
    return log.withColumns({MADE: is_made() & good, **bad}).drop(RANK)


def _unknown_table() -> Column:
    from pyspark.sql import functions as F

    return F.concat(
        F.lit("RELID "),
        F.coalesce(F.col("RELID").cast("string"), F.lit("NULL")),
        F.lit(" is in no SYS_TABLES with SYS_COLUMNS"),
    )


def _others(log: DataFrame, options: SolidOptions) -> DataFrame:
    """The records that are no changes, and those that wait, as `OtherRecords` gives them."""
    work = OtherRecords(options.capture_off, options.keep_records)
    rows = ordered(log, statements=options.capture_off == "skip-deletes")
    return rows.mapInArrow(work, work.schema(rows))


def _off(log: DataFrame, options: SolidOptions) -> DataFrame | None:
    """The transactions with CAPTURE_OFF, mostly none: changes of them may be kept. None: it means nothing."""
    from pyspark.sql import functions as F

    if options.capture_off == "keep":
        return None
    off = (F.col("RECID") == START) & (F.col("FLAGS").bitwiseAND(CAPTURE_OFF) != 0) & F.col(WHY).isNull()
    return log.filter(off).select(F.col("TRXID").alias(_OFF)).distinct().withColumn(_WHOLE, F.lit(True))


def _light(log: DataFrame, *, whole: DataFrame | None = None) -> DataFrame:
    """Records, changes with no more than what tells their place: they are only looked at, and a shuffle for
    that is to be light. Those of the transactions `whole` have all."""
    from pyspark.sql import functions as F

    light = F.col(CHANGE)
    if whole is not None:
        log = log.join(F.broadcast(whole), F.col("TRXID").eqNullSafe(F.col(_OFF)), "left")
        light &= F.col(_WHOLE).isNull()
    stay = {"RECID", "TRXID", "STMTTRXID", "RELID", "FLAGS", "LOGADDR", CHANGE, MADE, WHY}
    made = {c: F.when(~light, F.col(c)) for c in log.columns if c not in stay}
    return log.withColumns(made).drop(_OFF, _WHOLE)


def _waiting(good: DataFrame, options: SolidOptions) -> DataFrame:
    """The good records whose transactions are not over. They are found by their places; then those of their
    transactions, mostly none, are looked at whole."""
    from pyspark.sql import functions as F

    found = _others(_light(good), options).filter(WAITS)
    mine = F.broadcast(found.select(F.col("TRXID").alias("_open")).distinct())
    some = good.join(mine, F.col("TRXID").eqNullSafe(F.col("_open")), "left_semi")
    return _others(some, options).filter(WAITS)


def _vendor(df: DataFrame) -> list[str]:
    return [*COLUMNS, *[c for c in (FILE, ROW) if c in df.columns]]


def _system(df: DataFrame, kind: VendorTable, name: str, seq: Column | None) -> ChangeTable:
    """A system table, or records, as a change table of inserts with the vendor's own columns."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    columns = [c.name for c in kind.columns]
    if seq is None:
        df = df.dropDuplicates([*columns, *(c for c in (WHY, RAW) if c in df.columns)])
        # Rows of a layout are valid from the same place on: all that matters for their order is that none
        # occurs twice.
        order = Window.orderBy(F.col(FROM).asc_nulls_first(), "ID", F.to_json(F.struct(*columns)))
        seq = F.lpad(F.row_number().over(order).cast("string"), WIDTH, "0")
    raw = F.to_json(F.struct(*[c.name for c in kind.columns]))
    df = df.withColumn(RAW, F.coalesce(F.col(RAW), raw) if RAW in df.columns else raw)
    headers = {"change_seq": seq, "change_oper": F.lit(INSERT), "operation": F.lit(OPERATIONS[INSERT])}
    return canonical(df, headers, {c: F.col(quoted(c)) for c in columns}, key=[], name=name)
