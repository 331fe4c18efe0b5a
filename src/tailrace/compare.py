"""Two sides of a table, compared by counts and checksums per bucket of keys, row by row where they differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from .apply.fold import col
from .change import Relation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CHANGE = "_change"

Sums = dict[int, tuple[int, Decimal]]
"""Bucket -> its rows, and the sum of their hashes."""


@dataclass(frozen=True)
class TableResult:
    """What validation found for one table.

    Attributes:
        equal: same columns, same rows.
        source_rows, target_rows: counts at the common position.
        buckets, differing_buckets: how many buckets of keys were compared, and how many differ.
        differing_rows: rows on one side only (a changed row counts once on each side).
        samples: some of them: {"side": "source" | "target", column: text, ...}.
        columns: a sentence when the columns differ.
        overlaid: whether stored changes had to be laid over the target's version to reach the position.
    """

    table: str
    equal: bool
    source_rows: int
    target_rows: int
    buckets: int
    differing_buckets: int
    differing_rows: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)
    columns: str | None = None
    overlaid: bool = False
    seconds: float = 0.0


def compare(
    table: str,
    relation: Relation,
    left: DataFrame,
    right: DataFrame,
    overlaid: bool,
    buckets: int,
    samples: int,
) -> TableResult:
    """Compares a table's source rows (`left`) with its target's."""
    began = time.monotonic()
    shared = [c for c in left.columns if c in right.columns]
    only_left = [c for c in left.columns if c not in shared]
    only_right = [c for c in right.columns if c not in shared]
    words = [f"only in the source: {', '.join(only_left)}"] if only_left else []
    words += [f"only in the target: {', '.join(only_right)}"] if only_right else []
    left, right = left.select(*map(col, shared)), right.select(*map(col, shared))
    key = [k for k in relation.key if k in shared] or shared
    sources, targets = _by_bucket(left, right, key, buckets)
    differing = _apart(sources, targets)
    count, some = _rows_apart(left, right, key, buckets, differing, samples) if differing else (0, [])
    return TableResult(
        table,
        not differing and not words,
        sum(rows for rows, _ in sources.values()),
        sum(rows for rows, _ in targets.values()),
        len(sources.keys() | targets.keys()),
        len(differing),
        count,
        some,
        "; ".join(words) or None,
        overlaid,
        round(time.monotonic() - began, 3),
    )


def differing(left: DataFrame, right: DataFrame, key: Sequence[str], buckets: int) -> list[int]:
    """The buckets in which two sides with the same columns differ."""
    return _apart(*_by_bucket(left, right, key, buckets))


def _apart(left: Sums, right: Sums) -> list[int]:
    return sorted(b for b in left.keys() | right.keys() if left.get(b) != right.get(b))


def _by_bucket(left: DataFrame, right: DataFrame, key: Sequence[str], buckets: int) -> tuple[Sums, Sums]:
    """Rows and checksums of each bucket, on both sides."""
    from pyspark.sql import functions as F

    # One pass and one shuffle of a few rows for both sides, at most two rows a bucket, whatever their size.
    both = _hashed(left, key, buckets, 0).unionAll(_hashed(right, key, buckets, 1))
    found = both.groupBy("bucket", "side").agg(F.count("hash").alias("rows"), F.sum("hash").alias("sum"))
    sides: tuple[Sums, Sums] = {}, {}
    for row in found.collect():
        sides[row["side"]][row["bucket"]] = row["rows"], row["sum"]
    return sides


def bucket(key: Sequence[str], buckets: int) -> Column:
    """The bucket of a row."""
    from pyspark.sql import functions as F

    return F.pmod(F.xxhash64(*map(col, key)), F.lit(buckets)).cast("int")


def row_hash(columns: Sequence[str]) -> Column:
    """A hash of a whole row that tells NULL from every value and does not let columns trade places."""
    from pyspark.sql import functions as F

    nulls = F.concat(*[F.when(col(c).isNull(), "1").otherwise("0") for c in columns])
    return F.xxhash64(*map(col, columns), nulls)


def _hashed(rows: DataFrame, key: Sequence[str], buckets: int, side: int) -> DataFrame:
    """`bucket`, `side`, and `hash` of each row: hashed before the sides meet, which may differ in types."""
    from pyspark.sql import functions as F

    hashed = row_hash(rows.columns).cast("decimal(38,0)").alias("hash")
    return rows.select(bucket(key, buckets).alias("bucket"), F.lit(side).alias("side"), hashed)


def _rows_apart(
    left: DataFrame, right: DataFrame, key: Sequence[str], buckets: int, differing: list[int], samples: int
) -> tuple[int, list[dict[str, Any]]]:
    """Rows of differing buckets that are on one side more often than on the other."""
    from pyspark.sql import functions as F

    near = bucket(key, buckets).isin(differing)
    both = (
        left.where(near)
        .withColumn(_CHANGE, F.lit(1))
        .unionByName(right.where(near).withColumn(_CHANGE, F.lit(-1)))
    )
    apart = (
        both.groupBy(*map(col, left.columns)).agg(F.sum(_CHANGE).alias(_CHANGE)).where(F.col(_CHANGE) != 0)
    )
    apart = apart.persist()
    try:
        total = apart.agg(F.sum(F.abs(F.col(_CHANGE)))).first()
        shown = apart.orderBy(*map(col, key)).limit(samples).collect()
    finally:
        apart.unpersist()
    rows = [
        {
            "side": "source" if r[_CHANGE] > 0 else "target",
            **{c: None if r[c] is None else str(r[c]) for c in left.columns},
        }
        for r in shown
    ]
    return int(total[0] or 0) if total else 0, rows
