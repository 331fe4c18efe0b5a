"""The difference between two sides of a table as changes: what turns one side into the other.

They are a change table of tailrace's own layout, one change a row that differs: an insert of what is missing,
a delete of what is too much, an update (with its before image) of what is another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ..apply.fold import col
from ..model.change import HEADERS, OPERATIONS, PREFIX, Relation
from ..model.sequence import NUMBER_DIGITS
from .compare_spark import HASH, Frames

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKETS = 256
_WANTED, _THERE, _NEW, _OLD = "header__wanted", "header__there", "header__new", "header__old"
_COPIES, _IMAGES, _AT = "header__n", "header__i", "header__at"


@dataclass(frozen=True)
class Mark:
    """Values for the changes' headers: the time part of their sequence, the number before the first, the
    source's position (hex) of the rows, a name for their transaction, their time."""

    time: int
    after: int
    position: str
    transaction: str
    at: datetime


def difference(wanted: DataFrame, there: DataFrame, relation: Relation, mark: Mark) -> DataFrame:
    """The changes that make `there` what `wanted` is: columns of `HEADERS` with their prefix, then the
    relation's; empty when they are equal. Numbers go up from `mark.after` + 1, in the order of the key.

    Duplicates of a key in `there` are one update, which writes the row anew.
    """
    names = [c.name for c in relation.columns]
    wanted, there = (
        df.select(*[col(c.name).cast(c.type).alias(c.name) for c in relation.columns])
        for df in (wanted, there)
    )
    key = relation.key or names
    wanted, there = Frames(wanted, there).differing(key, BUCKETS)
    found = _by_key(wanted, there, key, names) if relation.key else _copies(wanted, there, names)
    return _with_headers(found, key, names, mark)


def _by_key(wanted: DataFrame, there: DataFrame, key: Sequence[str], names: Sequence[str]) -> DataFrame:
    """Images of each differing key, as an array of (operation, row), and the key's columns as `_AT`."""
    from pyspark.sql import functions as F

    row = F.struct(*map(col, names))
    at = F.struct(*map(col, key)).alias(_AT)
    have = there.groupBy(at).agg(
        F.first(row).alias(_THERE), F.first(HASH).alias(_OLD), F.count(F.lit(1)).alias(_COPIES)
    )
    both = wanted.select(at, row.alias(_WANTED), col(HASH).alias(_NEW)).join(have, _AT, "full_outer")
    new, old = col(_WANTED), col(_THERE)
    other = (col(_COPIES) > 1) | (col(_NEW) != col(_OLD))  # in the same way as validation
    images = (
        F.when(old.isNull(), F.array(_image("I", new)))
        .when(new.isNull(), F.array(_image("D", old)))
        .when(other, F.array(_image("B", old), _image("U", new)))
    )
    return both.select(_AT, images.alias(_IMAGES)).where(col(_IMAGES).isNotNull())


def _copies(wanted: DataFrame, there: DataFrame, names: Sequence[str]) -> DataFrame:
    """The same for a table without a key: as many inserts or deletes of each row as its numbers of copies
    differ."""
    from pyspark.sql import functions as F

    sides = [df.withColumn(_COPIES, F.lit(n)) for df, n in ((wanted, 1), (there, -1))]
    row = F.first(F.struct(*map(col, names))).alias(_AT)
    apart = sides[0].unionByName(sides[1]).groupBy(HASH).agg(row, F.sum(_COPIES).alias(_COPIES))
    oper = F.when(col(_COPIES) > 0, "I").otherwise("D")
    each = F.explode(F.sequence(F.lit(1), F.abs(col(_COPIES)).cast("int")))
    rows = apart.where(col(_COPIES) != 0).select(_AT, F.array(_image(oper, col(_AT))).alias(_IMAGES), each)
    return rows.select(_AT, _IMAGES)


def _image(oper: str | Column, row: Column) -> Column:
    from pyspark.sql import functions as F

    return F.struct((F.lit(oper) if isinstance(oper, str) else oper).alias("oper"), row.alias("row"))


def _with_headers(found: DataFrame, key: Sequence[str], names: Sequence[str], mark: Mark) -> DataFrame:
    """One task numbers all changes, so that there are no gaps; the join before it has many tasks."""
    from pyspark.sql import functions as F

    sorted_rows = found.repartition(1).sortWithinPartitions(*[col(_AT).getField(k) for k in key])
    number = F.monotonically_increasing_id() + F.lit(mark.after + 1)
    one = sorted_rows.select(number.alias("header__number"), F.explode(_IMAGES).alias("header__image"))
    oper = F.col("header__image.oper")
    digits = F.lpad(F.col("header__number").cast("string"), NUMBER_DIGITS, "0")
    words = F.create_map(*[F.lit(x) for pair in OPERATIONS.items() for x in pair])
    headers = {
        "change_seq": F.concat(F.lit(str(mark.time)), digits),
        "change_oper": oper,
        "stream_position": F.lit(mark.position),
        "operation": F.element_at(words, oper),
        "transaction_id": F.lit(mark.transaction),
        "timestamp": F.lit(mark.at),
    }
    made = [headers.get(name, F.lit(None)).cast(kind).alias(PREFIX + name) for name, kind in HEADERS.items()]
    row = F.col("header__image.row")
    return one.select(*made, *[row.getField(n).alias(n) for n in names])
