"""Spreads the changes of a batch over tasks, so that the engine decides each shard by itself.

All of it is per key: the changes of a key are in one shard, and so are keys that changes of keys link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import OPER, SEQ, one, typed
from ..engine.linked import linked
from ..engine.source import ordered
from ..model.change import BEFORE, UPDATE
from .fold import col
from .outcomes import small
from .plan import UNKNOWN
from .targets.delta_local import mapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW = 50_000
"""Up to so many changes are one shard, without a shuffle."""
_ROWS = 500_000
"""About how many changes a shard has at most, where there are as many keys."""
_AT, _KEY, _LEAST = "header__at", "header__linked", "header__least"


def sharded(rows: DataFrame, key: Sequence[str], counts: Mapping[str, int], *, links: bool) -> DataFrame:
    """Rows in partitions that are shards.

    Args:
        rows: `SEQ`, `OPER` and the key columns; rows of the target have an empty `SEQ`.
        key: by which columns rows belong together.
        counts: as in `TableBatch.counts`.
        links: whether an update may link its old key and its new one.
    """
    from pyspark.sql import functions as F

    many = sum(counts.get(k, 0) for k in ("I", "U", "D"))
    if many <= FEW and counts != UNKNOWN:
        return rows.coalesce(1)
    lanes = max(rows.sparkSession.sparkContext.defaultParallelism, many // _ROWS)
    if counts == UNKNOWN:
        lanes = max(lanes, int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1))
    at = rows.withColumn(_AT, F.xxhash64(*map(col, key)))
    if links:
        least = small(_links(at), many).withColumnsRenamed({"key": _KEY, "least": _LEAST})
        at = at.join(least, col(_AT) == col(_KEY), "left")
        at = at.withColumn(_AT, F.coalesce(col(_LEAST), col(_AT))).drop(_KEY, _LEAST)
    return at.repartitionById(lanes, F.pmod(col(_AT), F.lit(lanes)).cast("int")).drop(_AT)


def theirs(rows: DataFrame) -> DataFrame:
    """Rows of the target, to be put beside changes."""
    from pyspark.sql import functions as F

    return rows.withColumns({SEQ: F.lit(""), OPER: F.lit("")})


def parts(
    batches: Iterable[pa.RecordBatch], data: pa.Schema, extra: Mapping[str, pa.DataType]
) -> tuple[pa.Table, pa.Table] | None:
    """The changes of a shard, in order, and the target's rows; None when it has no changes.

    `data`: the columns that both have; `extra`: others that may be there.
    """
    held = list(batches)
    if not held:
        return None
    kinds = {SEQ: pa.string(), OPER: pa.string(), **extra}
    have = [pa.field(n, t) for n, t in kinds.items() if n in held[0].schema.names]
    wanted = pa.schema([*have, *data])
    rows = pa.Table.from_batches([typed(b, wanted) for b in held], wanted)
    of_target = pc.equal(rows[SEQ], "")
    mine = rows.filter(pc.invert(of_target))
    return (ordered(mine), rows.filter(of_target)) if mine.num_rows else None


def _links(rows: DataFrame) -> DataFrame:
    """Hashes of linked keys (`key`) and the least of those that each is linked to (`least`). Two keys with
    one hash are linked as well, which does no harm."""
    from pyspark.sql import functions as F

    both = rows.where(col(OPER).isin(BEFORE, UPDATE)).groupBy(SEQ)
    old, new = (F.max(F.when(col(OPER) == oper, col(_AT))).alias(oper) for oper in (BEFORE, UPDATE))
    pairs = both.agg(old, new).where(col(BEFORE) != col(UPDATE)).select(BEFORE, UPDATE)
    return mapped(pairs.coalesce(1), _link, "key bigint, least bigint")


def _link(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    wanted = pa.schema([(n, pa.int64()) for n in (BEFORE, UPDATE)])
    rows = pa.Table.from_batches([typed(b, wanted) for b in batches], wanted)
    keys, least = linked(*(np.asarray(one(rows[n]).to_numpy(), np.int64) for n in (BEFORE, UPDATE)))
    yield pa.record_batch({"key": keys, "least": least})
