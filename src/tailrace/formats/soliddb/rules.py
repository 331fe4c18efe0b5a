"""What records of a log are: those of one table, and those that are no changes. Kept by Spark and in arrays.

Source: spec/soliddb.md §2-§5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE
from ...wire.soliddb_address import RANKS
from ..arrow_functions import AnyColumn, AnyRows, Functions
from ..base import RAW, WHY
from ..shape import also, any_of
from .log import (
    COMMIT,
    DDL,
    RANK,
    REC_BEFORE,
    REC_DELETE,
    REC_INSERT,
    REC_UPDATE,
    ROWS,
    START,
    checked,
    is_truncate,
    truncated_name,
)  # fmt: skip
from .order import MADE, marked
from .others import CHANGE
from .tables import SolidLayout

_MADE_OF = {
    RANKS[BEFORE]: (REC_BEFORE, REC_DELETE), RANKS[DELETE]: (REC_DELETE,), RANKS[INSERT]: (REC_INSERT,),
    RANKS[UPDATE]: (REC_UPDATE, REC_INSERT), RANKS[TRUNCATE]: (DDL,),
}  # fmt: skip


@dataclass(frozen=True)
class OfTable:
    """A table's good records and the transaction marks, with the index of their layout.

    Attributes:
        mine: the table's layouts.
        all: the layouts of every table.
        length: bytes of a LOGADDR.
    """

    mine: tuple[SolidLayout, ...]
    all: tuple[SolidLayout, ...]
    length: int

    def __call__(self, f: Functions, log: AnyRows) -> AnyRows:
        """Those of a log (`WHY` says what is wrong with them so far)."""
        recid = f.col("RECID")
        rows = recid.isin(*ROWS) & f.col("RELID").isin(*{x.relid for x in self.mine})
        emptied = is_truncate(f) & _empties(f, self.mine, self.all)
        good = checked(f, log.filter(rows | emptied | recid.isin(START, COMMIT)), self.length)
        good = good.filter(f.col(WHY).isNull()).drop(RAW)
        return marked(f, good.withColumns({"_layout": _layout_of(f, self.mine), MADE: _is_made(f)}))


@dataclass(frozen=True)
class OfLog:
    """All records with `CHANGE`: whether they are changes of one of the tables.

    Attributes:
        all: the layouts of every table.
        some: whether only some tables are wanted: records of others are not bad then.
        length: bytes of a LOGADDR.
    """

    all: tuple[SolidLayout, ...]
    some: bool
    length: int

    def __call__(self, f: Functions, log: AnyRows) -> AnyRows:
        """Those of a log (`WHY` says what is wrong with them so far)."""
        log = checked(f, log, self.length)
        rows = f.col("RECID").isin(*ROWS)
        known = f.coalesce(f.col("RELID").isin(*{x.relid for x in self.all}), f.lit(False))
        if not self.some:
            relid = f.coalesce(f.col("RELID").cast("string"), f.lit("NULL"))
            said = f.concat(f.lit("RELID "), relid, f.lit(" is in no SYS_TABLES with SYS_COLUMNS"))
            log = also(log, (rows & ~known, said), f=f)
        emptied = is_truncate(f) & any_of((_empties(f, [x], self.all) for x in self.all), f)
        good = f.col(WHY).isNull()
        made = {
            CHANGE: f.coalesce(good & ((rows & known) | emptied), f.lit(False)),
            MADE: _is_made(f) & good,
        }
        return marked(f, log.withColumns(made).drop(RANK))


def _empties(f: Functions, mine: Sequence[SolidLayout], all: Sequence[SolidLayout]) -> AnyColumn:
    """Whether a truncate is that of a table: by RELID, or by the name in DATA if no table has the RELID."""
    names = {n for x in mine for n in x.names}
    taken = {n for x in all if x.table != mine[0].table for n in x.names}
    relid = f.coalesce(f.col("RELID"), f.lit(0))
    by_name = ~relid.isin(*{x.relid for x in all}) & truncated_name(f).isin(*(names - taken))
    return relid.isin(*{x.relid for x in mine}) | by_name


def _layout_of(f: Functions, mine: Sequence[SolidLayout]) -> AnyColumn:
    """The index in `mine` of the layout valid for a row record; NULL if there is none."""
    found = f.lit(None).cast("int")
    for place, x in sorted(enumerate(mine), key=lambda p: p[1].start):
        fits = f.col("RELID").isNull() | (f.col("RELID") == x.relid)
        found = f.when(fits & (f.col("LOGADDR") >= f.lit(x.start)), place).otherwise(found)
    return f.when(f.col("RECID").isin(*ROWS), found)


def _is_made(f: Functions) -> AnyColumn:
    """Whether a row record has a LOGADDR that was made from a change sequence."""
    fits = [f.when((f.col(RANK) == r) & f.col("RECID").isin(*of), True) for r, of in _MADE_OF.items()]
    return f.coalesce(*fits, f.lit(False))
