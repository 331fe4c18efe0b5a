"""Columns of a target that its changes do not name: they stay where nothing says which columns there are."""

from __future__ import annotations

from dataclasses import replace

from ...engine.rules import Rules
from ...model import mask
from ...model.change import ChangeTable
from ...targets.base import Target
from ...targets.rule_columns import added_by
from ..target_mode import other_mode


def kept(
    target: Target, table: str, changes: ChangeTable, rules: Rules, *, absent: bool = True
) -> ChangeTable:
    """The changes with the other columns that the target of `table` has (but those of `rules`): absent from
    all images, or NULL in those that have all columns. A target that another mode has filled gives none: what
    it has more are that mode's columns, and `check_mode` refuses it by them."""
    from pyspark.sql import functions as F

    if not (changes.columns and target.exists(table)):
        return changes
    others = {n: kind for n, kind in target.columns(table).items() if n not in changes.columns}
    more = {n: kind for n, kind in others.items() if n not in added_by(rules)}
    if not more or other_mode(others, target.rule_columns(table), rules):
        return changes
    df = changes.df.withColumns({n: F.lit(None).cast(kind) for n, kind in more.items()})
    if absent:
        images = changes.header("column_mask")
        whole = F.lit(mask.encode(map(changes.ordinal, changes.columns)))
        some = F.when(F.col(changes.header("change_oper")) != "T", F.coalesce(F.col(images), whole))
        df = df.withColumn(images, some)
    return replace(changes, df=df, columns=[*changes.columns, *more])
