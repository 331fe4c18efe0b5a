"""What became of each change, as columns beside the change rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..engine.columns import OPER, SEQ
from ..engine.rules import SITUATIONS, Rules, reason
from ..model.change import BEFORE, UPDATE, ChangeTable
from .fold import col, quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from .expect import Expected

EXISTED, ACTION, ROWS = "header__existed", "header__action", "header__rows"
FLAGGED, CONFLICT, EFFECTIVE, ERROR = (
    "header__flagged",
    "header__conflict",
    "header__effective",
    "header__error",
)
"""What `outcomes` adds to change rows: boolean, string, bigint; boolean, string, boolean, string."""
SITUATION, OLD, WHY = "header__situation", "header__old", "header__why"
SILENT = "header__silent"
"""Of an update, whether it is only looked at (boolean): it leaves nothing to the changes after it."""
BROADCAST = 500_000
"""Up to so many small rows are sent to every task instead of shuffling the other side."""


def with_outcome(df: DataFrame, rules: Rules, plain: str | None = None) -> DataFrame:
    """Rows with a `SITUATION` and the columns that say what becomes of them; see `outcomes`.

    `plain`: SQL of the situation of rows that have none.
    """
    from pyspark.sql import functions as F

    made = {s: rules.outcome(s) for s in SITUATIONS}
    text = {s: reason(o.conflict) if o.flagged else None for s, o in made.items()}
    known = df if plain is None else df.withColumn(SITUATION, F.expr(f"coalesce({SITUATION}, {plain})"))
    at = col(SITUATION)
    digit = F.substring(at, 2, 1)
    existed = F.when(digit.isin("0", "1"), digit == "1")
    if rules.mode == "archive":  # an archive looks at nothing
        existed = F.lit(None).cast("boolean")
    return known.withColumns(
        {
            EXISTED: existed,
            ACTION: _pick(at, {s: o.action for s, o in made.items()}, "string"),
            ROWS: _pick(at, {s: o.rows for s, o in made.items()}, "bigint"),
            FLAGGED: at.isin(*[s for s, o in made.items() if o.flagged]),
            CONFLICT: _pick(at, {s: o.conflict for s, o in made.items()}, "string"),
            EFFECTIVE: at.isin(*[s for s, o in made.items() if o.effective]),
            ERROR: _reason(known, _pick(at, text, "string")),
        }
    )


def _reason(df: DataFrame, general: Column) -> Column:
    """`ERROR`: of a data error what the values are, after its name."""
    from pyspark.sql import functions as F

    if WHY not in df.columns:
        return general
    said = F.concat(F.lit("data_error: "), col(WHY))
    return F.when(general.isNotNull() & col(WHY).isNotNull(), said).otherwise(general)


def _pick(at: Column, values: Mapping[str, str | int | None], kind: str) -> Column:
    """The value of a situation: one branch for each value, not for each situation."""
    from pyspark.sql import functions as F

    known = {v for v in values.values() if v is not None}
    branches = [
        F.when(at.isin(*[s for s, v in values.items() if v == one]), F.lit(one))
        for one in sorted(known, key=str)
    ]
    return F.coalesce(*branches, F.lit(None)).cast(kind)


def outcomes(changes: ChangeTable, expected: Expected, rules: Rules) -> DataFrame:
    """The change rows, without B rows, and what becomes of each: `EXISTED` (boolean: whether the row was
    there, of a key change the old key's; NULL: not looked at), `ACTION` (string), `ROWS` (bigint), `FLAGGED`
    (boolean), `CONFLICT` (string), `EFFECTIVE` (boolean: takes part in the fold), `ERROR` (string), and `OLD`
    (the old key of key changes) when there are any."""
    from pyspark.sql import functions as F

    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    df = changes.df.where(oper != BEFORE)
    name = quote(changes.header("change_oper"))
    plain = (
        f"CASE {name} WHEN 'I' THEN 'I0' WHEN 'U' THEN 'U1' WHEN 'D' THEN 'D1' WHEN 'T' THEN 'T' ELSE '?' END"
    )
    if expected.odd is not None:
        odd = bare(expected.odd)
        same = (seq == col(SEQ)) & (oper == col(OPER))
        df = df.join(small(odd, expected.many), same, "left").drop(SEQ, OPER)
    else:
        df = df.withColumn(SITUATION, F.lit(None).cast("string"))
    if expected.moves is not None:
        df = df.join(small(expected.moves, expected.moved), seq == col(SEQ), "left").drop(SEQ)
    return with_outcome(df, rules, plain)


def bare(odd: DataFrame) -> DataFrame:
    """Odd changes without what becomes of them."""
    return odd.select(*[col(n) for n in (SEQ, OPER, SITUATION, WHY) if n in odd.columns])


def silenced(events: DataFrame, silent: DataFrame) -> DataFrame:
    """Events (`SEQ`, `OPER`) with `SILENT`; `silent`: the `SEQ` of the updates that are."""
    from pyspark.sql import functions as F

    mine = silent.select(col(SEQ).alias("header__at"), F.lit(True).alias(SILENT))
    same = (col(SEQ) == col("header__at")) & col(OPER).isin(BEFORE, UPDATE)
    return events.join(mine, same, "left").drop("header__at").fillna(False, [SILENT])


def small(df: DataFrame, rows: int) -> DataFrame:
    """Rows to be joined with all changes: sent to every task while they are few."""
    from pyspark.sql import functions as F

    return F.broadcast(df) if rows <= BROADCAST else df
