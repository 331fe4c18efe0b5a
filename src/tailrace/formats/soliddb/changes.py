"""Converts one table's records of SYS_LOG to its canonical change table. Source: spec/soliddb.md §2-§5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model import mask
from ...model.change import BEFORE, DELETE, HEADERS, INSERT, NATIVE, OPERATIONS, TRUNCATE, UPDATE, ChangeTable
from ...wire.soliddb_address import RANKS
from ..base import RAW
from ..shape import canonical, data_start
from .codec import Decoding
from .log import (
    COLUMNS,
    DATA,
    DDL,
    SEQ,
    recname,
    truncate_body,
)  # fmt: skip
from .options import SolidOptions
from .order import MADE
from .pairs import OPER, Pairs
from .rules import OfTable
from .spread import Log
from .tables import SolidLayout, union

if TYPE_CHECKING:
    from pyspark.sql import Column

KEPT = ("LOGADDR", "RECID", "RECNAME", "RELID", "FLAGS", "TEXTDATA", "DATA")
"""SYS_LOG columns that are carried as separate headers if writing would not produce the same values."""
NAMES = ["statement_id", *(NATIVE + c for c in KEPT)]
_RANK_OPERS = {RANKS[o]: o for o in (BEFORE, DELETE, INSERT, UPDATE, TRUNCATE)}


def table_changes(
    log: Log, name: str, mine: Sequence[SolidLayout], all: Sequence[SolidLayout], options: SolidOptions
) -> ChangeTable:
    """The change table for the layouts `mine`, from a log; `all` are the layouts of every table."""
    from pyspark.sql import functions as F

    columns = union(mine)
    decoding = Decoding(tuple(x.fields for x in mine), tuple(columns), options.style())
    key = tuple(i for i, (c, _) in enumerate(columns) if c in mine[-1].key)
    pairs = Pairs(decoding, key, _RANK_OPERS, options.capture_off, options.starts)
    df = log.changes(OfTable(tuple(mine), tuple(all), log.length), pairs)
    exact = F.when(F.col("RECID") == DDL, F.col("DATA") == truncate_body(name)).otherwise(F.col("_exact"))
    usual = (
        (F.col("FLAGS") == DATA)
        & (F.col("RECNAME") == recname(F, F.col("RECID")))
        & F.col("TEXTDATA").isNull()
    )
    df = df.withColumns(
        {
            "_exact": F.coalesce(exact, F.lit(False)),
            "_kept": F.coalesce(F.col(MADE) & exact & usual, F.lit(False)),
            RAW: F.to_json(F.struct(*COLUMNS)),
        }
    )
    values = {c: F.col(f"_c{i}") for i, (c, _) in enumerate(columns)}
    return canonical(df, _headers(mine, [c for c, _ in columns]), values, key=mine[-1].key, name=name)


def _headers(mine: Sequence[SolidLayout], columns: Sequence[str]) -> dict[str, Column]:
    """The canonical headers. What only solidDB has is kept in native headers, unless writing produces the
    same."""
    from pyspark.sql import functions as F

    made, kept = F.col(MADE), F.col("_kept")
    start = data_start([*HEADERS, *NAMES])
    there = F.lit(None).cast("binary")
    for place, x in enumerate(mine):
        has = {f.name for f in x.fields if f.taken}
        if len(has) < len(columns):
            bits = mask.encode(start + i for i, c in enumerate(columns) if c in has)
            there = F.when(F.col("_layout") == place, F.lit(bits)).otherwise(there)
    opers = F.create_map(*[F.lit(x) for pair in OPERATIONS.items() for x in pair])
    headers = {
        "change_seq": F.col(SEQ),
        "change_oper": F.col(OPER),
        "stream_position": F.when(~kept, F.hex("LOGADDR")),
        "operation": F.element_at(opers, F.col(OPER)),
        "transaction_id": F.when(~(made & (F.col("TRXID") < 0)), F.col("TRXID").cast("string")),
        "column_mask": there,
        "statement_id": F.col("STMTTRXID"),
    }
    headers |= {NATIVE + c: F.when(~kept, F.col(c)) for c in KEPT if c != "DATA"}
    headers[NATIVE + "DATA"] = F.when(~F.col("_exact"), F.col("DATA"))
    return headers
