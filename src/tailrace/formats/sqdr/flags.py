"""`flagged_count` of a key log, recomputed from its rows. Source: spec/sqdr.md §2, §3, §6.

A row is flagged when the destination says another row count than one, or an error. It is not while the
window of a baseline is open (from `S` until the `C` that closes it), and a delete that hits no row is not
under Allow UPSERT. A closed window begins the count at 0 again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import OWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXPECTED, DIFFERS = "flagged_expected", "flagged_differs"
_FLAGGED, _EPOCH = OWN + "flagged", OWN + "epoch"
_DML = ("I", "U", "M", "D")


def unexpected() -> Column:
    """Whether a key log row's result is not the one a change must have (boolean, never NULL)."""
    from pyspark.sql import functions as F

    wrong = (F.col("result_row_count") != 1) | F.col("result_error").isNotNull()
    return F.coalesce(F.col("action_taken").isin(*_DML) & wrong, F.lit(False))


def recount(log: DataFrame) -> DataFrame:
    """A key log with two more columns: `flagged_expected`, the count that follows from the previous rows,
    and `flagged_differs`, whether `flagged_count` is different.

    The rows of a subscription are sorted by `keylog_sort`. A log that was pruned begins with the count its
    first row has; one shuffle.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    mine = Window.partitionBy("subscription_id").orderBy("keylog_sort")
    so_far = mine.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    action = F.col("action_taken")
    upsert = F.max(action == "U").over(Window.partitionBy("subscription_id"))
    ignored = F.coalesce(upsert & (action == "D") & F.col("result_error").isNull(), F.lit(False))
    state = F.last(F.when(action.isin("S", "C"), action), ignorenulls=True).over(so_far)
    flagged = unexpected() & ~ignored & (F.coalesce(state, F.lit("C")) != "S")
    df = log.withColumns(
        {_FLAGGED: flagged.cast("int"), _EPOCH: F.count(F.when(action == "C", 1)).over(so_far)}
    )
    epoch = Window.partitionBy("subscription_id", _EPOCH).orderBy("keylog_sort")
    running = F.sum(_FLAGGED).over(epoch.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    first = F.first(F.col("flagged_count") - F.col(_FLAGGED)).over(so_far)
    expected = running + F.when(F.col(_EPOCH) == 0, first).otherwise(F.lit(0))
    df = df.withColumn(EXPECTED, expected).drop(_FLAGGED, _EPOCH)
    return df.withColumn(DIFFERS, F.coalesce(F.col("flagged_count") != F.col(EXPECTED), F.lit(False)))


__all__ = ["DIFFERS", "EXPECTED", "recount", "unexpected"]
