"""Fold: all changes of a key in a batch become one row, what the key's row is in the end.

Per key the last image wins; one window, no join (a task-local merge does the same with Arrow, in its task). A
key change needs no join either: its B row, which holds the old key and sorts directly before its U, counts as
a delete of that key. Chains and swaps of keys follow.
Images that do not carry every column are folded by the engine, in shards (`fold_tasks`).

This needs keys that are unique after every single change. A key that the source checks only at the end of a
transaction (PostgreSQL's deferrable primary keys under REPLICA IDENTITY FULL) may not be used as row key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..engine.columns import OP, OPER, SEQ, UPSERT
from ..engine.events import Bools
from ..engine.null_keys import null_key
from ..errors import ApplyError, causes
from ..model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE, ChangeTable, Relation
from .plan import UNKNOWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CARRIED = "header__carried"
NULL_KEY = "tailrace: NULL key at "
UNKNOWN_MATCH = "tailrace: criteria need a column that is not in the image at "
UNKNOWN_VALUE = "tailrace: an expression needs a column that is not in the image at "
_FULL = (
    "capture full images (PostgreSQL: REPLICA IDENTITY FULL), or let criteria and expressions read key "
    "columns alone"
)
LEFT_OUT = {
    UNKNOWN_MATCH: ("the row criteria need a column that an image leaves out", _FULL),
    UNKNOWN_VALUE: ("an expression of the mapping needs a column that an image leaves out", _FULL),
}
"""What jobs of a mapping fail with, the change sequence behind it -> what is told of it, and its hint."""
_SMALL = 50_000


@dataclass(frozen=True)
class Folded:
    """One row a key: `OP`, the data columns, and `KEPT` when `partial`.

    `replaces`: a truncate was among the changes, so nothing of the target before it remains.
    """

    df: DataFrame
    partial: bool = False
    replaces: bool = False


@dataclass(frozen=True)
class Images:
    """Change rows made ready: `SEQ`, `OPER`, the key and data columns in the relation's types, and, when
    some may be absent, `CARRIED` (as many characters as columns, `0` for an absent one; NULL: all there)."""

    df: DataFrame
    key: list[str]
    columns: list[str]
    replaces: bool = False


def col(name: str, of: str | None = None) -> Column:
    """A column by its exact name, whatever characters it has.

    >>> quote("a`b.c")
    '`a``b.c`'
    """
    from pyspark.sql import functions as F

    return F.col(f"{of}.{quote(name)}" if of else quote(name))


def quote(name: str) -> str:
    """A name in Spark's back quotes."""
    return "`" + name.replace("`", "``") + "`"


def images(
    changes: ChangeTable,
    relation: Relation,
    counts: Mapping[str, int] = UNKNOWN,
    *,
    after: int = -1,
    beside: Mapping[str, Column] | None = None,
    null_keys: bool = False,
) -> Images:
    """Change rows with numbers above `after`, in the relation's types, from the last truncate on; `beside`:
    more columns of them, by name.

    Finding the last truncate is a job of its own, run only when `counts` says there may be one. A row whose
    key is NULL makes the job that reads it fail (see `refused`), but with `null_keys`.
    """
    from pyspark.sql import functions as F

    df = changes.df
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    if after >= 0:
        df = df.where(F.substring(seq, 17, 19) > f"{after:019d}")
    replaces = False
    if counts.get("T"):
        last = df.where(oper == TRUNCATE).agg(F.max(seq)).first()
        if last is not None and last[0] is not None:
            df, replaces = df.where(seq > last[0]), True
        df = df.where(oper != TRUNCATE)
    have = set(df.columns)
    data = []
    for c in relation.columns:
        value = col(c.name) if c.name in have else F.lit(None)
        if c.key and not null_keys:
            value = F.coalesce(value, F.raise_error(F.concat(F.lit(NULL_KEY), seq)))
        data.append(value.cast(c.type).alias(c.name))
    extra = [_carried(changes, relation).alias(CARRIED)] if counts.get("absent") else []
    extra += [value.alias(name) for name, value in (beside or {}).items()]
    made = df.select(seq.alias(SEQ), oper.alias(OPER), *extra, *data)
    return Images(made, relation.key, [c.name for c in relation.columns], replaces)


