"""Checks across rows: duplicate changes, before images without their update, decreasing numbers. Bad rows and
copies get a reason in `WHY`; no row is removed."""

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
_TO_SECOND = 14  # the first digits of a change sequence, up to the seconds


def together(changes: ChangeTable) -> ChangeTable:
    """Marks duplicates of (`change_seq`, `change_oper`), B rows without a U of their `change_seq`, and the
    other half of an update with a duplicate half.

    Of duplicates that are equal in every column, e.g. from a file that was delivered again, one stays good.
    Other duplicates are all marked: it is unknown which is right. Needs one shuffle by `change_seq`.
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
        (repeated, F.concat(F.lit("duplicate: change "), seq, F.lit(" "), oper)),
        (good & lone, F.concat(F.lit("before image without its update: change "), seq)),
        (
            good & half & ~repeated,
            F.concat(F.lit("the other half of its update is a duplicate: change "), seq),
        ),
    )
    return changes.with_df(marked.drop(_COPY, _REPEATED))


def _copies(df: DataFrame, seq: Column, oper: Column) -> DataFrame:
    """Returns the rows with `_REPEATED` (whether other good rows of the same change and operation differ from
    this one) and `_COPY` (whether it is equal to the row that is read). Hashes decide; only duplicates are
    hashed."""
    good, same = F.col(WHY).isNull(), Window.partitionBy(seq, oper)
    named = [f for f in df.schema if f.name not in ADDED_COLUMNS]
    values = [F.col(quoted(f.name)) for f in named]
    maps = ["map<" in f.dataType.simpleString() for f in named]  # Spark cannot hash maps
    plain = [F.to_json(F.struct(v)) if m else v for v, m in zip(values, maps, strict=True)]
    # A hash ignores NULLs: which values are NULL is hashed, too.
    hashed = F.xxhash64(*plain, F.array(*[v.isNull() for v in values]))
    df = df.withColumn(_NUMBER, F.monotonically_increasing_id()).repartition(
        seq
    )  # all windows need this partitioning
    several = good & (F.count_if(good).over(same) > 1)
    df = df.withColumn(_HASH, F.when(several, hashed))
    known = F.col(_HASH).isNotNull()
    equal = F.min(_HASH).over(same) == F.max(_HASH).over(same)
    # The copy in the first file by name is read, however Spark distributes them: each run reads the same one.
    position = F.struct(F.col(FILE) if FILE in df.columns else F.lit(""), F.col(_NUMBER))
    first = F.min(F.when(known, position)).over(same)
    df = df.withColumns({_REPEATED: known & ~equal, _COPY: known & equal & (position != first)})
    marks = {c: F.coalesce(F.col(c), F.lit(False)) for c in (_REPEATED, _COPY)}
    return df.withColumns(marks).drop(_HASH, _NUMBER)


def in_order(changes: ChangeTable) -> ChangeTable:
    """Marks rows whose change number does not increase although their time does: if only the number is kept,
    the order of changes would be wrong.

    Only change sequences of 35 digits are checked. Numbers are compared second by second, so one task has to
    sort only one row per second of the source's time.
    """
    df = _with_why(changes.df)
    seq = F.col(changes.header("change_seq"))
    second, number = F.substring(seq, 1, _TO_SECOND), F.substring(seq, sequence.TIME_DIGITS + 1, 19)
    # Times that start with 0 precede all other times: they are rows of a full load, which have no order.
    usual = F.col(WHY).isNull() & (F.length(seq) == sequence.WIDTH) & ~seq.startswith("0")
    rows = df.filter(usual).groupBy(second.alias(_SECOND)).agg(F.max(number).alias(_MOST))
    before = Window.orderBy(_SECOND).rowsBetween(Window.unboundedPreceding, -1)
    highest = rows.select(_SECOND, F.max(_MOST).over(before).alias(_MOST))
    marked = df.join(F.broadcast(highest), usual & (second == F.col(_SECOND)), "left")
    # Rows that are not checked would all be in the same second, and be sorted in one task.
    alone = F.when(usual, second).otherwise(seq)
    time = F.substring(seq, 1, sequence.TIME_DIGITS).try_cast("bigint")
    earlier = Window.partitionBy(alone).orderBy(time).rangeBetween(Window.unboundedPreceding, -1)
    inside = F.max(number).over(earlier)
    back = (number <= F.col(_MOST)) | F.coalesce(number <= inside, F.lit(False))
    said = F.concat(F.lit("its number is not greater than that of an earlier change: change "), seq)
    return changes.with_df(also(marked, (usual & back, said)).drop(_SECOND, _MOST))


def _with_why(df: DataFrame) -> DataFrame:
    return df if WHY in df.columns else df.withColumn(WHY, F.lit(None).cast("string"))


def is_bad() -> Column:
    """Whether a row is bad."""
    return F.col(WHY).isNotNull() & ~is_copy()


def is_copy() -> Column:
    """Whether a row is a copy of another row that is read."""
    return F.coalesce(F.col(WHY) == AGAIN, F.lit(False))
