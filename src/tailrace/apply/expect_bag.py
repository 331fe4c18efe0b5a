"""What the changes of a table without key met: whether the row they take away was there just before them.

A row is known by all of its values, and may be there several times. A change adds a copy (I, U) or takes one
(D, and B for its update); one that is not there cannot be taken, and the count stays at 0. With W the count
if it could be negative, the real one is W + max(0, -min W so far): two windows, exact, no loop over rows.

Where an update of a missing row is passed over, whether it adds its new row hangs on the old one. That is
guessed, as for changes of a key (`expect`), until the guess is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from ..engine.columns import OPER, SEQ
from ..engine.rules import PLAIN, Rules
from ..model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE, ChangeTable, Relation
from .expect import EPOCH, Expected, epochs
from .fold import col, images
from .outcomes import OLD, SITUATION, small

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STEP, _WALK, _MET, _TAKEN = (f"header__{n}" for n in ("step", "walk", "met", "taken"))


def expect_bag(
    changes: ChangeTable,
    relation: Relation,
    rules: Rules,
    counts: Mapping[str, int],
    there: DataFrame | None,
) -> Expected:
    """Looks what changes meet; as `expect`, with `there`: all rows of the target before the batch.

    `moves` of the result has every update with its old row.
    """
    from pyspark.sql import functions as F

    if not (counts.get("U") or counts.get("D")):
        return Expected()  # nothing is looked for
    df = changes.df.where(col(changes.header("change_oper")) != TRUNCATE)
    base = images(changes.with_df(df), relation, {}).df
    base = epochs(base, changes) if counts.get("T") else base.withColumn(EPOCH, F.lit(0))
    base = base.localCheckpoint(eager=False)
    columns = [c.name for c in relation.columns]
    first = _copies(base, there, columns)
    found = _settled(base, first, columns, rules, counts.get("U", 0))
    named = F.concat(col(OPER), F.when(col(_MET), "1").otherwise("0"))
    situation = F.when(col(OPER) == INSERT, "I0").when(col(OPER).isin(UPDATE, DELETE), named).otherwise("?")
    odd = found.where(col(OPER) != BEFORE).select(SEQ, OPER, situation.alias(SITUATION))
    odd = odd.where(~col(SITUATION).isin(*PLAIN)).localCheckpoint(eager=False)
    # As the key log names columns: in the order of the change table.
    old = F.struct(*[col(n).alias(f"k{i}") for i, n in enumerate(c for c in changes.columns if c in columns)])
    moves = base.where(col(OPER) == BEFORE).select(SEQ, old.alias(OLD)).localCheckpoint(eager=True)
    many = moves.count()
    return Expected(odd, {}, moves if many else None, many).counted(rules)


def _copies(base: DataFrame, there: DataFrame | None, columns: Sequence[str]) -> DataFrame | None:
    """How often the target had each row that changes name: `_STEP`, before all changes."""
    from pyspark.sql import functions as F

    if there is None:
        return None
    named = base.select(*[col(n).alias(f"header__c{i}") for i, n in enumerate(columns)]).distinct()
    same = reduce(and_, [col(n).eqNullSafe(col(f"header__c{i}")) for i, n in enumerate(columns)])
    mine = there.join(named, same, "left_semi").groupBy(*map(col, columns))
    return mine.agg(F.count(F.lit(1)).alias(_STEP)).withColumns(
        {SEQ: F.lit(""), OPER: F.lit(""), EPOCH: F.lit(0)}
    )


def _settled(
    base: DataFrame, first: DataFrame | None, columns: Sequence[str], rules: Rules, updates: int
) -> DataFrame:
    """The changes with `_MET` (boolean): whether the row that they take was there."""
    from pyspark.sql import functions as F

    inserts = rules.on["update_missing"] == "apply"
    oper, guess = col(OPER), None
    while True:
        rows, adds = base, F.lit(True)
        if guess is not None and not inserts:
            rows = base.join(small(guess, updates), SEQ, "left")
            adds = (oper == INSERT) | F.coalesce(col(_TAKEN), F.lit(False))
        step = F.when(oper.isin(INSERT, UPDATE) & adds, 1).when(oper.isin(DELETE, BEFORE), -1).otherwise(0)
        met = _met(rows.withColumn(_STEP, step.cast("bigint")), first, columns)
        taken = met.where(oper == BEFORE).select(SEQ, col(_MET).alias(_TAKEN)).localCheckpoint(eager=True)
        # A pass settles at least the earliest wrong one.
        if inserts or not updates or _same(guess, taken):
            break
        guess = taken
    found = met.join(small(taken, updates), SEQ, "left")
    of_update = F.coalesce(col(_TAKEN), F.lit(False))
    return found.withColumn(_MET, F.when(oper == UPDATE, of_update).otherwise(col(_MET)))


def _same(guess: DataFrame | None, taken: DataFrame) -> bool:
    """Whether a guess (None: all are there) is what came out under it."""
    if guess is None:
        return taken.where(~col(_TAKEN)).isEmpty()
    return guess.join(taken, [SEQ, _TAKEN], "left_anti").isEmpty()


def _met(rows: DataFrame, first: DataFrame | None, columns: Sequence[str]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    told = rows.select(SEQ, OPER, EPOCH, _STEP, *map(col, columns))
    if first is not None:
        told = told.unionByName(first.select(told.columns))
    order = Window.partitionBy(*map(col, columns), EPOCH).orderBy(SEQ, OPER)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    walk = F.sum(_STEP).over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    walked = told.withColumn(_WALK, walk)
    least = F.least(F.coalesce(F.min(_WALK).over(before), F.lit(0)), F.lit(0))
    count = F.coalesce(F.lag(_WALK).over(order), F.lit(0)) - least
    return walked.withColumn(_MET, count > 0).where(col(SEQ) != "")
