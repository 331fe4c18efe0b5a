"""Applies row criteria to changes, for a target that has only the rows that match.

| before image matches | after image matches | the change becomes |
|---|---|---|
| yes, or unknown | yes | itself |
| no | yes | an insert of the after image |
| yes, or unknown | no | a delete of the before image, `B` in the key log: the row left |
| no | no | nothing |

Inserts and deletes are kept if their image matches. A delete is also kept if its image does not have the
columns that the criteria read, as the target may have the row. Source: spec/sqdr.md §6.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from ...model import mask
from ...model.change import (
    BEFORE,
    DELETE,
    INSERT,
    NATIVE,
    OPERATIONS,
    TRUNCATE,
    UPDATE,
    ChangeTable,
)
from ...targets.images import UNKNOWN_MATCH, col
from .expressions import Expression

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

LEFT = NATIVE + "change_row_type"
"""Header: `B` if an update moved a row out of the criteria; it is the row type in the key log."""
_MATCH, _OLD, _NEW, _PAIRED = (f"header__match{n}" for n in ("", "_old", "_new", "_paired"))
_BECOMES, _LEFT = "header__becomes", "header__left"


def matching(changes: ChangeTable, where: Expression, *, small: bool = False) -> ChangeTable:
    """The changes of the matching rows, with the header `LEFT`.

    The job that reads them fails with `UNKNOWN_MATCH` at an update whose after image does not have the
    columns that the criteria read.

    `small`: the rows fit into one task, so no shuffle is needed.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    header = changes.header
    seq, oper = col(header("change_seq")), col(header("change_oper"))
    df = changes.df.coalesce(1) if small else changes.df
    df = df.withColumn(_MATCH, _match(changes, where))
    one = Window.partitionBy(seq)
    df = df.withColumns(
        {
            _OLD: F.max(F.when(oper == BEFORE, col(_MATCH))).over(one),
            _NEW: F.max(F.when(oper == UPDATE, col(_MATCH))).over(one),
            _PAIRED: F.max((oper == BEFORE).cast("int")).over(one) == 1,
        }
    )
    by_key = set(where.needs) <= set(changes.key)
    # Without a before image the key is unchanged, and so are criteria that read only the key.
    old = F.when(col(_PAIRED), col(_OLD)).otherwise(col(_NEW) if by_key else F.lit(None))
    new = col(_NEW)
    entered, left = ~old & new, F.coalesce(old, F.lit(True)) & ~new
    both = F.coalesce(old, F.lit(True)) & new
    becomes = (
        F.when(oper == TRUNCATE, oper)
        .when((oper == INSERT) & col(_MATCH), INSERT)
        .when((oper == DELETE) & F.coalesce(col(_MATCH), F.lit(True)), DELETE)
        .when(oper.isin(UPDATE, BEFORE) & both, oper)
        .when((oper == UPDATE) & entered, INSERT)
        .when((oper == BEFORE) & left, DELETE)
        # In a keyless table it stays an update, which is refused: the after image does not identify the row.
        .when((oper == UPDATE) & left & ~col(_PAIRED), DELETE if changes.key else UPDATE)
        .when(~oper.isin(INSERT, DELETE, UPDATE, BEFORE), oper)
    )
    native = F.when(oper.isin(UPDATE, BEFORE) & left, "B").otherwise(_native(changes))
    df = df.withColumns({_BECOMES: becomes, _LEFT: native})
    df = df.where(col(_BECOMES).isNotNull())
    return _renamed(changes, df)


def _native(changes: ChangeTable) -> Column:
    from pyspark.sql import functions as F

    name = changes.header(LEFT)
    return col(name) if name in changes.df.columns else F.lit(None).cast("string")


def _match(changes: ChangeTable, where: Expression) -> Column:
    """Whether an image matches; NULL for a before image without the columns that the criteria read."""
    from pyspark.sql import functions as F

    oper, seq = col(changes.header("change_oper")), col(changes.header("change_seq"))
    found = F.coalesce(F.expr(where.sql), F.lit(False))
    masks = changes.header("column_mask")
    if masks not in changes.df.columns or not where.needs:
        return found
    whole = col(masks).isNull()
    bits = mask.bits(col(masks), [changes.ordinal(n) for n in where.needs])
    known = reduce(and_, bits, F.lit(True))
    refused = F.raise_error(F.concat(F.lit(UNKNOWN_MATCH), seq)).cast("boolean")
    return F.when(whole | known, found).when(oper.isin(UPDATE, INSERT), refused)


def _renamed(changes: ChangeTable, df: DataFrame) -> ChangeTable:
    """The rows with their new operations. `LEFT` is the last header, so that the masks stay valid."""
    from pyspark.sql import functions as F

    header = changes.header
    becomes = col(_BECOMES)
    operations = F.create_map(*[F.lit(text) for pair in OPERATIONS.items() for text in pair])
    values = {header("change_oper"): becomes}
    if header("operation") in changes.df.columns:
        operation = col(header("operation"))
        changed = becomes != col(header("change_oper"))
        values[header("operation")] = F.when(changed, operations[becomes]).otherwise(operation)
    values[header(LEFT)] = col(_LEFT)
    names = dict.fromkeys([*changes.df.columns, header(LEFT)])
    return replace(changes, df=df.select(*[values.get(n, col(n)).alias(n) for n in names]))
