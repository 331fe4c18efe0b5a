"""Computes a target's rows with changes applied on top, in Spark, without writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine.columns import KEPT, OP
from ..model.change import DELETE, ChangeTable, Relation
from ..model.positions import ChangeRange
from ..targets.change_batch import ChangeBatch
from ..targets.images import col, last_truncate
from ..targets.plans import UNKNOWN, FoldedChanges
from ..targets.spark_fold import copies, fold, repeated

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_THERE = "header__there"


def state_at(
    target: DataFrame, changes: ChangeTable, relation: Relation, counts: Mapping[str, int] = UNKNOWN
) -> DataFrame:
    """Returns the rows of a table after the given changes.

    Args:
        target: the table's rows before the changes, e.g. an older version of a Delta target. Columns that
            only the relation has are NULL; columns that only the target has are left out.
        changes: the changes since, in any order, all of one layout.
        relation: that layout.
        counts: which special cases occur, as in `ChangeBatch.counts`; unknown by default.

    Returns:
        The relation's columns in their types: exactly the rows that applying the changes would produce.
            Covers key changes, absent columns, truncates and keyless tables. The Spark job fails if a row key
            is NULL.
    """
    base = target.select(*[_typed(target, c.name, c.type) for c in relation.columns])
    batch = ChangeBatch(relation.table, relation, ChangeRange(None, 0), counts=counts)
    names = [c.name for c in relation.columns]
    folded = fold(changes, batch, truncate=last_truncate(changes, counts), read_rows=lambda _: base)
    if not relation.key:
        return repeated(copies(base, folded, names), names)
    return _overlaid(base.limit(0) if folded.replaces else base, folded, relation.key, names)


def _typed(df: DataFrame, name: str, kind: str) -> Column:
    from pyspark.sql import functions as F

    return (col(name) if name in df.columns else F.lit(None)).cast(kind).alias(name)


def _overlaid(target: DataFrame, folded: FoldedChanges, key: list[str], columns: list[str]) -> DataFrame:
    """Returns the target's rows with the folded changes on top, by one hash join on the key."""
    from pyspark.sql import functions as F

    there = target.select(*map(col, columns), F.lit(True).alias(_THERE))
    same = F.lit(True)
    for k in key:
        same &= col(k, "t") == col(k, "s")
    # The changes are the small side, and the result needs no order.
    both = there.alias("t").join(folded.df.alias("s").hint("shuffle_hash"), same, "full_outer")
    untouched, met = col(OP, "s").isNull(), col(_THERE, "t").isNotNull()
    made = []
    for i, name in enumerate(columns):
        stays = untouched
        if folded.partial and name not in key:
            stays = stays | (met & F.coalesce(F.substring(col(KEPT, "s"), i + 1, 1) == "1", F.lit(False)))
        made.append(F.when(stays, col(name, "t")).otherwise(col(name, "s")).alias(name))
    return both.where(untouched | (col(OP, "s") != DELETE)).select(*made)
