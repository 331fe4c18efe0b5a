"""What became of each change, as columns beside the change rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engine.columns import OPER, SEQ
from ..engine.rules import SITUATIONS, Outcome, Rules
from ..model.change import BEFORE, ChangeTable
from .fold import col, quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from .expect import Expected

SITUATION, OLD, WHY = "header__situation", "header__old", "header__why"
BROADCAST = 500_000
"""Up to so many small rows are sent to every task instead of shuffling the other side."""


def among(rules: Rules, which: Callable[[Outcome], bool]) -> Column:
    """Whether what becomes of a change (by its `SITUATION`) is of some kind."""
    return col(SITUATION).isin(*[s for s in SITUATIONS if which(rules.outcome(s))])


def outcomes(changes: ChangeTable, expected: Expected) -> DataFrame:
    """The change rows, without B rows, each with its `SITUATION` (string; see `engine.rules`), `WHY` (string)
    when some have bad values, and `OLD` (the old key of key changes) when there are any."""
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    df = changes.df.where(oper != BEFORE)
    name = quote(changes.header("change_oper"))
    plain = f"coalesce(map('I', 'I0', 'U', 'U1', 'D', 'D1', 'T', 'T')[{name}], '?')"
    if expected.odd is None:
        df = df.withColumn(SITUATION, F.expr(plain))
    else:
        same = (seq == col(SEQ)) & (oper == col(OPER))
        df = df.join(small(expected.odd, expected.many), same, "left").drop(SEQ, OPER)
        df = df.withColumn(SITUATION, F.expr(f"coalesce({SITUATION}, {plain})"))
    if expected.moves is not None:
        df = df.join(small(expected.moves, expected.moved), seq == col(SEQ), "left").drop(SEQ)
    return df


def small(df: DataFrame, rows: int) -> DataFrame:
    """Rows to be joined with all changes: sent to every task while they are few."""
    from pyspark.sql import functions as F

    return F.broadcast(df) if rows <= BROADCAST else df
