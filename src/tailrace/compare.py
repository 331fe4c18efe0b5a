"""Two sides of a table, compared by counts and checksums per bucket of keys, row by row where they differ."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .apply.fold import col
from .change import Relation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_CHANGE = "_change"


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
    found, differing = _by_bucket(left, right, key, buckets)
    count, some = _rows_apart(left, right, key, buckets, differing, samples) if differing else (0, [])
    return TableResult(
        table,
        not differing and not words,
        sum(r["rows"] or 0 for r in found),
        sum(r["rows2"] or 0 for r in found),
        len(found),
        len(differing),
        count,
        some,
        "; ".join(words) or None,
        overlaid,
        round(time.monotonic() - began, 3),
    )


def differing(left: DataFrame, right: DataFrame, key: Sequence[str], buckets: int) -> list[int]:
    """The buckets in which two sides with the same columns differ."""
    return _by_bucket(left, right, key, buckets)[1]


def _by_bucket(
    left: DataFrame, right: DataFrame, key: Sequence[str], buckets: int
) -> tuple[list[Row], list[int]]:
    """Rows and checksums of each bucket on both sides, and the buckets where they differ."""
    both = _sums(left, key, buckets).join(
        _sums(right, key, buckets).withColumnsRenamed({"rows": "rows2", "sum": "sum2"}),
        "bucket",
        "full_outer",
    )
    # at most `buckets` rows, whatever the size of the table
    found = both.collect()
    return found, [r["bucket"] for r in found if (r["rows"], r["sum"]) != (r["rows2"], r["sum2"])]


def bucket(key: Sequence[str], buckets: int) -> Column:
    """The bucket of a row."""
    from pyspark.sql import functions as F

    return F.pmod(F.xxhash64(*map(col, key)), F.lit(buckets)).cast("int")


def row_hash(columns: Sequence[str]) -> Column:
    """A hash of a whole row that tells NULL from every value and does not let columns trade places."""
    from pyspark.sql import functions as F

    nulls = F.concat(*[F.when(col(c).isNull(), "1").otherwise("0") for c in columns])
    return F.xxhash64(*map(col, columns), nulls)


def _sums(rows: DataFrame, key: Sequence[str], buckets: int) -> DataFrame:
    from pyspark.sql import functions as F

    hashed = row_hash(rows.columns).cast("decimal(38,0)")
    return rows.groupBy(bucket(key, buckets).alias("bucket")).agg(
        F.count(F.lit(1)).alias("rows"), F.sum(hashed).alias("sum")
    )


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
