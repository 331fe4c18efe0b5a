"""Columns of vendors' changes as their target has them: with its spelling, and with columns that stay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ...engine.rules import Rules
from ...model import mask
from ...model.change import ChangeTable
from ...targets.base import Target
from ...targets.rule_columns import added_by
from ..target_mode import other_mode


def with_target_spelling(target: Target, table: str, changes: ChangeTable) -> ChangeTable:
    """The changes, with columns spelled as in the target: letter case does not distinguish columns."""
    names = spellings(changes.columns, target.columns(table)) if target.exists(table) else {}
    if not names:
        return changes
    columns, key = ([names.get(c, c) for c in some] for some in (changes.columns, changes.key))
    return replace(changes, df=changes.df.withColumnsRenamed(names), columns=columns, key=key)


def spellings(columns: Sequence[str], existing: Collection[str]) -> dict[str, str]:
    """The existing spelling of each column that exists in another letter case, unless several columns match.

    >>> spellings(["ID", "Note", "v"], ["id", "Note", "V", "v"])
    {'ID': 'id'}
    >>> spellings(["note"], ["Note", "NOTE"])
    {}
    """
    known: dict[str, list[str]] = {}
    for name in existing:
        known.setdefault(name.lower(), []).append(name)
    new = ((c, known.get(c.lower(), [])) for c in columns if c not in existing)
    return {c: names[0] for c, names in new if len(names) == 1 and names[0] not in columns}


def with_target_columns(
    target: Target, table: str, changes: ChangeTable, rules: Rules, *, absent: bool = True
) -> ChangeTable:
    """The changes with the other columns of the target, which stay if nothing declares which columns exist.

    Columns that `rules` add are left out. A target that was filled in another mode adds none: its additional
    columns belong to that mode, and `check_mode` refuses it.

    Args:
        target: the target.
        table: its table.
        changes: the changes.
        rules: the rules of the call.
        absent: whether no image has the other columns; otherwise they are NULL in whole images.
    """
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
