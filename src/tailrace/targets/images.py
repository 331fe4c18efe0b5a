"""Change rows as Spark DataFrames: their order, their operation and their columns in the types of a
layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..engine.columns import MASK, OPER, SEQ, WHY
from ..errors import ApplyError, TailraceError, from_spark
from ..model.change import TRUNCATE, ChangeTable, Relation
from ..model.quoting import quoted
from ..model.sequence import NUMBER_DIGITS, TIME_DIGITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
"""Prefix of the error that a mapping's job raises, followed by the change sequence -> message and hint."""


def col(name: str, of: str | None = None) -> Column:
    """Returns a column by its exact name, whatever characters it has."""
    from pyspark.sql import functions as F

    return F.col(f"{of}.{quoted(name)}" if of else quoted(name))


def images(
    changes: ChangeTable,
    relation: Relation,
    *,
    after: int = -1,
    extras: Mapping[str, Column] | None = None,
) -> DataFrame:
    """Returns change rows with numbers above `after`: `SEQ`, `OPER`, the `extras` by name, and the relation's
    columns in its types. Missing columns are NULL, and in validated changes (`WHY`) values that do not
    fit."""
    from pyspark.sql import functions as F

    df, validated = changes.df, WHY in changes.df.columns
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    if after >= 0:
        df = df.where(F.substring(seq, 17, 19) > f"{after:019d}")
    have = set(df.columns)
    data = []
    for c in relation.columns:
        value = col(c.name) if c.name in have else F.lit(None)
        data.append((value.try_cast(c.type) if validated else value.cast(c.type)).alias(c.name))
    extra = [value.alias(name) for name, value in (extras or {}).items()]
    return df.select(seq.alias(SEQ), oper.alias(OPER), *extra, *data)


def newer(changes: ChangeTable, after: int) -> ChangeTable:
    """Returns the changes with numbers above `after`."""
    from pyspark.sql import functions as F

    if after < 0:
        return changes
    number = F.substring(col(changes.header("change_seq")), TIME_DIGITS + 1, NUMBER_DIGITS)
    return changes.with_df(changes.df.where(number > f"{after:0{NUMBER_DIGITS}d}"))


def shaped(rows: DataFrame, relation: Relation) -> DataFrame:
    """Returns rows in a relation's columns and types; missing columns are NULL."""
    from pyspark.sql import functions as F

    have = set(rows.columns)
    cells = [(c.name, col(c.name) if c.name in have else F.lit(None), c.type) for c in relation.columns]
    return rows.select(*[value.cast(kind).alias(name) for name, value, kind in cells])


def masked(changes: ChangeTable) -> dict[str, Column]:
    """Returns the mask of change rows as an extra for `images`; empty if all their images are complete."""
    name = changes.header("column_mask")
    return {MASK: col(name)} if name in changes.df.columns else {}


def ordinals(names: Sequence[str], columns: Iterable[str]) -> tuple[int, ...]:
    """Returns the bits of columns in the masks of a change table with the columns `names`; a column that is
    not in the table is in no mask.

    >>> ordinals(["seq", "id", "v"], ["v", "new"])
    (2, 3)
    """
    return tuple(names.index(name) if name in names else len(names) for name in columns)


def last_truncate(changes: ChangeTable, counts: Mapping[str, int], after: int = -1) -> str | None:
    """Returns the `change_seq` of the last truncate with a number above `after`. Runs a job, unless `counts`
    says that there is no truncate."""
    from pyspark.sql import functions as F

    if not counts.get("T"):
        return None
    seq, oper = col(changes.header("change_seq")), col(changes.header("change_oper"))
    rows = changes.df.where(oper == TRUNCATE)
    if after >= 0:
        rows = rows.where(F.substring(seq, 17, 19) > f"{after:019d}")
    found = rows.agg(F.max(seq)).first()
    return None if found is None else found[0]


def since(changes: ChangeTable, seq: str) -> ChangeTable:
    """Returns the changes after a `change_seq`."""
    return changes.with_df(changes.df.where(col(changes.header("change_seq")) > seq))


def refused(error: BaseException, table: str) -> ApplyError | None:
    """Returns the error for a job that failed because an image leaves out a column that a mapping needs; None
    for any other failure."""
    for mark, (what, hint) in LEFT_OUT.items():
        _, found, rest = str(error).partition(mark)
        if found:
            return ApplyError(what, where=f"{table}, change_seq {rest[:35]}", hint=hint)
    return None


@contextmanager
def explaining(table: str, where: str) -> Iterator[None]:
    """Turns errors about a table's changes into ApplyErrors that explain them; TailraceErrors are not
    changed."""
    try:
        yield
    except TailraceError:
        raise
    except Exception as error:
        raise refused(error, table) or from_spark(error, where=where) from error
