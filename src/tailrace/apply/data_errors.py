"""Changes whose values a target cannot hold: found before anything is written, set aside one by one.

Here a change is judged by its own image: NULL in the key or in a column that is NOT NULL in the target, a
value that becomes none in the type of the target's column, a row that a CHECK refuses. What hangs on the row
that a change meets is `constraint_check`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engine.columns import OPER, SEQ, WHY
from ..engine.null_keys import null_in_key
from ..model.change import BEFORE, INSERT, TRUNCATE, UPDATE, ChangeTable, Relation
from ..model.mask import is_set
from .images import col
from .shards import small

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Demands:
    """What a target asks of its rows: columns that may not be NULL, and CHECKs, name -> condition (SQL; a row
    for which it is not true is refused)."""

    not_null: frozenset[str] = frozenset()
    checks: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.not_null or self.checks)


@dataclass(frozen=True)
class Bad:
    """Changes that the target cannot hold: `SEQ`, `OPER`, `WHY` (strings), and how many."""

    df: DataFrame
    many: int

    @staticmethod
    def of(rows: DataFrame, also: Bad | None = None) -> Bad | None:
        """Rows with `SEQ`, `OPER`, `WHY`, and those that were known; runs a job. None: there are none."""
        made = rows.select(SEQ, OPER, WHY).localCheckpoint(eager=True)
        many = made.count()
        if also is not None:
            made, many = also.df.unionByName(made), also.many + many
        return Bad(made, many) if many else None

    def marked(self, changes: ChangeTable) -> ChangeTable:
        """The changes with `WHY` added; their old images have it, too."""
        bad = small(self.df.select(SEQ, OPER, WHY), self.many)
        return changes.with_df(changes.df.join(bad, _same(changes), "left").drop(SEQ, OPER))


def _same(changes: ChangeTable) -> SparkColumn:
    """Whether a row is of the change that `SEQ` and `OPER` name."""
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    return (seq == col(SEQ)) & ((oper == col(OPER)) | ((oper == BEFORE) & (col(OPER) == UPDATE)))


def marked(changes: ChangeTable, relation: Relation, demands: Demands) -> ChangeTable:
    """The changes with `WHY` added, found as they are read; `relation`: the target's layout and types,
    with the changes' key."""
    from pyspark.sql import functions as F

    have = changes.df.columns  # CHECKs may name columns that the changes lack
    lacking = {c.name: F.lit(None).cast(c.type) for c in relation.columns if c.name not in have}
    wide = changes.with_df(changes.df.withColumns(lacking))
    judged = wide.df.withColumn(WHY, reason(wide, relation, demands))
    return changes.with_df(judged.select(*map(col, have), WHY))


def unmarked(changes: ChangeTable) -> ChangeTable:
    """Changes that were all found good, with `WHY`."""
    from pyspark.sql import functions as F

    return changes.with_df(changes.df.withColumn(WHY, F.lit(None).cast("string")))


def look(
    changes: ChangeTable, relation: Relation, demands: Demands, *, letter: str | None = None
) -> Bad | None:
    """Looks for them in one pass; None when there are none.

    `relation`: see `marked`. `letter`: the column that has a change's operation, when it is not
    `change_oper`.
    """
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    said = col(letter) if letter else oper
    # A B row with a NULL in its key is its update's error.
    said = F.when(said == BEFORE, UPDATE).otherwise(said)
    judged = marked(changes, relation, demands).df.where((oper != TRUNCATE) & col(WHY).isNotNull())
    rows = judged.select(seq.alias(SEQ), said.alias(OPER), WHY)
    return Bad.of(rows.groupBy(SEQ, OPER).agg(F.min(WHY).alias(WHY)))


def reason(changes: ChangeTable, relation: Relation, demands: Demands) -> SparkColumn:
    """Why the target cannot hold a change, as far as its own image tells (string; NULL: it can).

    Columns that `relation` has and the changes lack are read when a CHECK names them: give rows NULL there.
    """
    from pyspark.sql import functions as F

    oper, have = col(changes.header("change_oper")), set(changes.df.columns)
    # Without a key all columns together tell rows apart, and images are written as they are.
    bag = not relation.key
    found = [_null_key(c, have) for c in relation.key]
    for c in relation.columns:
        held = F.lit(True) if c.key or bag else oper.isin(INSERT, UPDATE)
        if c.name in have:
            kind = changes.df.schema[c.name].dataType.simpleString()
            if kind != c.type:
                lost = _lost(col(c.name), kind, c.type)
                found.append(F.when(held & lost, F.lit(f"{c.name} is no {c.type}")))
        if c.name in demands.not_null and not c.key:
            written = oper.isin(INSERT, UPDATE) if bag else _set(changes, c.name, oper)
            null = (col(c.name).isNull() if c.name in have else F.lit(True)) & written
            found.append(F.when(null, F.lit(f"NULL in {c.name}")))
    whole = oper.isin(INSERT, UPDATE) & (F.lit(True) if bag else ~lacks(changes))
    found += [F.when(whole, one) for one in refusals(demands)]
    return F.coalesce(*found, F.lit(None).cast("string"))


def retyped(changes: ChangeTable, relation: Relation) -> bool:
    """Whether columns of a layout have other types than those of the changes."""
    kinds = {f.name: f.dataType.simpleString() for f in changes.df.schema}
    return any(kinds.get(c.name, c.type) != c.type for c in relation.columns)


def refusals(demands: Demands) -> list[SparkColumn]:
    """Of a whole row which CHECKs refuse it (strings; NULL: it does not). NULL is not true, and what fails is
    refused by whoever writes the row."""
    from pyspark.sql import functions as F

    made = []
    for name, condition in sorted(demands.checks.items()):
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


def nulls(demands: Demands) -> list[SparkColumn]:
    """Of a whole row which columns are NULL and may not be (strings; NULL: they are not)."""
    from pyspark.sql import functions as F

    return [F.when(col(n).isNull(), F.lit(f"NULL in {n}")) for n in sorted(demands.not_null)]


def without(changes: ChangeTable, bad: Bad | None) -> ChangeTable:
    """The other changes."""
    if bad is None:
        return changes
    left = changes.df.join(small(bad.df.select(SEQ, OPER), bad.many), _same(changes), "left_anti")
    return changes.with_df(left.localCheckpoint(eager=False))


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
