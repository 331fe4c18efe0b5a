"""Converts SYS_LOG, SYS_TABLES and SYS_COLUMNS to canonical change tables. Source: spec/soliddb.md §2-§5."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from ...errors import FormatError
from ...model import mask
from ...model.change import (
    BEFORE,
    DELETE,
    HEADERS,
    INSERT,
    NATIVE,
    TRUNCATE,
    UPDATE,
    ChangeTable,
)
from ...model.quoting import quoted
from ...model.sequence import WIDTH
from ...wire.soliddb_address import RANKS
from ..base import ADDED_COLUMNS, FILE, RAW, ROW, WHY, Read, Tables, VendorTable
from ..shape import canonical, conform, data_start
from ..spark_functions import F, Window
from .codec import Decoding
from .log import COLUMNS, KEPT, SEQ, SYS_LOG, address_length, truncate_body
from .log_reader import LogReader, ShuffledLog, in_ranges
from .options import SolidOptions
from .others import OtherRecords
from .pairs import EXACT, OPER, SAME, Pairs
from .rules import LAYOUT, MADE, OfLog, OfTable
from .tables import (
    FROM,
    SYS_COLUMNS,
    SYS_TABLES,
    SYSTEM,
    Row,
    SolidLayout,
    generated_rows,
    layouts,
    made_again,
    same,
    union,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECORDS, TABLES, FIELDS = (f"{SYSTEM}.{t.name}" for t in (SYS_LOG, SYS_TABLES, SYS_COLUMNS))
"""The tables of records that are not row changes, and of the system tables."""
_SYSTEM = (RECORDS, TABLES, FIELDS)
NAMES = ["statement_id", *(NATIVE + c for c in KEPT)]
_RANK_OPERS = {RANKS[o]: o for o in (BEFORE, DELETE, INSERT, UPDATE, TRUNCATE)}


def read(tables: Tables, options: SolidOptions) -> Read:
    """Returns canonical change tables of log extracts. SYS_TABLES and SYS_COLUMNS are collected (they are
    small), and the length of LOGADDR is read from one record unless the options give it."""
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
    every = layouts(rows[0], rows[1], options.key_columns(), options.names)
    unknown = options.unknown_tables({x.table for x in every})
    found = [x for x in every if options.wants(x.table)]
    result: dict[str, ChangeTable] = {}
    pending = {}
    by_table: dict[str, list[SolidLayout]] = {}
    for x in found:
        by_table.setdefault(x.table, []).append(x)
    if (log := one.get(SYS_LOG.name)) is not None:
        length = options.logaddr_bytes or address_length(log)
        logs = [name for name, df in tables.items() if kind_of(df.columns) == SYS_LOG]
        source = in_ranges(tables, logs, length) or ShuffledLog(log, length)
        for name, mine in by_table.items():
            result[name] = table_changes(source, name, mine, found, options)
        rule = OfLog(tuple(found), bool(options.tables), length)
        records, waiting = source.others(rule, OtherRecords(options.capture_off, options.keep_records))
        said = F.lit("its transaction has no COMMIT yet").alias(WHY)
        pending[SYS_LOG.name] = waiting.select(*_vendor(waiting), said)
        result[RECORDS] = _system(records, SYS_LOG, RECORDS, F.col(SEQ))
    if options.keep_records and not _implied(rows, by_table):
        for name, kind in ((TABLES, SYS_TABLES), (FIELDS, SYS_COLUMNS)):
            if kind.name in one:
                result[name] = _system(one[kind.name], kind, name, None)
    apart = {n: "the log's own records" if n == RECORDS else "a system table" for n in result if n in _SYSTEM}
    keyless = {n: "SYS_COLUMNS has no key" for n, x in by_table.items() if not x[-1].key}
    again = {n: words for n, x in by_table.items() if (words := made_again(x)) is not None}
    notes = (*unknown, *_notes(one, tables), *(f"{n}: {words}" for n, words in again.items()))
    ids = {x.table: x.known_by for x in found if x.known_by}
    return Read(result, pending, notes, apart=apart, keyless=keyless, made_again=again, ids=ids)


def table_changes(
    log: LogReader, name: str, mine: Sequence[SolidLayout], all: Sequence[SolidLayout], options: SolidOptions
) -> ChangeTable:
    """Returns the change table for the layouts `mine`, from a log; `all` are the layouts of every table."""
    columns = union(mine)
    decoding = Decoding(tuple(x.fields for x in mine), tuple(columns), options.style())
    key = tuple(i for i, (c, _) in enumerate(columns) if c in mine[-1].key)
    pairs = Pairs(decoding, key, _RANK_OPERS, options.capture_off, options.starts, truncate_body(name))
    df = log.changes(OfTable(tuple(mine), tuple(all), log.length), pairs)
    df = df.withColumn(RAW, F.to_json(F.struct(*COLUMNS)))
    values = {c: F.col(f"_c{i}") for i, (c, _) in enumerate(columns)}
    return canonical(df, _headers(mine, [c for c, _ in columns]), values, key=mine[-1].key, name=name)


def _headers(mine: Sequence[SolidLayout], columns: Sequence[str]) -> dict[str, Column]:
    """Returns the canonical headers. Values that only solidDB has become native headers, unless writing would
    generate the same."""
    result, kept = F.col(MADE), F.col(SAME)
    start = data_start([*HEADERS, *NAMES])
    there = F.lit(None).cast("binary")
    for place, x in enumerate(mine):
        has = {f.name for f in x.fields if f.taken}
        if len(has) < len(columns):
            bits = mask.encode(start + i for i, c in enumerate(columns) if c in has)
            there = F.when(F.col(LAYOUT) == place, F.lit(bits)).otherwise(there)
    headers = {
        "change_seq": F.col(SEQ),
        "change_oper": F.col(OPER),
        "stream_position": F.when(~kept, F.hex("LOGADDR")),
        "transaction_id": F.when(~(result & (F.col("TRXID") < 0)), F.col("TRXID").cast("string")),
        "column_mask": there,
        "statement_id": F.col("STMTTRXID"),
    }
    headers |= {NATIVE + c: F.when(~kept, F.col(c)) for c in KEPT if c != "DATA"}
    headers[NATIVE + "DATA"] = F.when(~F.col(EXACT), F.col("DATA"))
    return headers


def kind_of(columns: Iterable[str]) -> VendorTable | None:
    """Returns the table of solidDB that has these columns.

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
    result = conform(df, kind, where=name, base64=options.binary == "base64")
    return result.select(*[c.name for c in kind.columns], *[c for c in ADDED_COLUMNS if c in result.columns])


