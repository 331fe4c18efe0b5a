"""Changes whose values a target cannot hold.

Spark's SQL judges a change by its own image: NULL in the key or in a column that is NOT NULL in the target, a
value that becomes none in the type of the target's column, a row that a CHECK refuses. An image that lacks
columns is not held against CHECKs: the target refuses its batch then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..engine.columns import WHY
from ..engine.null_keys import null_in_key
from ..engine.rules import Rules
from ..model.change import BEFORE, DELETE, INSERT, UPDATE, ChangeTable, Relation
from ..model.mask import is_set
from ..model.types import arrow_type
from ..store.tables import widens
from ..targets.base import Constraints
from ..targets.images import col

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn


def judged(changes: ChangeTable, relation: Relation, rules: Rules, constraints: Constraints) -> ChangeTable:
    """The changes, with a column `WHY` if the target may not hold some: what is wrong with each (string;
    NULL: nothing). That a key is NULL is found when they are decided.

    `relation`: the target's layout and types, with the changes' key.
    """
    from pyspark.sql import functions as F

    if not (constraints or retyped(changes, relation)):
        return changes
    have = changes.df.columns  # CHECKs may name columns that the changes lack
    lacking = {c.name: F.lit(None).cast(c.type) for c in relation.columns if c.name not in have}
    wide = changes.with_df(changes.df.withColumns(lacking))
    why = reason(wide, relation, constraints, archives=rules.mode == "archive")
    if rules.mode == "archive":  # old images are not written
        why = F.when(col(changes.header("change_oper")) != BEFORE, why)
    return changes.with_df(wide.df.withColumn(WHY, why).select(*map(col, have), WHY))


def held_in(relation: Relation, there: Mapping[str, str]) -> Relation:
    """A layout in a target's types (name -> Spark SQL type), but where the target can follow."""
    columns = []
    for c in relation.columns:
        kind = there.get(c.name, c.type)
        follows = kind == c.type or widens(arrow_type(kind), arrow_type(c.type))
        columns.append(c if follows else replace(c, type=kind))
    return relation.with_columns(columns)


def reason(
    changes: ChangeTable, relation: Relation, constraints: Constraints, *, archives: bool = False
) -> SparkColumn:
    """Why the target cannot hold a change, as far as its own image tells (string; NULL: it can).

    Columns that `relation` has and the changes lack are read when a CHECK names them: give rows NULL there.
    `archives`: images of deletes become rows, too.
    """
    from pyspark.sql import functions as F

    oper, have = col(changes.header("change_oper")), set(changes.df.columns)
    # Without a key all columns together tell rows apart, and images are written as they are.
    bag, written = not relation.key, oper.isin(INSERT, UPDATE, *([DELETE] if archives else []))
    found = [_null_key(c, have) for c in relation.key]
    for c in relation.columns:
        held = F.lit(True) if c.key or bag else oper.isin(INSERT, UPDATE)
        if c.name in have:
            kind = changes.df.schema[c.name].dataType.simpleString()
            if kind != c.type:
                lost = _lost(col(c.name), kind, c.type)
                found.append(F.when(held & lost, F.lit(f"{c.name} is no {c.type}")))
        if c.name in constraints.not_null and not c.key:
            sets = written if bag else _set(changes, c.name, oper)
            null = (col(c.name).isNull() if c.name in have else F.lit(True)) & sets
            found.append(F.when(null, F.lit(f"NULL in {c.name}")))
    whole = written & (F.lit(True) if bag else ~lacks(changes))
    found += [F.when(whole, one) for one in refusals(constraints)]
    return F.coalesce(*found, F.lit(None).cast("string"))


def retyped(changes: ChangeTable, relation: Relation) -> bool:
    """Whether columns of a layout have other types than those of the changes."""
    kinds = {f.name: f.dataType.simpleString() for f in changes.df.schema}
    return any(kinds.get(c.name, c.type) != c.type for c in relation.columns)


def refusals(constraints: Constraints) -> list[SparkColumn]:
    """Of a whole row which CHECKs refuse it (strings; NULL: it does not). NULL is not true, and what fails is
    refused by whoever writes the row."""
    from pyspark.sql import functions as F

    made = []
    for name, condition in sorted(constraints.checks.items()):
        holds = _tried(F.coalesce(F.expr(condition), F.lit(False)))
        made.append(
            F.when(holds.isNull(), F.lit(f"CHECK {name} cannot be computed for it")).when(
                ~holds, F.lit(f"CHECK {name} refuses it")
            )
        )
    return made


def _tried(condition: SparkColumn) -> SparkColumn:
    """A condition, NULL where it fails; without ANSI mode it would go on with a wrong value instead.

    `try_to_binary` makes NULL of whatever fails in it. `exists` keeps a part that two conditions share from
    being computed before either.
    """
    from pyspark.sql import functions as F

    apart = F.exists(F.array(F.lit(0)), lambda _: condition)
    return F.try_to_binary(apart.cast("string"), F.lit("utf-8")) == F.lit(bytearray(b"true"))


def lacks(changes: ChangeTable) -> SparkColumn:
    """Whether an image leaves columns out (boolean); an insert that does has NULL there."""
    from pyspark.sql import functions as F

    mask = changes.header("column_mask")
    if mask not in changes.df.columns:
        return F.lit(False)
    return (col(changes.header("change_oper")) == UPDATE) & col(mask).isNotNull()


def _lost(value: SparkColumn, kind: str, wanted: str) -> SparkColumn:
    """Whether a value becomes none, or another one, in a type; of text only whether it is of that type."""
    made = value.try_cast(wanted)
    none = value.isNotNull() & made.isNull()
    return none if kind == "string" else none | (made.try_cast(kind) != value)


def _null_key(name: str, have: set[str]) -> SparkColumn:
    from pyspark.sql import functions as F

    null = col(name).isNull() if name in have else F.lit(True)
    return F.when(null, F.lit(null_in_key(name)))


def _set(changes: ChangeTable, name: str, oper: SparkColumn) -> SparkColumn:
    """Whether a change sets a column: an insert does, with NULL when it lacks it."""
    mask = changes.header("column_mask")
    if mask not in changes.df.columns:
        return oper.isin(INSERT, UPDATE)
    there = col(mask).isNull() | is_set(col(mask), changes.ordinal(name))
    return (oper == INSERT) | ((oper == UPDATE) & there)
