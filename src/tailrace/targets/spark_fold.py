"""Folds all changes of a key into one row, the key's resulting image; tasks fold one shard each.

Keys must be unique after every single change. A key that the source checks only at the end of a transaction
(PostgreSQL's deferrable primary keys under REPLICA IDENTITY FULL) must not be used as row key.
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
"""At most this number of changes is one shard, without a shuffle."""
BROADCAST = 500_000
"""At most this number of rows is sent to every task, instead of shuffling the other side of a join."""
ROWS, MEMORY = 500_000, 1 << 30
"""The approximate maximum number of changes of a shard, and its default memory."""
_BATCH = 1 << 16
"""The number of rows that are returned to Spark together."""
_UNKNOWN = 1 << 50
"""Spark's estimate of an unknown size is larger."""
_GROWS = 16
"""The approximate ratio of the memory that changes need while they are decided to their bytes in files."""
_AT, _KEY, _LEAST = "header__at", "header__linked", "header__least"
_EXTRAS = {MASK: pa.binary()}
_IMAGE = {OP: "string", KEPT: "string"}


def sharded(
    rows: DataFrame, key: Sequence[str], counts: Mapping[str, int], *, links: bool, memory: int | None = None
) -> DataFrame:
    """Partitions rows into shards.

    Args:
        rows: `SEQ`, `OPER` and the key columns; rows of the target have an empty `SEQ`.
        key: the key columns; rows with the same key are in the same shard.
        counts: as in `ChangeBatch.counts`.
        links: whether updates may change a key, so that the old and the new key are in the same shard.
        memory: the approximate memory that a shard may use; None: `MEMORY`. All changes of linked keys are in
            one shard, even if they need more.
    """
    from pyspark.sql import functions as F

    shards = -(-_bytes(rows) * _GROWS // (memory or MEMORY))
    many = sum(counts.get(k, 0) for k in ("I", "U", "D"))
    if many <= FEW and counts != UNKNOWN and shards <= 1:
        return rows.coalesce(1)
    spark = rows.sparkSession
    partitions = max(spark.sparkContext.defaultParallelism, many // ROWS, shards)
    if counts == UNKNOWN:
        partitions = max(partitions, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    at = rows.withColumn(_AT, F.xxhash64(*map(col, key)))
    if links:
        least = broadcast_small(_links(at), many).withColumnsRenamed({"key": _KEY, "least": _LEAST})
        at = at.join(least, col(_AT) == col(_KEY), "left")
        at = at.withColumn(_AT, F.coalesce(col(_LEAST), col(_AT))).drop(_KEY, _LEAST)
    return at.repartitionById(partitions, F.pmod(col(_AT), F.lit(partitions)).cast("int")).drop(_AT)


def as_target_rows(rows: DataFrame) -> DataFrame:
    """Marks rows as rows of the target, for a union with changes."""
    from pyspark.sql import functions as F

    return rows.withColumns({SEQ: F.lit(""), OPER: F.lit("")})


def broadcast_small(df: DataFrame, rows: int) -> DataFrame:
    """Returns rows for a join with all changes; a small number of rows is sent to every task."""
    from pyspark.sql import functions as F

    return F.broadcast(df) if rows <= BROADCAST else df


@dataclass(frozen=True)
class FoldTask:
    """Folds a shard, and returns its resulting images, see `Shard.images`.

    Attributes:
        relation: the layout of the rows.
        ordinals: see `Shard`.
    """

    relation: Relation
    ordinals: tuple[int, ...]

    def over(
        self, rows: DataFrame, counts: Mapping[str, int], *, links: bool, memory: int | None
    ) -> DataFrame:
        """Returns the resulting images of all shards of rows, see `sharded`."""
        kinds = self._kinds
        shards = sharded(rows, self._names, counts, links=links, memory=memory)
        shape = ", ".join(f"r{i} {kind}" for i, kind in enumerate(kinds.values()))
        return over_rows(shards, self, shape).toDF(*kinds)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if (shard := self.shard(batches)) is None:
            return
        if (seq := shard.changes.first_bad) is not None:
            raise null_key(self.relation.table, self.relation.key, seq)
        yield from self._output(shard.images())

    def shard(self, batches: Iterable[pa.RecordBatch]) -> Shard | None:
        """Returns a shard from rows in any order; None if it has no changes."""
        read = list(batches)
        if not read:
            return None
        schema, kinds = schema_of(self.relation.columns), {SEQ: pa.string(), OPER: pa.string(), **_EXTRAS}
        have = [pa.field(n, t) for n, t in kinds.items() if n in read[0].schema.names]
        wanted = pa.schema([*have, *schema])
        rows = pa.Table.from_batches([typed(b, wanted) for b in read], wanted)
        existing = pc.equal(rows[SEQ], "")
        changes = rows.filter(pc.invert(existing))
        if not changes.num_rows:
            return None
        return Shard.of(changes, rows.filter(existing), tuple(self.relation.key), schema, self.ordinals)

    @property
    def _names(self) -> list[str]:
        """The columns that identify a row."""
        return self.relation.key or [c.name for c in self.relation.columns]

    @property
    def _kinds(self) -> dict[str, str]:
        """The columns of the result, and their Spark SQL types."""
        extra = _IMAGE if self.relation.key else {TAKE: "bigint", ADD: "bigint"}
        return {**extra, **{c.name: c.type for c in self.relation.columns}}

    def _output(self, rows: pa.Table) -> list[pa.RecordBatch]:
        columns = [rows[n].cast(arrow_type(kind)) for n, kind in self._kinds.items()]
        return list(pa.table(columns, [f"r{i}" for i in range(len(columns))]).to_batches(_BATCH))


def _bytes(rows: DataFrame) -> int:
    """Returns the approximate bytes of rows in the files that they are read from; 0 if they are not known.

    Spark estimates the size of a join as the product of its sides, so the bytes of all files are the limit.
    """
    plan = rows._jdf.queryExecution().optimizedPlan()
    leaves = plan.collectLeaves()
    sizes = [int(leaves.apply(i).stats().sizeInBytes()) for i in range(leaves.size())]
    read = sum(size for size in sizes if size < _UNKNOWN)
    found = int(plan.stats().sizeInBytes())
    return min(found, read) if found < _UNKNOWN else read


def _links(rows: DataFrame) -> DataFrame:
    """Returns the hashes of linked keys (`key`), and for each the smallest hash that it is linked to
    (`least`). Keys with the same hash are linked as well, which does no harm."""
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


RowsByKey = Callable[["DataFrame"], "DataFrame"]
"""Returns the target's rows with the given keys (key columns), and possibly more rows."""


def fold(
    changes: ChangeTable,
    batch: ChangeBatch,
    *,
    after: int = -1,
    truncate: str | None = None,
    read_rows: RowsByKey | None = None,
    memory: int | None = None,
) -> FoldedChanges:
    """Returns the resulting image of each key of a batch whose changes all take effect.

    Args:
        changes: the changes.
        batch: their layout and counts.
        after: changes up to this number are skipped.
        truncate: the `change_seq` of the last truncate after `after`; None if the batch has no truncate.
        read_rows: reads the target's rows before the batch, if images of key changes leave columns out. None:
            the target has no rows.
        memory: see `sharded`.
    """
    relation = batch.relation
    if batch.may_contain("T"):
        changes = changes.with_df(changes.df.where(col(changes.header("change_oper")) != TRUNCATE))
        changes = changes if truncate is None else since(changes, truncate)
    sparse, moves = bool(relation.key) and batch.may_contain("absent"), batch.may_contain("key_changes")
    rows = images(changes, relation, after=after, extras=masked(changes) if sparse else {})
    if relation.key and not sparse and not moves:
        rows = rows.where(col(OPER) != BEFORE)
    replaces, names = truncate is not None, [c.name for c in relation.columns]
    if not relation.key and not batch.may_contain("U", "D"):
        return FoldedChanges(rows.select(*map(col, names)), (), replaces)
    keys = rows.select(*map(col, relation.key))
    if sparse and moves and read_rows is not None and not replaces:
        rows = rows.unionByName(_old_rows(rows, batch, read_rows), allowMissingColumns=True)
    task = FoldTask(relation, ordinals(changes.df.columns, names))
    links = bool(relation.key) and moves
    df = task.over(rows, batch.counts, links=links, memory=memory)
    if not relation.key:
        return FoldedChanges(df, (TAKE, ADD), replaces)
    extra = (OP, KEPT) if sparse and not replaces else (OP,)
    return FoldedChanges(df.select(*extra, *map(col, names)), extra, replaces, keys)


def _old_rows(rows: DataFrame, batch: ChangeBatch, read_rows: RowsByKey) -> DataFrame:
    """Returns the target's rows with old keys, which have the columns that images of key changes leave
    out."""
    relation = batch.relation
    keys = rows.where(col(OPER) == BEFORE).select(*map(col, relation.key))
    found = shaped(read_rows(keys), relation)
    keys = keys if batch.counts == UNKNOWN else broadcast_small(keys, sum(batch.counts.values()))
    return as_target_rows(found.join(keys, relation.key, "left_semi"))


def copies(rows: DataFrame | None, folded: FoldedChanges, names: list[str]) -> DataFrame:
    """Returns one row per different row of a keyless table: the columns, `HAVE`, `TAKE`, `ADD`, and `LEFT`,
    the resulting number of copies (all bigint). NULLs compare equal. `rows`: the target's rows; None: it has
    none.
    """
    from pyspark.sql import functions as F

    data, numbers = list(map(col, names)), (HAVE, TAKE, ADD)
    one, none = (F.lit(n).cast("bigint") for n in (1, 0))
    taken = col(TAKE) if TAKE in folded.extra else none.alias(TAKE)
    changed = folded.df.select(*data, none.alias(HAVE), taken, _added(folded))
    if rows is not None and not folded.replaces:
        have = rows.select(*data, one.alias(HAVE), none.alias(TAKE), none.alias(ADD))
        changed = changed.unionByName(have)
    summed = changed.groupBy(*data).agg(*(F.sum(n).alias(n) for n in numbers))
    left = F.greatest(col(HAVE) - col(TAKE), none) + col(ADD)
    return summed.withColumn(LEFT, left)


def repeated(many: DataFrame, names: list[str]) -> DataFrame:
    """Returns the rows of a keyless table, each with `LEFT` copies."""
    from pyspark.sql import functions as F

    each = F.explode(F.array_repeat(F.lit(0), col(LEFT).cast("int"))).alias(LEFT)
    return many.select(*map(col, names), each).drop(LEFT)


def _added(folded: FoldedChanges) -> Column:
    from pyspark.sql import functions as F

    return col(ADD) if ADD in folded.extra else F.lit(1).cast("bigint").alias(ADD)
