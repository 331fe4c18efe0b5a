"""Fold: all changes of a key become one row, what the key's row is in the end; the engine does it, in shards.

This needs keys that are unique after every single change. A key that the source checks only at the end of a
transaction (PostgreSQL's deferrable primary keys under REPLICA IDENTITY FULL) may not be used as row key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engine.columns import ADD, HAVE, KEPT, LEFT, OP, OPER, TAKE
from ..model.change import BEFORE, TRUNCATE
from .images import col, images, masked, ordinals, shaped, since
from .plans import UNKNOWN, Folded, TableBatch
from .spark_shards import ShardTask, small, theirs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Rows = Callable[["DataFrame"], "DataFrame"]
"""Given keys (columns: the key's): the target's rows under them, or more of its rows."""


def fold(
    batch: TableBatch,
    *,
    after: int = -1,
    truncate: str | None = None,
    there: Rows | None = None,
    memory: int | None = None,
) -> Folded:
    """Returns the resulting image of each key of a batch whose changes all take effect.

    Args:
        batch: the changes.
        after: those up to this number are skipped.
        truncate: the `change_seq` of the last truncate after that; None: there is none.
        there: the target's rows before the batch, asked for when images of rows that move lack columns.
            None: it has none.
        memory: see `sharded`.
    """
    relation, changes = batch.relation, batch.changes
    if batch.may("T"):
        changes = changes.with_df(changes.df.where(col(changes.header("change_oper")) != TRUNCATE))
        changes = changes if truncate is None else since(changes, truncate)
    sparse, moves = bool(relation.key) and batch.may("absent"), batch.may("key_changes")
    rows = images(changes, relation, after=after, extras=masked(changes) if sparse else {})
    if relation.key and not sparse and not moves:
        rows = rows.where(col(OPER) != BEFORE)
    replaces, names = truncate is not None, [c.name for c in relation.columns]
    if not relation.key and not batch.may("U", "D"):
        return Folded(rows.select(*map(col, names)), (), replaces)
    keys = rows.select(*map(col, relation.key))
    if sparse and moves and there is not None and not replaces:
        rows = rows.unionByName(_moved(rows, batch, there), allowMissingColumns=True)
    task = ShardTask(relation, ordinals(changes.df.columns, names))
    links = bool(relation.key) and moves
    df = task.over(rows, batch.counts, links=links, memory=memory)
    if not relation.key:
        return Folded(df, (TAKE, ADD), replaces)
    extra = (OP, KEPT) if sparse and not replaces else (OP,)
    return Folded(df.select(*extra, *map(col, names)), extra, replaces, keys)


def _moved(rows: DataFrame, batch: TableBatch, there: Rows) -> DataFrame:
    """The target's rows under old keys: they give what images of key changes lack."""
    relation = batch.relation
    keys = rows.where(col(OPER) == BEFORE).select(*map(col, relation.key))
    found = shaped(there(keys), relation)
    keys = keys if batch.counts == UNKNOWN else small(keys, sum(batch.counts.values()))
    return theirs(found.join(keys, relation.key, "left_semi"))


def copies(there: DataFrame | None, folded: Folded, names: list[str]) -> DataFrame:
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


def _added(folded: Folded) -> Column:
    from pyspark.sql import functions as F

    return col(ADD) if ADD in folded.extra else F.lit(1).cast("bigint").alias(ADD)
