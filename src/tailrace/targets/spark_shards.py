"""Folds the changes of a DataFrame in shards: for queries that Spark's SQL answers.

All of it is per key: the changes of a key are in one shard, and so are keys that changes of keys link. The
existing rows under the changes' keys travel with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import ADD, KEPT, MASK, OP, OPER, SEQ, TAKE, one, typed
from ..engine.linked import linked
from ..engine.null_keys import null_key
from ..engine.shard import Shard
from ..execution import over_rows
from ..model.change import BEFORE, UPDATE, Relation
from ..model.types import arrow_type, schema_of
from .images import col
from .plans import UNKNOWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW = 50_000
"""Up to so many changes are one shard, without a shuffle."""
BROADCAST = 500_000
"""Up to so many small rows are sent to every task instead of shuffling the other side."""
ROWS, MEMORY = 500_000, 1 << 30
"""About how many changes a shard has at most, and the memory that one may take where nothing else is said."""
_BATCH = 1 << 16
"""Rows that go back to Spark at a time."""
_UNKNOWN = 1 << 50
"""Spark's word for the size of rows that it knows nothing of is larger."""
_GROWS = 16
"""About so many times what changes take in files they take in memory while they are decided."""
_AT, _KEY, _LEAST = "header__at", "header__linked", "header__least"
_EXTRAS = {MASK: pa.binary()}
_IMAGE = {OP: "string", KEPT: "string"}


def sharded(
    rows: DataFrame, key: Sequence[str], counts: Mapping[str, int], *, links: bool, memory: int | None = None
) -> DataFrame:
    """Rows in partitions that are shards.

    Args:
        rows: `SEQ`, `OPER` and the key columns; rows of the target have an empty `SEQ`.
        key: by which columns rows belong together.
        counts: as in `TableBatch.counts`.
        links: whether an update may link its old key and its new one.
        memory: about how many bytes of memory a shard may take; None: `MEMORY`. Changes of linked keys stay
            together, however many they are.
    """
    from pyspark.sql import functions as F

    shards = -(-_bytes(rows) * _GROWS // (memory or MEMORY))
    many = sum(counts.get(k, 0) for k in ("I", "U", "D"))
    if many <= FEW and counts != UNKNOWN and shards <= 1:
        return rows.coalesce(1)
    spark = rows.sparkSession
    lanes = max(spark.sparkContext.defaultParallelism, many // ROWS, shards)
    if counts == UNKNOWN:
        lanes = max(lanes, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    at = rows.withColumn(_AT, F.xxhash64(*map(col, key)))
    if links:
        least = small(_links(at), many).withColumnsRenamed({"key": _KEY, "least": _LEAST})
        at = at.join(least, col(_AT) == col(_KEY), "left")
        at = at.withColumn(_AT, F.coalesce(col(_LEAST), col(_AT))).drop(_KEY, _LEAST)
    return at.repartitionById(lanes, F.pmod(col(_AT), F.lit(lanes)).cast("int")).drop(_AT)


def theirs(rows: DataFrame) -> DataFrame:
    """Rows of the target, to be put next to changes."""
    from pyspark.sql import functions as F

    return rows.withColumns({SEQ: F.lit(""), OPER: F.lit("")})


def small(df: DataFrame, rows: int) -> DataFrame:
    """Rows to be joined with all changes: sent to every task while they are few."""
    from pyspark.sql import functions as F

    return F.broadcast(df) if rows <= BROADCAST else df


@dataclass(frozen=True)
class ShardTask:
    """Folds a shard: gives what remains of its changes, see `Shard.images`.

    Attributes:
        relation: the layout of the rows.
        ordinals: see `Shard`.
    """

    relation: Relation
    ordinals: tuple[int, ...]

    def over(
        self, rows: DataFrame, counts: Mapping[str, int], *, links: bool, memory: int | None
    ) -> DataFrame:
        """What it gives of all shards of rows, see `sharded`."""
        kinds = self._kinds
        shards = sharded(rows, self._names, counts, links=links, memory=memory)
        made = over_rows(shards, self, ", ".join(f"r{i} {kind}" for i, kind in enumerate(kinds.values())))
        return made.toDF(*kinds)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if (shard := self.shard(batches)) is None:
            return
        if (seq := shard.changes.first_bad) is not None:
            raise null_key(self.relation.table, self.relation.key, seq)
        yield from self._given(shard.images())

    def shard(self, batches: Iterable[pa.RecordBatch]) -> Shard | None:
        """A shard of rows in any order; None: it has no changes."""
        held = list(batches)
        if not held:
            return None
        schema, kinds = schema_of(self.relation.columns), {SEQ: pa.string(), OPER: pa.string(), **_EXTRAS}
        have = [pa.field(n, t) for n, t in kinds.items() if n in held[0].schema.names]
        wanted = pa.schema([*have, *schema])
        rows = pa.Table.from_batches([typed(b, wanted) for b in held], wanted)
        existing = pc.equal(rows[SEQ], "")
        mine = rows.filter(pc.invert(existing))
        if not mine.num_rows:
            return None
        return Shard.of(mine, rows.filter(existing), tuple(self.relation.key), schema, self.ordinals)

    @property
    def _names(self) -> list[str]:
        """The columns by which rows belong together."""
        return self.relation.key or [c.name for c in self.relation.columns]

    @property
    def _kinds(self) -> dict[str, str]:
        """The columns that it gives, and their Spark SQL types."""
        left = _IMAGE if self.relation.key else {TAKE: "bigint", ADD: "bigint"}
        return {**left, **{c.name: c.type for c in self.relation.columns}}

    def _given(self, rows: pa.Table) -> list[pa.RecordBatch]:
        made = [rows[n].cast(arrow_type(kind)) for n, kind in self._kinds.items()]
        return list(pa.table(made, [f"r{i}" for i in range(len(made))]).to_batches(_BATCH))


def _bytes(rows: DataFrame) -> int:
    """About how many bytes rows take in the files that they are read from; 0: not known. Spark says of a join
    that it takes the product of its sides: what these read together bounds it."""
    plan = rows._jdf.queryExecution().optimizedPlan()
    leaves = plan.collectLeaves()
    sizes = [int(leaves.apply(i).stats().sizeInBytes()) for i in range(leaves.size())]
    read = sum(size for size in sizes if size < _UNKNOWN)
    found = int(plan.stats().sizeInBytes())
    return min(found, read) if found < _UNKNOWN else read


def _links(rows: DataFrame) -> DataFrame:
    """Hashes of linked keys (`key`) and the least of those that each is linked to (`least`). Two keys with
    one hash are linked as well, which does no harm."""
    from pyspark.sql import functions as F

    both = rows.where(col(OPER).isin(BEFORE, UPDATE)).groupBy(SEQ)
    old, new = (F.max(F.when(col(OPER) == oper, col(_AT))).alias(oper) for oper in (BEFORE, UPDATE))
    pairs = both.agg(old, new).where(col(BEFORE) != col(UPDATE)).select(BEFORE, UPDATE)
    return over_rows(pairs.coalesce(1), _link, "key bigint, least bigint")


def _link(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    wanted = pa.schema([(n, pa.int64()) for n in (BEFORE, UPDATE)])
    rows = pa.Table.from_batches([typed(b, wanted) for b in batches], wanted)
    keys, least = linked(*(np.asarray(one(rows[n]).to_numpy(), np.int64) for n in (BEFORE, UPDATE)))
    yield pa.record_batch({"key": keys, "least": least})
