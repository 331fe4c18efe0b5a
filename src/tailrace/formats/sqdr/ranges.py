"""Rows of a key log in order, over several tasks, by ranges that are found in a query of their own.

Spark finds ranges by computing everything before them once more, within the same query: rows that are counted
in passing (`formats.counts`) would be counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TASK_ROWS = 100_000
"""Rows that are worth a task."""
_OF = 50
"""Ranges are told by one of so many rows: by thousands wherever there are several tasks."""
_RANGE, _SEEN = "_range", "_seen"


@dataclass(frozen=True)
class Ranges:
    """Ranges of an order by two numbers.

    Attributes:
        place: 0 if ranges are of the first number; 1 if all rows have the same first number.
        bounds: where each range but the first begins.
    """

    place: int
    bounds: tuple[float, ...]

    @classmethod
    def of(cls, numbers: Sequence[DataFrame]) -> Ranges:
        """Ranges of about equally many rows; tables with the two numbers of each row."""
        from pyspark.sql import functions as F

        most = int(numbers[0].sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        if most == 1:
            return cls(0, ())
        rows = reduce(lambda a, b: a.unionAll(b), numbers)
        shares = [n / most for n in range(most)]
        first, second = (F.col(c).cast("double") for c in rows.columns)
        seen = F.col(_SEEN)  # by chance, not by its numbers, which may be few
        rows = rows.withColumn(_SEEN, F.rand(0) * _OF < 1)
        row = rows.agg(
            F.count(F.lit(1)).alias("rows"),
            (F.min(first) == F.max(first)).alias("same"),
            F.percentile_approx(F.when(seen, first), shares).alias("first"),
            F.percentile_approx(F.when(seen, second), shares).alias("second"),
        ).first()
        if row is None or row["same"] is None:
            return cls(0, ())
        tasks = min(most, 1 + row["rows"] // _TASK_ROWS)
        found = row["second"] if row["same"] else row["first"]
        return cls(int(row["same"]), tuple(sorted({found[n * most // tasks] for n in range(1, tasks)})))

    def ordered(self, df: DataFrame, numbers: Sequence[Column], *by: str) -> DataFrame:
        """The rows with all those of a range in one task, ordered by columns, and the ranges in order."""
        from pyspark.sql import functions as F

        place = numbers[self.place].cast("double")
        over = [F.when(place >= bound, 1).otherwise(0) for bound in self.bounds]
        ranged = df.withColumn(_RANGE, reduce(lambda a, b: a + b, over, F.lit(0)))
        ranged = ranged.repartitionById(len(self.bounds) + 1, F.col(_RANGE))
        return ranged.drop(_RANGE).sortWithinPartitions(*by)
