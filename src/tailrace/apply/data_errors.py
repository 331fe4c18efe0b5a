"""Changes whose values a target cannot hold: found before anything is written, set aside one by one.

A change is judged by its own image: NULL in the key or in a column that is NOT NULL in the target, a value
that becomes none in the type of the target's column, a row that a CHECK refuses. Of an image that lacks
columns a CHECK says nothing: then the target decides when it is written, for the batch as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, cast

from ..change import BEFORE, INSERT, UPDATE, ChangeTable, Column, Relation
from ..mask import is_set
from .fold import OPER, SEQ, col
from .outcomes import SITUATION, WHY, small
from .plan import TableBatch

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Demands:
    """What a target asks of its rows: columns that may not be NULL, and CHECKs, name -> condition (SQL).
    `tested`: it may refuse rows, and says which when it is asked."""

    not_null: frozenset[str] = frozenset()
    checks: Mapping[str, str] = field(default_factory=dict)
    tested: bool = False

    def __bool__(self) -> bool:
        return bool(self.not_null or self.checks or self.tested)


WHY_COLUMN = Column(WHY, -1, "text", "text", "string")


class Testing(Protocol):
    """A target that says itself which rows it refuses."""

    def refused(self, batch: TableBatch) -> DataFrame | None:
        """Keys whose rows it refuses, as they are after the batch, and `WHY`; None: none."""


@dataclass(frozen=True)
class Bad:
    """Changes that the target cannot hold: `SEQ`, `OPER`, `SITUATION`, `WHY` (strings), and how many."""

    df: DataFrame
    many: int


def look(changes: ChangeTable, relation: Relation, demands: Demands) -> Bad | None:
    """Looks for them in one pass; None when there are none.

    `relation`: the layout, in the target's types.
    """
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    have = set(changes.df.columns)
    found = [_null_key(c, have) for c in relation.key]
    for c in relation.columns:
        if c.name in have:
            kind = changes.df.schema[c.name].dataType.simpleString()
            if kind != c.type:
                lost = _lost(col(c.name), kind, c.type)
                written = F.lit(True) if c.key else oper.isin(INSERT, UPDATE)
                found.append(F.when(written & lost, F.lit(f"{c.name} is no {c.type}")))
        if c.name in demands.not_null and not c.key:
            null = (col(c.name).isNull() if c.name in have else F.lit(True)) & _judged(changes, c.name, oper)
            found.append(F.when(null, F.lit(f"NULL in {c.name}")))
    whole = oper.isin(INSERT, UPDATE) & _whole(changes)
    for name, condition in demands.checks.items():
        found.append(F.when(whole & ~F.expr(condition), F.lit(f"CHECK {name} refuses it")))
    why = F.coalesce(*found)
    # A B row with a NULL in its key is its update's error.
    letter = F.when(oper == BEFORE, UPDATE).otherwise(oper)
    rows = changes.df.where(oper != "T").select(seq.alias(SEQ), letter.alias(OPER), why.alias(WHY))
    bad = rows.where(col(WHY).isNotNull()).groupBy(SEQ, OPER).agg(F.min(WHY).alias(WHY))
    kept = bad.withColumn(SITUATION, F.concat(col(OPER), F.lit("!"))).localCheckpoint(eager=True)
    many = kept.count()
    return Bad(kept, many) if many else None


def judged(
    target: object, batch: TableBatch, relation: Relation, demands: Demands, bad: Bad | None
) -> Bad | None:
    """`bad`, and what the target says itself: all changes of a key whose row it refuses.

    `batch`: in the layout of the target; `relation`: that of the changes.
    """
    from pyspark.sql import functions as F

    if not demands.tested or not batch.relation.key:
        return bad
    asked = replace(batch, changes=without(batch.changes, bad))
    refused = cast(Testing, target).refused(asked)
    if refused is None:
        return bad
    seq, oper = (col(batch.changes.header(n)) for n in ("change_seq", "change_oper"))
    keys = [col(k).cast(relation.column(k).type).alias(k) for k in relation.key]
    rows = asked.changes.df.where(oper.isin("I", "U", "D"))
    rows = rows.select(seq.alias(SEQ), oper.alias(OPER), *keys)
    mine = rows.join(F.broadcast(refused), relation.key)
    mine = mine.select(SEQ, OPER, WHY, F.concat(col(OPER), F.lit("!")).alias(SITUATION))
    kept = mine.localCheckpoint(eager=True)
    if bad is not None:
        kept = kept.unionByName(bad.df)
    many = kept.count()
    return Bad(kept, many) if many else None


def why(bad: Bad | None, seq: str) -> str | None:
    """What is wrong with the change of a sequence; None: nothing."""
    row = None if bad is None else bad.df.where(col(SEQ) == seq).select(WHY).first()
    return None if row is None else str(row[0])


def without(changes: ChangeTable, bad: Bad | None) -> ChangeTable:
    """The other changes."""
    if bad is None:
        return changes
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    same = (oper == col(OPER)) | ((oper == BEFORE) & (col(OPER) == UPDATE))
    left = changes.df.join(small(bad.df.select(SEQ, OPER), bad.many), (seq == col(SEQ)) & same, "left_anti")
    # Kept: a filter on the key, which fails where it is NULL, would be done before the bad ones are out.
    return changes.with_df(left.localCheckpoint(eager=False))


def _lost(value: SparkColumn, kind: str, wanted: str) -> SparkColumn:
    """Whether a value becomes none, or another one, in a type; of text only whether it is of that type."""
    made = value.try_cast(wanted)
    none = value.isNotNull() & made.isNull()
    return none if kind == "string" else none | (made.try_cast(kind) != value)


def _null_key(name: str, have: set[str]) -> SparkColumn:
    from pyspark.sql import functions as F

    null = col(name).isNull() if name in have else F.lit(True)
    return F.when(null, F.lit(f"NULL in {name}, which is in the key"))


def _judged(changes: ChangeTable, name: str, oper: SparkColumn) -> SparkColumn:
    """Whether a change sets a column: an insert does, with NULL when it lacks it."""
    mask = changes.header("column_mask")
    if mask not in changes.df.columns:
        return oper.isin(INSERT, UPDATE)
    there = col(mask).isNull() | is_set(col(mask), changes.ordinal(name))
    return (oper == INSERT) | ((oper == UPDATE) & there)


def _whole(changes: ChangeTable) -> SparkColumn:
    from pyspark.sql import functions as F

    mask = changes.header("column_mask")
    return col(mask).isNull() if mask in changes.df.columns else F.lit(True)
