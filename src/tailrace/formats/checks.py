"""Checks across rows: duplicate changes, before images without their update, numbers that restart. Bad rows
and copies get their reason in `WHY`; no row is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import sequence
from ..model.change import BEFORE, UPDATE, ChangeTable
from ..model.quoting import quoted
from .base import ADDED_COLUMNS, AGAIN, FILE, OWN, WHY
from .shape import also
from .spark_functions import F, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COPY, _REPEATED, _HASH, _NUMBER, _SECOND, _MOST = (
    OWN + name for name in ("copy", "repeated", "hash", "number", "second", "most")
)
_TO_SECOND = 14  # digits of a change sequence up to its seconds


def together(changes: ChangeTable) -> ChangeTable:
    """Marks rows that repeat (`change_seq`, `change_oper`), B rows without a U of their `change_seq`, and the
    other half of an update of which one half repeats.

    Of rows that repeat each other and are equal in every column, as those of a file that was delivered again,
    one stays good. Of others all are marked: which is right is not known. One shuffle by `change_seq`.
    """
    seq, oper = F.col(changes.header("change_seq")), F.col(changes.header("change_oper"))
    df = _copies(_with_why(changes.df), seq, oper)
    good, repeated = F.col(WHY).isNull() & ~F.col(_COPY), F.col(_REPEATED)
    same = Window.partitionBy(seq)
    updates, befores = (F.count_if(good & (oper == kind)).over(same) for kind in (UPDATE, BEFORE))
    lone = (oper == BEFORE) & (updates == 0)
    half = (oper == BEFORE) & (updates > 1) | (oper == UPDATE) & (befores > 1)
    marked = also(
        df,
        (F.col(_COPY), AGAIN),
        (repeated, F.concat(F.lit("comes twice: change "), seq, F.lit(" "), oper)),
        (good & lone, F.concat(F.lit("before image without its update: change "), seq)),
        (good & half & ~repeated, F.concat(F.lit("the other half of its update comes twice: change "), seq)),
    )
    return changes.with_df(marked.drop(_COPY, _REPEATED))


def _copies(df: DataFrame, seq: Column, oper: Column) -> DataFrame:
    """The rows with `_REPEATED`: whether a good row is one of several that differ, of its change and
    operation, and `_COPY`: whether it is equal to those, and not the one that is read. Hashes decide; only
    rows that repeat are hashed."""
    good, same = F.col(WHY).isNull(), Window.partitionBy(seq, oper)
    named = [f for f in df.schema if f.name not in ADDED_COLUMNS]
    values = [F.col(quoted(f.name)) for f in named]
    maps = ["map<" in f.dataType.simpleString() for f in named]  # Spark hashes none
    plain = [F.to_json(F.struct(v)) if m else v for v, m in zip(values, maps, strict=True)]
    # A hash passes NULLs over: which values are NULL is hashed, too.
    hashed = F.xxhash64(*plain, F.array(*[v.isNull() for v in values]))
    df = df.withColumn(_NUMBER, F.monotonically_increasing_id()).repartition(seq)  # what all windows need
    several = good & (F.count_if(good).over(same) > 1)
    df = df.withColumn(_HASH, F.when(several, hashed))
    known = F.col(_HASH).isNotNull()
    equal = F.min(_HASH).over(same) == F.max(_HASH).over(same)
    # Of the first file by name, however Spark spreads them: the next call reads the same one.
    place = F.struct(F.col(FILE) if FILE in df.columns else F.lit(""), F.col(_NUMBER))
    first = F.min(F.when(known, place)).over(same)
    df = df.withColumns({_REPEATED: known & ~equal, _COPY: known & equal & (place != first)})
    marks = {c: F.coalesce(F.col(c), F.lit(False)) for c in (_REPEATED, _COPY)}
    return df.withColumns(marks).drop(_HASH, _NUMBER)


def in_order(changes: ChangeTable) -> ChangeTable:
    """Marks rows whose change number does not increase although their time does: if only the number is kept,
    the sequence runs backwards there.

    For change sequences of 35 digits; others are skipped. Numbers are compared second by second, so
    what has to be sorted in one place is one row a second of the source's time.
    """
    df = _with_why(changes.df)
    seq = F.col(changes.header("change_seq"))
    second, number = F.substring(seq, 1, _TO_SECOND), F.substring(seq, sequence.TIME_DIGITS + 1, 19)
    # Times that start with 0 precede all other times: rows of a full load, which have no order.
    usual = F.col(WHY).isNull() & (F.length(seq) == sequence.WIDTH) & ~seq.startswith("0")
    rows = df.filter(usual).groupBy(second.alias(_SECOND)).agg(F.max(number).alias(_MOST))
    before = Window.orderBy(_SECOND).rowsBetween(Window.unboundedPreceding, -1)
    highest = rows.select(_SECOND, F.max(_MOST).over(before).alias(_MOST))
    marked = df.join(F.broadcast(highest), usual & (second == F.col(_SECOND)), "left")
    # Rows that are not checked would all belong to one second, and be sorted in one task.
    alone = F.when(usual, second).otherwise(seq)
    time = F.substring(seq, 1, sequence.TIME_DIGITS).try_cast("bigint")
    earlier = Window.partitionBy(alone).orderBy(time).rangeBetween(Window.unboundedPreceding, -1)
    inside = F.max(number).over(earlier)
    back = (number <= F.col(_MOST)) | F.coalesce(number <= inside, F.lit(False))
    said = F.concat(F.lit("its number is not above that of an earlier change: change "), seq)
    return changes.with_df(also(marked, (usual & back, said)).drop(_SECOND, _MOST))


def _with_why(df: DataFrame) -> DataFrame:
    return df if WHY in df.columns else df.withColumn(WHY, F.lit(None).cast("string"))


def is_bad() -> Column:
    """Whether a row has a reason to be set aside."""
    return F.col(WHY).isNotNull() & ~is_copy()


def is_copy() -> Column:
    """Whether a row is a copy of one that is read."""
    return F.coalesce(F.col(WHY) == AGAIN, F.lit(False))
