"""The state of a table: a target's rows with changes applied on top, without writing anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..apply import bag
from ..apply.fold import col as column
from ..apply.fold import fold, images
from ..apply.plan import UNKNOWN
from ..engine.columns import KEPT, OP
from ..model.change import ChangeTable, Relation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
    from pyspark.sql import functions as F

    base = target.select(*[_typed(target, c.name, c.type) for c in relation.columns])
    made = images(changes, relation, counts)
    if not relation.key:
        return bag.rows(None if made.replaces else base, made)
    folded = fold(made, counts, base)
    live = folded.df.where(column(OP) != "D")
    names = [c.name for c in relation.columns]
    if folded.replaces:
        return live.select(*map(column, names))
    same = F.lit(True)
    for k in relation.key:
        same &= column(k, "t") == column(k, "s")
    untouched = base.alias("t").join(folded.df.alias("s"), same, "left_anti")
    if not folded.partial:
        return untouched.unionByName(live.select(*map(column, names)))
    both = live.alias("s").join(base.alias("t"), same, "left")
    kept = [F.substring(column(KEPT, "s"), i + 1, 1) == "1" for i in range(len(names))]
    filled = [
        F.when(keep, column(n, "t")).otherwise(column(n, "s")).alias(n)
        for keep, n in zip(kept, names, strict=True)
    ]
    return untouched.unionByName(both.select(*filled))


def _typed(df: DataFrame, name: str, kind: str) -> Column:
    from pyspark.sql import functions as F

    return (column(name) if name in df.columns else F.lit(None)).cast(kind).alias(name)
