"""Targets that several sources feed: what concerns one source leaves the others' rows alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import ApplyError, BaselineNeededError
from ..model.change import Column, Relation
from ..model.types import arrow_type
from ..store.tables import widens
from .images import col
from .rule_columns import RULE, rule_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class TargetLocation:
    """Where a source table's rows are: the target's name and, when others may feed it too, the columns of its
    key that tell this one's rows, and their texts."""

    target: str
    partition: Mapping[str, str] = field(default_factory=dict)

    def app(self, table: str, app: str) -> str:
        """Under which name the progress of the source table stands in the commits of a Delta table: each of
        several sources has its own.

        >>> TargetPlace("s.all", {"site": "a"}).app("s.t", "tailrace/shop")
        'tailrace/shop/s.t'
        """
        return f"{app}/{table}" if self.partition else app


def rows_in_partition(df: DataFrame, partition: Mapping[str, str]) -> DataFrame:
    """The rows that come from the source with these constants in the key."""
    for name, value in partition.items():
        df = df.where(col(name) == value)
    return df


def refuse_columns(
    table: str,
    target: str,
    have: Mapping[str, str],
    want: Mapping[str, str],
    rule_columns: Collection[str] = (),
) -> None:
    """Raises BaselineNeededError when a target that others may feed has other columns (name -> Spark SQL
    type) than a source makes of it; `rule_columns`: columns that rules add, which it may have."""
    there = {n: kind for n, kind in have.items() if n in want or n not in rule_columns}
    if there != dict(want):
        raise BaselineNeededError(
            f"{target} has the columns {there}, and {table} makes {dict(want)} of it",
            where=table,
            hint="sources of one target make the same columns: correct `tables`, or remove the target "
            "and resync all of its sources",
        )


def refuse_column_loss(before: Relation, after: Relation, target: str) -> None:
    """Raises ApplyError when a new layout takes columns of a target that others may feed: columns may come
    (those of rules do) and become wider, and none may go, or become another."""
    new = {c.attnum: c for c in after.columns}
    if gone := [c.name for c in before.columns if not _stays(c, new.get(c.attnum))]:
        raise ApplyError(
            f"{', '.join(gone)} would go from {target}, or become another column; others may feed it, too",
            where=after.table,
            hint="keep its columns in the mapping (`tables`) as its other sources make them",
        )


def with_target_types(mine: Relation, have: Mapping[str, str]) -> Relation:
    """A source's layout in the types that the columns of its target have (name -> Spark SQL type): another
    source may have made some wider.

    >>> n = Column("n", 1, "int4", "int4", "int")
    >>> as_there(Relation(1, "eu", "item", "d", (n,)), {"n": "bigint"}).columns[0].type
    'bigint'
    """
    return mine.with_columns([replace(c, type=have.get(c.name, c.type)) for c in mine.columns])


def shared_layouts(
    before: Relation, after: Relation, have: Mapping[str, str], ruled: Collection[str] = ()
) -> tuple[Relation, Relation]:
    """Two layouts of a source in a target of several, with what the others have made of it: columns that
    neither has, those that they have brought before this one, and wider types. `have`: its columns (name ->
    Spark SQL type); `ruled`: those of rules.

    >>> n = Column("n", 1, "int4", "int4", "int")
    >>> one = Relation(1, "eu", "item", "d", (n,))
    >>> for made in beside_others(one, one, {"n": "bigint", "gone": "string"}, ["gone"]):
    ...     print([(c.name, c.type, c.kind) for c in made.columns])
    [('n', 'bigint', 'int4'), ('gone', 'string', 'rule')]
    [('n', 'bigint', 'int4'), ('gone', 'string', 'rule')]
    >>> two = one.with_columns([n, Column("v", 2, "bigint", "int8", "bigint")])
    >>> for made in beside_others(one, two, {"n": "int", "v": "int"}):
    ...     print([(c.name, c.attnum, c.type) for c in made.columns])
    [('n', 1, 'int'), ('v', 2, 'int')]
    [('n', 1, 'int'), ('v', 2, 'bigint')]
    """
    names = {c.name for c in (*before.columns, *after.columns)}
    more = [
        replace(rule_column(name, kind), kind=RULE if name in ruled else kind)
        for name, kind in have.items()
        if name not in names
    ]
    wider = {
        c.name: have[c.name]
        for c in after.columns
        if c.name in have and widens(arrow_type(c.type), arrow_type(have[c.name]))
    }
    known = {c.attnum for c in before.columns}
    brought = [c for c in after.columns if c.attnum not in known and c.name in have]
    old = with_target_types(before.with_columns([*before.columns, *brought]), have)
    new = with_target_types(after, wider)
    return old.with_columns([*old.columns, *more]), new.with_columns([*new.columns, *more])


def _stays(old: Column, new: Column | None) -> bool:
    if new is None or new.name != old.name:
        return False
    was, now = arrow_type(old.type), arrow_type(new.type)
    return was == now or widens(was, now)
