"""Counts rows in passing: with Spark's own metrics, in the pass that reads them anyway.

Metrics are there once the query has ended that read the rows; not always: nobody may have asked for them, or
Spark may have read them outside a query. They are counted in a pass of their own then. So what is given is
exact, and nothing waits for what may never come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation


@dataclass(frozen=True)
class RowCount:
    """Counts of rows in passing: `rows` counted by `what`, reported by `seen`."""

    rows: DataFrame
    what: tuple[Column, ...]
    seen: Observation

    def figures(self) -> dict[str, int]:
        """The counts by name; call it after the rows have been read."""
        future = self.seen._jo.future()  # type: ignore[union-attr]
        if future.isCompleted():  # otherwise `get` would wait for ever
            return {k: int(v or 0) for k, v in self.seen.get.items()}
        row = self.rows.agg(*self.what).first()
        return {k: int(v or 0) for k, v in row.asDict().items()} if row else {}


def counted(rows: DataFrame, name: str, what: Sequence[Column] = ()) -> tuple[DataFrame, RowCount]:
    """The same rows, counted in passing; by `what`, otherwise their number as `rows`."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    asked = tuple(what) or (F.count(F.lit(1)).alias("rows"),)
    seen = Observation(name)
    return rows.observe(seen, *asked), RowCount(rows, asked, seen)
