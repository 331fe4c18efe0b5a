"""Both sides of a comparison as DataFrames: Spark's tasks run the functions of `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ..apply.images import col
from ..model.types import arrow_type, spark_type
from . import compare
from .compare import COPIES, Shape, Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SIDE, _SUMS = "side", "bucket int, rows bigint, sum bigint"


@dataclass(frozen=True)
class Frames:
    """See `compare.Sides`."""

    left: DataFrame
    right: DataFrame

    @property
    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """See `compare.Sides`."""
        return _schema(self.left), _schema(self.right)

    def sums(self, shape: Shape) -> tuple[Sums, Sums]:
        """See `compare.Sides`. One job; it collects at most one row per bucket and task."""
        from pyspark.sql import functions as F

        left, right = (
            _placed(df, shape).mapInArrow(shape.sums, _SUMS).withColumn(_SIDE, F.lit(side))
            for side, df in enumerate((self.left, self.right))
        )
        found = left.unionAll(right).collect()
        sides = ([(r["bucket"], r["rows"], r["sum"]) for r in found if r[_SIDE] == s] for s in (0, 1))
        one, other = map(compare.added, sides)
        return one, other

    def apart(self, shape: Shape, buckets: Sequence[int], samples: int) -> tuple[int, pa.Table]:
        """See `compare.Sides`."""
        from pyspark.sql import functions as F

        left, right = (
            near.withColumn(COPIES, F.lit(n))
            for near, n in zip(self._near(shape, buckets), (1, -1), strict=True)
        )
        both = left.unionAll(right)
        counts = both.groupBy(compare.HASH).agg(F.sum(COPIES).alias(COPIES)).where(col(COPIES) != 0)
        counts = counts.persist()
        try:
            total = counts.agg(F.sum(F.abs(COPIES))).first()
            rows = both.drop(COPIES).dropDuplicates([compare.HASH]).join(counts, compare.HASH)
            order = [f"c{k}" for k in (*shape.key, *range(len(shape.schema)))]
            shown = rows.orderBy(*order).limit(samples).drop(compare.HASH).toArrow()
        finally:
            counts.unpersist()
        shown = shown.select([COPIES, *(f"c{i}" for i in range(len(shape.schema)))])
        return int(total[0] or 0) if total else 0, shown.rename_columns([COPIES, *shape.schema.names])

    def differing(self, key: Sequence[str], buckets: int) -> tuple[DataFrame, DataFrame, Shape]:
        """The rows of both in the buckets that differ: `BUCKET`, `HASH`, then the columns as c0, c1, ...

        Both have the same columns."""
        shape, _ = compare.shape_of(*self.schemas, key, buckets)
        found = compare.apart(*self.sums(shape))
        types = f"{compare.BUCKET} int, {_ddl(shape)}"
        work = partial(shape.placed, buckets=found)
        left, right = (_placed(df, shape).mapInArrow(work, types) for df in (self.left, self.right))
        return left, right, shape

    def _near(self, shape: Shape, buckets: Sequence[int]) -> tuple[DataFrame, DataFrame]:
        work = partial(shape.named, buckets=buckets)
        left, right = (_placed(df, shape).mapInArrow(work, _ddl(shape)) for df in (self.left, self.right))
        return left, right


def _ddl(shape: Shape) -> str:
    types = ", ".join(f"c{i} {spark_type(f.type)}" for i, f in enumerate(shape.schema))
    return f"{compare.HASH} bigint, {types}"


def _schema(df: DataFrame) -> pa.Schema:
    return pa.schema([pa.field(f.name, arrow_type(f.dataType.simpleString())) for f in df.schema])


def _placed(df: DataFrame, shape: Shape) -> DataFrame:
    """The columns of a shape under plain names: `mapInArrow` cannot handle dots and back quotes."""
    return df.select(*map(col, shape.schema.names)).toDF(*[f"c{i}" for i in range(len(shape.schema))])