def _union(a: DataFrame, b: DataFrame) -> DataFrame:
    return a.unionByName(b, allowMissingColumns=True)


def _collected(df: DataFrame | None, kind: VendorTable) -> list[Row]:
    if df is None:
        return []
    names = [c.name for c in kind.columns]
    rows = df.filter(f"{WHY} is null").select(*names).collect()
    return list({repr(r): r.asDict() for r in rows}.values())  # the input may contain the same extract twice


def _implied(rows: Sequence[Sequence[Row]], by_table: dict[str, list[SolidLayout]]) -> bool:
    """Whether the system tables are those that writing these tables would generate."""
    specs = [(n, tuple(union(x)), x[-1].key) for n, x in by_table.items()]
    result = generated_rows(specs)
    return same(rows[0], result[0], SYS_TABLES) and same(rows[1], result[1], SYS_COLUMNS)


def _notes(one: dict[str, DataFrame], tables: Tables) -> tuple[str, ...]:
    notes = [
        f"{n} is not one of solidDB's tables: not read"
        for n, df in tables.items()
        if kind_of(df.columns) is None
    ]
    if SYS_LOG.name in one and len(one) < 3:
        notes.append(
            "rows cannot be read without SYS_TABLES and SYS_COLUMNS: put extracts of both next to SYS_LOG"
        )
    return tuple(notes)


def _vendor(df: DataFrame) -> list[str]:
    return [*COLUMNS, *[c for c in (FILE, ROW) if c in df.columns]]


def _system(df: DataFrame, kind: VendorTable, name: str, seq: Column | None) -> ChangeTable:
    """Returns a system table, or records, as a change table of inserts with the vendor's own columns."""
    columns = [c.name for c in kind.columns]
    if seq is None:
        df = df.dropDuplicates([*columns, *(c for c in (WHY, RAW) if c in df.columns)])
        # Rows of a layout are valid from the same position on: it only matters for their order that none is a
        # duplicate.
        order = Window.orderBy(F.col(FROM).asc_nulls_first(), "ID", F.to_json(F.struct(*columns)))
        seq = F.lpad(F.row_number().over(order).cast("string"), WIDTH, "0")
    raw = F.to_json(F.struct(*[c.name for c in kind.columns]))
    df = df.withColumn(RAW, F.coalesce(F.col(RAW), raw) if RAW in df.columns else raw)
    headers = {"change_seq": seq, "change_oper": F.lit(INSERT)}
    return canonical(df, headers, {c: F.col(quoted(c)) for c in columns}, key=[], name=name)
