"""The state of a table: a target's rows with changes applied on top, without writing anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..apply.fold import copies, fold, repeated
from ..apply.images import col, last_truncate
from ..apply.plan import UNKNOWN, Folded, TableBatch
from ..engine.columns import KEPT, OP
from ..model.change import DELETE, ChangeTable, Relation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_THERE = "header__there"


def state_at(
    target: DataFrame, changes: ChangeTable, relation: Relation, counts: Mapping[str, int] = UNKNOWN
) -> DataFrame:
    """The rows that a table had after these changes.

    Args:
        target: the table's rows before them, e.g. an older version of a Delta target. Columns that the
            relation has and the target lacks are NULL; others are left out.
        changes: the changes since, in any order, all of one layout.
        relation: that layout.
        counts: which special cases occur, as in `TableBatch.counts`; unknown when not given.

    Returns:
        The relation's columns in their types. Exactly what applying the changes to the target would give:
        key changes, absent columns, truncates, bags of rows for tables without key. The job that reads it
        fails when a row key is NULL.
    """
    base = target.select(*[_typed(target, c.name, c.type) for c in relation.columns])
    batch, names = (
        TableBatch(relation.table, relation, changes, 0, counts),
        [c.name for c in relation.columns],
    )
    folded = fold(batch, truncate=last_truncate(changes, counts), there=lambda _: base)
    if not relation.key:
        return repeated(copies(base, folded, names), names)
    return _overlaid(base.limit(0) if folded.replaces else base, folded, relation.key, names)


def _typed(df: DataFrame, name: str, kind: str) -> Column:
    from pyspark.sql import functions as F

    return (col(name) if name in df.columns else F.lit(None)).cast(kind).alias(name)


def _overlaid(target: DataFrame, folded: Folded, key: list[str], columns: list[str]) -> DataFrame:
    """The target's rows with what is left of the changes on top; one join, hashed by key."""
    from pyspark.sql import functions as F

    there = target.select(*map(col, columns), F.lit(True).alias(_THERE))
    same = F.lit(True)
    for k in key:
        same &= col(k, "t") == col(k, "s")
    # The changes are the small side, and order is of no use afterwards.
    both = there.alias("t").join(folded.df.alias("s").hint("shuffle_hash"), same, "full_outer")
    untouched, met = col(OP, "s").isNull(), col(_THERE, "t").isNotNull()
    made = []
    for i, name in enumerate(columns):
        stays = untouched
        if folded.partial and name not in key:
            stays = stays | (met & F.coalesce(F.substring(col(KEPT, "s"), i + 1, 1) == "1", F.lit(False)))
        made.append(F.when(stays, col(name, "t")).otherwise(col(name, "s")).alias(name))
    return both.where(untouched | (col(OP, "s") != DELETE)).select(*made)
