"""One table's records of SYS_LOG -> its canonical change table. Source: spec/soliddb.md §2-§5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model import mask
from ...model.change import BEFORE, DELETE, HEADERS, INSERT, NATIVE, OPERATIONS, TRUNCATE, UPDATE, ChangeTable
from ...wire.soliddb_address import RANKS
from ..base import RAW, WHY
from ..shape import also, canonical, data_start
from .codec import Decoding
from .log import (
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
    START,
    in_transactions,
    is_skipped,
    is_truncate,
    recname,
    truncate_body,
    truncated_name,
)  # fmt: skip
from .options import SolidOptions
from .tables import SolidLayout, union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEPT = ("LOGADDR", "RECID", "RECNAME", "RELID", "FLAGS", "TEXTDATA", "DATA")
"""SYS_LOG columns that travel as headers of their own where writing would not make the same."""
NAMES = ["statement_id", *(NATIVE + c for c in KEPT)]
_RANK_OPERS = {RANKS[o]: o for o in (BEFORE, DELETE, INSERT, UPDATE, TRUNCATE)}
_MADE_OF = {
    RANKS[BEFORE]: (REC_BEFORE, REC_DELETE), RANKS[DELETE]: (REC_DELETE,), RANKS[INSERT]: (REC_INSERT,),
    RANKS[UPDATE]: (REC_UPDATE, REC_INSERT), RANKS[TRUNCATE]: (DDL,),
}  # fmt: skip


def table_changes(
    log: DataFrame, name: str, mine: Sequence[SolidLayout], all: Sequence[SolidLayout], options: SolidOptions
) -> ChangeTable:
    """The change table of the layouts `mine`, of checked records; `all` are the layouts of every table."""
    from pyspark.sql import functions as F

    columns = union(mine)
    key = [f"_c{i}" for i, (c, _) in enumerate(columns) if c in mine[-1].key]
    decoding = Decoding(tuple(x.fields for x in mine), tuple(columns), options.style())
    log = _records(log, mine, all)
    log = in_transactions(log.mapInArrow(decoding, decoding.schema(log)))
    log = log.withColumn("_skipped", is_skipped(options.capture_off)).filter(~F.col("_skipped"))
    log = log.filter(~F.col("RECID").isin(START, COMMIT) & (F.col("_committed") | ~F.col("_newest")))
    log = paired(
        also(log, (F.col("_bad").isNotNull(), F.col("_bad")), (~F.col("_committed"), _NO_COMMIT)), key
    )
    exact = F.when(F.col("RECID") == DDL, F.col("DATA") == truncate_body(name)).otherwise(F.col("_exact"))
    usual = (
        (F.col("FLAGS") == DATA) & (F.col("RECNAME") == recname(F.col("RECID"))) & F.col("TEXTDATA").isNull()
    )
    log = log.withColumns(
        {
            "_exact": F.coalesce(exact, F.lit(False)),
            "_kept": F.coalesce(F.col("_made") & exact & usual, F.lit(False)),
            RAW: F.to_json(F.struct(*COLUMNS)),
        }
    )
    values = {c: F.col(f"_c{i}") for i, (c, _) in enumerate(columns)}
    return canonical(log, _headers(mine, [c for c, _ in columns]), values, key=mine[-1].key, name=name)


_NO_COMMIT = "its transaction has no COMMIT, though its TRXID begins again"


def _records(log: DataFrame, mine: Sequence[SolidLayout], all: Sequence[SolidLayout]) -> DataFrame:
    """A table's good records and the marks of transactions, with the place of their layout."""
    from pyspark.sql import functions as F

    rows = F.col("RECID").isin(*ROWS) & F.col("RELID").isin(*{x.relid for x in mine})
    wanted = rows | truncates(mine, all) | F.col("RECID").isin(START, COMMIT)
    return log.filter(F.col(WHY).isNull() & wanted).withColumn("_layout", layout_of(mine)).drop(RAW)


def truncates(mine: Sequence[SolidLayout], all: Sequence[SolidLayout]) -> Column:
    """Truncates of a table: by RELID, or by the name in DATA when no table has the RELID."""
    from pyspark.sql import functions as F

    names = {n for x in mine for n in x.names}
    taken = {n for x in all if x.table != mine[0].table for n in x.names}
    relid = F.coalesce(F.col("RELID"), F.lit(0))
    unknown = ~relid.isin(*{x.relid for x in all})
    by_name = unknown & truncated_name().isin(*(names - taken))
    return is_truncate() & (relid.isin(*{x.relid for x in mine}) | by_name)


