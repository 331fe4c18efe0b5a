"""Finds changes whose values a target cannot have, with Spark's SQL.

A change is checked by its own image: NULL in the key or in a column that is NOT NULL in the target, a value
that the type of the target's column does not have, a row that a CHECK refuses. An incomplete image is not
checked against CHECKs; if it violates one, the target refuses its batch.
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
    """The changes, with a column `WHY` (string) if the target may not accept all: why it refuses each, or
    NULL.

    NULL in a key alone does not need that column: the merge finds it. `relation`: the target's layout and
    types, with the changes' key.
    """
    from pyspark.sql import functions as F

    if not (constraints or retyped(changes, relation)):
        return changes
    have = changes.df.columns  # CHECKs may name columns that the changes do not have
    absent = {c.name: F.lit(None).cast(c.type) for c in relation.columns if c.name not in have}
    wide = changes.with_df(changes.df.withColumns(absent))
    why = reason(wide, relation, constraints, archives=rules.mode == "archive")
    if rules.mode == "archive":  # before images are not written
        why = F.when(col(changes.header("change_oper")) != BEFORE, why)
    return changes.with_df(wide.df.withColumn(WHY, why).select(*map(col, have), WHY))


def held_in(relation: Relation, existing: Mapping[str, str]) -> Relation:
    """A layout with the `existing` types of a target (name -> Spark SQL type), except where the target's
    column can be widened."""
    columns = []
    for c in relation.columns:
        kind = existing.get(c.name, c.type)
        follows = kind == c.type or widens(arrow_type(kind), arrow_type(c.type))
        columns.append(c if follows else replace(c, type=kind))
    return relation.with_columns(columns)


def reason(
    changes: ChangeTable, relation: Relation, constraints: Constraints, *, archives: bool = False
) -> SparkColumn:
    """Why the target refuses a change, as far as its own image shows it (string; NULL if it accepts it).

    A CHECK may name a column of `relation` that the changes do not have: it has to exist in their DataFrame,
    with NULL. `archives`: images of deletes become rows, too.
    """
    from pyspark.sql import functions as F

    oper, have = col(changes.header("change_oper")), set(changes.df.columns)
    # In a keyless table all columns together identify a row, and images are written as they are.
    keyless, written = not relation.key, oper.isin(INSERT, UPDATE, *([DELETE] if archives else []))
    found = [_null_key(c, have) for c in relation.key]
    for c in relation.columns:
        held = F.lit(True) if c.key or keyless else oper.isin(INSERT, UPDATE)
        if c.name in have:
            kind = changes.df.schema[c.name].dataType.simpleString()
            if kind != c.type:
                lost = _lost(col(c.name), kind, c.type)
                found.append(F.when(held & lost, F.lit(f"{c.name} is not a valid {c.type}")))
        if c.name in constraints.not_null and not c.key:
            sets = written if keyless else _set(changes, c.name, oper)
            null = (col(c.name).isNull() if c.name in have else F.lit(True)) & sets
            found.append(F.when(null, F.lit(f"NULL in {c.name}")))
    whole = written & (F.lit(True) if keyless else ~is_incomplete(changes))
    found += [F.when(whole, one) for one in refusals(constraints)]
    return F.coalesce(*found, F.lit(None).cast("string"))


def retyped(changes: ChangeTable, relation: Relation) -> bool:
    """Whether columns of a layout have other types than those of the changes."""
    kinds = {f.name: f.dataType.simpleString() for f in changes.df.schema}
    return any(kinds.get(c.name, c.type) != c.type for c in relation.columns)


def refusals(constraints: Constraints) -> list[SparkColumn]:
    """For each CHECK the reason why it refuses a whole row (string; NULL if it accepts it). A condition that
    is NULL or cannot be computed refuses it."""
    from pyspark.sql import functions as F

    reasons = []
    for name, condition in sorted(constraints.checks.items()):
        holds = _tried(F.coalesce(F.expr(condition), F.lit(False)))
        reasons.append(
            F.when(holds.isNull(), F.lit(f"CHECK {name} cannot be computed for it")).when(
                ~holds, F.lit(f"CHECK {name} refuses it")
            )
        )
    return reasons


def _tried(condition: SparkColumn) -> SparkColumn:
    """A condition that is NULL where it cannot be computed. (Without ANSI mode it would have a wrong value.)

    `try_to_binary` returns NULL if its argument fails. `exists` prevents that a part which two conditions
    share is computed before both.
    """
    from pyspark.sql import functions as F

    separate = F.exists(F.array(F.lit(0)), lambda _: condition)
    return F.try_to_binary(separate.cast("string"), F.lit("utf-8")) == F.lit(bytearray(b"true"))


def is_incomplete(changes: ChangeTable) -> SparkColumn:
    """Whether the image of an update leaves columns out (boolean). An insert has NULL there."""
    from pyspark.sql import functions as F

    mask = changes.header("column_mask")
    if mask not in changes.df.columns:
        return F.lit(False)
    return (col(changes.header("change_oper")) == UPDATE) & col(mask).isNotNull()


def _lost(value: SparkColumn, kind: str, wanted: str) -> SparkColumn:
    """Whether a value is lost or changed by a cast. A text only has to be a value of that type."""
    cast = value.try_cast(wanted)
    lost = value.isNotNull() & cast.isNull()
    return lost if kind == "string" else lost | (cast.try_cast(kind) != value)


def _null_key(name: str, have: set[str]) -> SparkColumn:
    """The reason if a key column is NULL or missing."""
    from pyspark.sql import functions as F

    null = col(name).isNull() if name in have else F.lit(True)
    return F.when(null, F.lit(null_in_key(name)))


def _set(changes: ChangeTable, name: str, oper: SparkColumn) -> SparkColumn:
    """Whether a change sets a column. An insert always does, with NULL if it does not have the column."""
    mask = changes.header("column_mask")
    if mask not in changes.df.columns:
        return oper.isin(INSERT, UPDATE)
    given = col(mask).isNull() | is_set(col(mask), changes.ordinal(name))
    return (oper == INSERT) | ((oper == UPDATE) & given)
