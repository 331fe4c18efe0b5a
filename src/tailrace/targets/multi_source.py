"""Shared targets, which several sources write to: changes of one source do not affect the rows of others."""

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
    """Location of a source table's rows.

    Attributes:
        target: the name of the target.
        partition: key column -> constant, which together identify this source's rows in a shared target;
            empty if the target is not shared.
    """

    target: str
    partition: Mapping[str, str] = field(default_factory=dict)

    def app(self, table: str, app: str) -> str:
        """Returns the application id of the source table's progress in the commits of a Delta table; in a
        shared target each source has its own.

        >>> TargetLocation("s.all", {"site": "a"}).app("s.t", "tailrace/shop")
        'tailrace/shop/s.t'
        """
        return f"{app}/{table}" if self.partition else app


def rows_in_partition(df: DataFrame, partition: Mapping[str, str]) -> DataFrame:
    """Returns the rows with these constants in the key: those of one source."""
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
    """Raises BaselineNeededError if a shared target has other columns (name -> Spark SQL type) than a source
    has; `rule_columns`: columns that rules may have added."""
    columns = {n: kind for n, kind in have.items() if n in want or n not in rule_columns}
    if columns != dict(want):
        raise BaselineNeededError(
            f"{target} has the columns {columns}, but {table} needs the columns {dict(want)}",
            where=table,
            hint="all sources of a target need the same columns: correct `tables`, or remove the target "
            "and resync all of its sources",
        )


def refuse_column_loss(before: Relation, after: Relation, target: str) -> None:
    """Raises ApplyError if a new layout removes or replaces columns of a shared target. Columns may be added
    and become wider."""
    new = {c.attnum: c for c in after.columns}
    if lost := [c.name for c in before.columns if not _stays(c, new.get(c.attnum))]:
        raise ApplyError(
            f"{', '.join(lost)} would be removed from {target} or replaced; other sources may write to it",
            where=after.table,
            hint="keep its columns in the mapping (`tables`) as its other sources have them",
        )


def with_target_types(layout: Relation, have: Mapping[str, str]) -> Relation:
    """Returns a source's layout in the types of the target's columns (name -> Spark SQL type), which another
    source may have made wider.

    >>> n = Column("n", 1, "int4", "int4", "int")
    >>> with_target_types(Relation(1, "eu", "item", "d", (n,)), {"n": "bigint"}).columns[0].type
    'bigint'
    """
    return layout.with_columns([replace(c, type=have.get(c.name, c.type)) for c in layout.columns])


def shared_layouts(
    before: Relation, after: Relation, have: Mapping[str, str], ruled: Collection[str] = ()
) -> tuple[Relation, Relation]:
    """Returns an old and a new layout of a source, extended by the changes of other sources of the target:
    further columns, new columns that another source has added already, and wider types.

    Args:
        before: the old layout.
        after: the new layout.
        have: the target's columns (name -> Spark SQL type).
        ruled: the columns that rules have added.

    >>> n = Column("n", 1, "int4", "int4", "int")
    >>> one = Relation(1, "eu", "item", "d", (n,))
    >>> for layout in shared_layouts(one, one, {"n": "bigint", "gone": "string"}, ["gone"]):
    ...     print([(c.name, c.type, c.kind) for c in layout.columns])
    [('n', 'bigint', 'int4'), ('gone', 'string', 'rule')]
    [('n', 'bigint', 'int4'), ('gone', 'string', 'rule')]
    >>> two = one.with_columns([n, Column("v", 2, "bigint", "int8", "bigint")])
    >>> for layout in shared_layouts(one, two, {"n": "int", "v": "int"}):
    ...     print([(c.name, c.attnum, c.type) for c in layout.columns])
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
    added = [c for c in after.columns if c.attnum not in known and c.name in have]
    old = with_target_types(before.with_columns([*before.columns, *added]), have)
    new = with_target_types(after, wider)
    return old.with_columns([*old.columns, *more]), new.with_columns([*new.columns, *more])


def _stays(old: Column, new: Column | None) -> bool:
    if new is None or new.name != old.name:
        return False
    was, now = arrow_type(old.type), arrow_type(new.type)
    return was == now or widens(was, now)
