"""Converts one table's records of SYS_LOG to its canonical change table. Source: spec/soliddb.md §2-§5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model import mask
from ...model.change import BEFORE, DELETE, HEADERS, INSERT, NATIVE, OPERATIONS, TRUNCATE, UPDATE, ChangeTable
from ...wire.soliddb_address import RANKS
from ..base import RAW, WHY
from ..shape import canonical, data_start
from .codec import Decoding
from .log import (
    COLUMNS,
    COMMIT,
    DATA,
    DDL,
    RANK,
    REC_BEFORE,
    REC_DELETE,
    REC_INSERT,
    REC_UPDATE,
    ROWS,
    SEQ,
    START,
    is_truncate,
    recname,
    truncate_body,
    truncated_name,
)  # fmt: skip
from .options import SolidOptions
from .pairs import MADE, OPER, Pairs, ordered
from .tables import SolidLayout, union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEPT = ("LOGADDR", "RECID", "RECNAME", "RELID", "FLAGS", "TEXTDATA", "DATA")
"""SYS_LOG columns that are carried as separate headers if writing would not produce the same values."""
NAMES = ["statement_id", *(NATIVE + c for c in KEPT)]
_RANK_OPERS = {RANKS[o]: o for o in (BEFORE, DELETE, INSERT, UPDATE, TRUNCATE)}
_MADE_OF = {
    RANKS[BEFORE]: (REC_BEFORE, REC_DELETE), RANKS[DELETE]: (REC_DELETE,), RANKS[INSERT]: (REC_INSERT,),
    RANKS[UPDATE]: (REC_UPDATE, REC_INSERT), RANKS[TRUNCATE]: (DDL,),
}  # fmt: skip


def table_changes(
    log: DataFrame, name: str, mine: Sequence[SolidLayout], all: Sequence[SolidLayout], options: SolidOptions
) -> ChangeTable:
    """The change table for the layouts `mine`, from checked records; `all` are the layouts of every table."""
    from pyspark.sql import functions as F

    columns = union(mine)
    decoding = Decoding(tuple(x.fields for x in mine), tuple(columns), options.style())
    key = tuple(i for i, (c, _) in enumerate(columns) if c in mine[-1].key)
    pairs = Pairs(decoding, key, _RANK_OPERS, options.capture_off)
    log = ordered(_records(log, mine, all).withColumn(MADE, is_made()).drop(SEQ))
    log = log.mapInArrow(pairs, pairs.schema(log))
    exact = F.when(F.col("RECID") == DDL, F.col("DATA") == truncate_body(name)).otherwise(F.col("_exact"))
    usual = (
        (F.col("FLAGS") == DATA) & (F.col("RECNAME") == recname(F.col("RECID"))) & F.col("TEXTDATA").isNull()
    )
    log = log.withColumns(
        {
            "_exact": F.coalesce(exact, F.lit(False)),
            "_kept": F.coalesce(F.col(MADE) & exact & usual, F.lit(False)),
            RAW: F.to_json(F.struct(*COLUMNS)),
        }
    )
    values = {c: F.col(f"_c{i}") for i, (c, _) in enumerate(columns)}
    return canonical(log, _headers(mine, [c for c, _ in columns]), values, key=mine[-1].key, name=name)


def _records(log: DataFrame, mine: Sequence[SolidLayout], all: Sequence[SolidLayout]) -> DataFrame:
    """A table's good records and the transaction marks, with the index of their layout."""
    from pyspark.sql import functions as F

    rows = F.col("RECID").isin(*ROWS) & F.col("RELID").isin(*{x.relid for x in mine})
    wanted = rows | truncates(mine, all) | F.col("RECID").isin(START, COMMIT)
    return log.filter(F.col(WHY).isNull() & wanted).withColumn("_layout", layout_of(mine)).drop(RAW)


def truncates(mine: Sequence[SolidLayout], all: Sequence[SolidLayout]) -> Column:
    """Truncates of a table: by RELID, or by the name in DATA if no table has the RELID."""
    from pyspark.sql import functions as F

    names = {n for x in mine for n in x.names}
    taken = {n for x in all if x.table != mine[0].table for n in x.names}
    relid = F.coalesce(F.col("RELID"), F.lit(0))
    unknown = ~relid.isin(*{x.relid for x in all})
    by_name = unknown & truncated_name().isin(*(names - taken))
    return is_truncate() & (relid.isin(*{x.relid for x in mine}) | by_name)


def layout_of(mine: Sequence[SolidLayout], relid: str | None = "RELID") -> Column:
    """The index in `mine` of the layout valid for a row record; NULL if there is none."""
    from pyspark.sql import functions as F

    found = F.lit(None).cast("int")
    for place, x in sorted(enumerate(mine), key=lambda p: p[1].start):
        fits = F.lit(True) if relid is None else F.col(relid).isNull() | (F.col(relid) == x.relid)
        found = F.when(fits & (F.col("LOGADDR") >= F.lit(x.start)), place).otherwise(found)
    return F.when(F.col("RECID").isin(*ROWS), found)


def _headers(mine: Sequence[SolidLayout], columns: Sequence[str]) -> dict[str, Column]:
    """The canonical headers. What only solidDB has is kept in native headers, unless writing produces the
    same."""
    from pyspark.sql import functions as F

    made, kept = F.col(MADE), F.col("_kept")
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


def is_made() -> Column:
    """Whether a row record has a LOGADDR that was made from a change sequence."""
    from pyspark.sql import functions as F

    fits = [F.when((F.col(RANK) == r) & F.col("RECID").isin(*of), True) for r, of in _MADE_OF.items()]
    return F.coalesce(*fits, F.lit(False))