def _carried(changes: ChangeTable, relation: Relation) -> Column:
    from pyspark.sql import functions as F

    from ..model.mask import is_set

    header = changes.header("column_mask")
    if header not in changes.df.columns:
        return F.lit(None).cast("string")
    have = set(changes.df.columns)
    bits = [
        F.when(is_set(col(header), changes.ordinal(c.name)), "1").otherwise("0")
        if c.name in have
        else F.lit("0")
        for c in relation.columns
    ]
    return F.when(col(header).isNotNull(), F.concat(*bits))


def carried_names(carried: pa.StringArray, columns: int) -> Bools:
    """Which columns each image carries, from `CARRIED`."""
    chars = carried.fill_null("1" * columns).cast(pa.binary(columns))
    held = np.frombuffer(chars.buffers()[1], np.uint8)[chars.offset * columns :]
    return np.asarray(held[: len(chars) * columns].reshape(len(chars), columns) == ord("1"), np.bool_)


def fold(made: Images, counts: Mapping[str, int] = UNKNOWN, target: DataFrame | None = None) -> Folded:
    """Folds the images of a table with a key.

    Args:
        made: from `images`.
        counts: as in `TableBatch.counts`.
        target: the target's rows before the batch, read only when key changes meet absent columns (None: it
            has none).
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if counts.get("absent"):
        from .fold_tasks import fold_partial

        return fold_partial(made, counts, target)
    # Also true of a batch that is small: one task then does all, without a shuffle.
    small = sum(counts.get(k, 0) for k in ("I", "U", "D")) <= _SMALL and counts is not UNKNOWN
    df = relevant(made, counts)
    df = df.coalesce(1) if small else df
    newest = Window.partitionBy(*map(col, made.key)).orderBy(col(SEQ).desc(), col(OPER).desc())
    last = df.withColumn("header__n", F.row_number().over(newest)).where("header__n = 1")
    return Folded(last.select(operation().alias(OP), *map(col, made.columns)), False, made.replaces)


def relevant(made: Images, counts: Mapping[str, int]) -> DataFrame:
    """The images that say what becomes of a key: B rows do when keys change, else they are passed over."""
    return made.df if counts.get("key_changes") else made.df.where(col(OPER) != BEFORE)


def operation() -> Column:
    """`OP` of the last image of a key."""
    from pyspark.sql import functions as F

    return F.when(col(OPER).isin(DELETE, BEFORE), DELETE).otherwise(UPSERT)


def weights(made: Images) -> DataFrame:
    """For tables without key: the data columns of every image and `header__net`, +1 or -1 copy."""
    from pyspark.sql import functions as F

    net = F.when(col(OPER).isin(INSERT, UPDATE), 1).otherwise(-1).cast("bigint")
    return made.df.select(*map(col, made.columns), net.alias("header__net"))


def refused(error: BaseException, table: str, key: Sequence[str]) -> ApplyError | None:
    """The ApplyError for a job that failed because a key was NULL, or because an image leaves out what a
    mapping needs; None for any other failure."""
    for mark, (what, hint) in LEFT_OUT.items():
        _, found, rest = str(error).partition(mark)
        if found:
            return ApplyError(what, where=f"{table}, change_seq {rest[:35]}", hint=hint)
    _, found, rest = str(error).partition(NULL_KEY)
    return null_key(table, key, rest[:35]) if found else None


def met_null_key(error: BaseException) -> bool:
    """Whether a job failed because a key was NULL, whatever was made of its error since."""
    return any(NULL_KEY in str(one) for one in causes(error))
