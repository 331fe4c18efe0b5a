"""Fold: all changes of a key become one row, what the key's row is in the end; the engine does it, in shards.

This needs keys that are unique after every single change. A key that the source checks only at the end of a
transaction (PostgreSQL's deferrable primary keys under REPLICA IDENTITY FULL) may not be used as row key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.columns import ADD, HAVE, KEPT, LEFT, MASK, OP, OPER, SEQ, TAKE, one, typed
from ..engine.linked import linked
from ..engine.null_keys import null_key
from ..engine.shard import Shard
from ..execution import over_rows
from ..model.change import BEFORE, TRUNCATE, UPDATE, ChangeTable, Relation
from ..model.types import arrow_type, schema_of
from .change_batch import ChangeBatch
from .images import col, images, masked, ordinals, shaped, since
from .plans import UNKNOWN, FoldedChanges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
        counts: as in `ChangeBatch.counts`.
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
        least = broadcast_small(_links(at), many).withColumnsRenamed({"key": _KEY, "least": _LEAST})
        at = at.join(least, col(_AT) == col(_KEY), "left")
        at = at.withColumn(_AT, F.coalesce(col(_LEAST), col(_AT))).drop(_KEY, _LEAST)
    return at.repartitionById(lanes, F.pmod(col(_AT), F.lit(lanes)).cast("int")).drop(_AT)


def as_target_rows(rows: DataFrame) -> DataFrame:
    """Rows of the target, to be put next to changes."""
    from pyspark.sql import functions as F

    return rows.withColumns({SEQ: F.lit(""), OPER: F.lit("")})


def broadcast_small(df: DataFrame, rows: int) -> DataFrame:
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


Rows = Callable[["DataFrame"], "DataFrame"]
"""Given keys (columns: the key's): the target's rows under them, or more of its rows."""


def fold(
    changes: ChangeTable,
    batch: ChangeBatch,
    *,
    after: int = -1,
    truncate: str | None = None,
    there: Rows | None = None,
    memory: int | None = None,
) -> FoldedChanges:
    """Returns the resulting image of each key of a batch whose changes all take effect.

    Args:
        changes: the changes.
        batch: their layout and counts.
        after: those up to this number are skipped.
        truncate: the `change_seq` of the last truncate after that; None: there is none.
        there: the target's rows before the batch, asked for when images of rows that move lack columns.
            None: it has none.
        memory: see `sharded`.
    """
    relation = batch.relation
    if batch.may("T"):
        changes = changes.with_df(changes.df.where(col(changes.header("change_oper")) != TRUNCATE))
        changes = changes if truncate is None else since(changes, truncate)
    sparse, moves = bool(relation.key) and batch.may("absent"), batch.may("key_changes")
    rows = images(changes, relation, after=after, extras=masked(changes) if sparse else {})
    if relation.key and not sparse and not moves:
        rows = rows.where(col(OPER) != BEFORE)
    replaces, names = truncate is not None, [c.name for c in relation.columns]
    if not relation.key and not batch.may("U", "D"):
        return FoldedChanges(rows.select(*map(col, names)), (), replaces)
    keys = rows.select(*map(col, relation.key))
    if sparse and moves and there is not None and not replaces:
        rows = rows.unionByName(_moved(rows, batch, there), allowMissingColumns=True)
    task = ShardTask(relation, ordinals(changes.df.columns, names))
    links = bool(relation.key) and moves
    df = task.over(rows, batch.counts, links=links, memory=memory)
    if not relation.key:
        return FoldedChanges(df, (TAKE, ADD), replaces)
    extra = (OP, KEPT) if sparse and not replaces else (OP,)
    return FoldedChanges(df.select(*extra, *map(col, names)), extra, replaces, keys)


def _moved(rows: DataFrame, batch: ChangeBatch, there: Rows) -> DataFrame:
    """The target's rows under old keys: they give what images of key changes lack."""
    relation = batch.relation
    keys = rows.where(col(OPER) == BEFORE).select(*map(col, relation.key))
    found = shaped(there(keys), relation)
    keys = keys if batch.counts == UNKNOWN else broadcast_small(keys, sum(batch.counts.values()))
    return as_target_rows(found.join(keys, relation.key, "left_semi"))


def copies(there: DataFrame | None, folded: FoldedChanges, names: list[str]) -> DataFrame:
    """Of a table without key one row a different row: the columns, `HAVE`, `TAKE`, `ADD`, and in `LEFT` how
    many copies there are then (all bigint). NULLs compare equal, and one row of equals is as good as another.
    """
    from pyspark.sql import functions as F

    data, numbers = list(map(col, names)), (HAVE, TAKE, ADD)
    one, none = (F.lit(n).cast("bigint") for n in (1, 0))
    taken = col(TAKE) if TAKE in folded.extra else none.alias(TAKE)
    changed = folded.df.select(*data, none.alias(HAVE), taken, _added(folded))
    if there is not None and not folded.replaces:
        have = there.select(*data, one.alias(HAVE), none.alias(TAKE), none.alias(ADD))
        changed = changed.unionByName(have)
    summed = changed.groupBy(*data).agg(*(F.sum(n).alias(n) for n in numbers))
    left = F.greatest(col(HAVE) - col(TAKE), none) + col(ADD)
    return summed.withColumn(LEFT, left)


def repeated(many: DataFrame, names: list[str]) -> DataFrame:
    """The rows of such a table: each as often as `LEFT` says."""
    from pyspark.sql import functions as F

    each = F.explode(F.array_repeat(F.lit(0), col(LEFT).cast("int"))).alias(LEFT)
    return many.select(*map(col, names), each).drop(LEFT)


def _added(folded: FoldedChanges) -> Column:
    from pyspark.sql import functions as F

    return col(ADD) if ADD in folded.extra else F.lit(1).cast("bigint").alias(ADD)
