"""Tables without key: bags of full rows. NULLs compare equal, and one row of equals is as good as another.

A change is one copy more (I, U) or one less (D, B) of a full row. Copies the target has and copies the batch
adds or takes are summed per distinct row in one aggregation: no join, no order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fold import Images, col, weights
from .targets.delta_local import HAVE, NET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def copies(target: DataFrame | None, made: Images) -> DataFrame:
    """One row a distinct row: the data columns, `HAVE` (copies in the target) and `NET` (copies the batch
    adds, or takes when negative)."""
    from pyspark.sql import functions as F

    data = [col(c) for c in made.columns]
    changed = weights(made).select(*data, F.lit(0).cast("bigint").alias(HAVE), col(NET))
    if target is not None and not made.replaces:
        changed = changed.unionByName(
            target.select(*data, F.lit(1).cast("bigint").alias(HAVE), F.lit(0).cast("bigint").alias(NET))
        )
    return changed.groupBy(*data).agg(F.sum(HAVE).alias(HAVE), F.sum(NET).alias(NET))


def rows(target: DataFrame | None, made: Images) -> DataFrame:
    """The bag after the batch, each row as often as it occurs."""
    from pyspark.sql import functions as F

    left = (col(HAVE) + col(NET)).cast("int")
    many = copies(target, made).where(left > 0)
    return many.select(*map(col, made.columns), F.explode(F.array_repeat(F.lit(0), left)).alias(NET)).drop(
        NET
    )


def net(made: Images, *, plain: bool) -> DataFrame:
    """The rows of a table without key as a database gets them: with `plain` (only inserts came) as they come,
    else one a distinct row, with the copies to add or to take away."""
    from pyspark.sql import functions as F

    rows = weights(made)
    if plain:
        return rows
    summed = rows.groupBy(*map(col, made.columns)).agg(F.sum(NET).alias(NET))
    return summed.where(col(NET) != 0)