def layout_of(mine: Sequence[SolidLayout], relid: str | None = "RELID") -> Column:
    """The place in `mine` of the layout in force for a record of rows; NULL when there is none."""
    from pyspark.sql import functions as F

    found = F.lit(None).cast("int")
    for place, x in sorted(enumerate(mine), key=lambda p: p[1].start):
        fits = F.lit(True) if relid is None else F.col(relid).isNull() | (F.col(relid) == x.relid)
        found = F.when(fits & (F.col("LOGADDR") >= F.lit(x.start)), place).otherwise(found)
    return F.when(F.col("RECID").isin(*ROWS), found)


def paired(log: DataFrame, key: Sequence[str]) -> DataFrame:
    """Records with their operation (`_oper`), whether their LOGADDR was made here (`_made`), and `SEQ` as it
    is for the change: B takes that of its U.

    Neighbours among the records of one statement and table: 5 with the 3 behind it is an update; inserts and
    deletes that strictly alternate, with different keys, are key changes (delete and insert in either order).
    """
    from pyspark.sql import functions as F

    log = _with_neighbours(log, key)
    recid, seq = F.col("RECID"), F.col(SEQ)
    other = F.when(F.col("_place") % 2 == 1, F.col("_next")).otherwise(F.col("_last"))
    moved = F.lit(False)
    if key:
        clean = F.col(WHY).isNull() & ~other["bad"]
        differ = ~other["key"].eqNullSafe(F.col("_self.key"))
        moved = F.coalesce(F.col("_strict") & clean & differ, F.lit(False))
    update = (recid == REC_BEFORE) & (F.col("_next.RECID") == REC_UPDATE)
    if key:  # updates never change it
        same = F.col("_next.key").eqNullSafe(F.col("_self.key")) | F.col("_made") | F.col("_next.bad")
        log = also(
            log, (update & ~same & F.col(WHY).isNull(), "before image of another row than the update's")
        )
        update &= same
    by_rank, by_recid = (
        F.create_map(*[F.lit(x) for p in m.items() for x in p]) for m in (_RANK_OPERS, OPERS)
    )
    oper = (
        F.when(F.col("_made"), F.element_at(by_rank, F.col(RANK)))
        .when(moved, F.when(recid == REC_DELETE, BEFORE).otherwise(UPDATE))
        .otherwise(F.element_at(by_recid, recid))
    )
    of_pair = F.when(moved, F.greatest(seq, other[SEQ])).when(update, F.col("_next")[SEQ]).otherwise(seq)
    made = {"_oper": oper, SEQ: F.when(F.col("_made"), seq).otherwise(of_pair)}
    return log.withColumns(made).drop("_self", "_next", "_last", "_place", "_strict")


def _with_neighbours(log: DataFrame, key: Sequence[str]) -> DataFrame:
    """Records with those before and behind them in their statement (inserts and deletes see only each other),
    their place there, and whether inserts and deletes strictly alternate and are even in number."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    recid = F.col("RECID")
    log = log.withColumns({"_made": is_made(), "_moves": recid.isin(REC_INSERT, REC_DELETE)})
    same = ("TRXID", "_good", "_part", "STMTTRXID", "RELID", "_made", "_moves")
    order, whole = Window.partitionBy(*same).orderBy("LOGADDR"), Window.partitionBy(*same)
    keys = F.struct(*key) if key else F.lit(0)
    log = log.withColumn(
        "_self", F.struct("RECID", SEQ, F.col(WHY).isNotNull().alias("bad"), keys.alias("key"))
    )
    around = {"_next": F.lead("_self"), "_last": F.lag("_self"), "_place": F.row_number()}
    log = log.withColumns({n: c.over(order) for n, c in around.items()})
    repeats = F.coalesce(F.max(F.col("_last.RECID") == recid).over(whole), F.lit(False))
    strict = ~repeats & (F.count(F.lit(1)).over(whole) % 2 == 0) & F.col("STMTTRXID").isNotNull()
    return log.withColumn("_strict", strict & F.col("_moves") & ~F.col("_made"))


def _headers(mine: Sequence[SolidLayout], columns: Sequence[str]) -> dict[str, Column]:
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
    headers[NATIVE + "DATA"] = F.when(~F.col("_exact"), F.col("DATA"))
    return headers


def is_made() -> Column:
    """Whether a record of rows has a LOGADDR that was made from a change sequence."""
    from pyspark.sql import functions as F

    fits = [F.when((F.col(RANK) == r) & F.col("RECID").isin(*of), True) for r, of in _MADE_OF.items()]
    return F.coalesce(*fits, F.lit(False))
