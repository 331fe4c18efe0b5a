"""Rebuilds full rows from sparse images: columns that an update does not have are taken from the row's
earlier images.

OpenEdge's updates only have the changed and the identifying columns (spec/openedge.md §1.3, §6.5). Per row
of the source, in order of `change_seq`, each missing column gets the value of the last image that had it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ...errors import ConfigError
from ...model import mask
from ...model.change import ChangeTable
from ...model.quoting import quoted
from ..base import OWN, WHY
from ..spark_functions import F, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BASE, _TRUNCATES, _RESET, _USABLE = (OWN + name for name in ("base", "truncates", "reset", "usable"))
_PART = ("partition_id", "tenant_id")


def rebuild(
    changes: ChangeTable, *, by: Literal["key", "recid"] | None = None, base: DataFrame | None = None
) -> ChangeTable:
    """Returns the same rows with missing columns filled from the row's earlier images, if they exist.

    `column_mask` has the columns that are still missing: no value is taken from before an insert, a delete, a
    truncate, or (by key) a change of the key. Bad rows, and rows without identity, stay unchanged. Needs one
    shuffle by identity.

    Args:
        changes: a canonical change table with all known rows.
        by: how a row is identified: by its key, or by its recid with partition and tenant, which stays the
            same when the key changes; by default recid if the table has it.
        base: the rows before the first change: the data columns, and `header__recid` (and partition and
            tenant) if it identifies rows.

    Raises:
        ConfigError: the identity does not exist; `base` does not have a column, or has it with another type.
    """
    by = by or ("recid" if changes.header("recid") in changes.df.columns else "key")
    identity = _identity(changes, by)
    if base is not None:
        _refuse(changes, by, base)
    df = _prepared(changes, by, base)
    seq, oper = F.col(changes.header("change_seq")), F.col(changes.header("change_oper"))
    generation = F.size(F.filter(F.col(_TRUNCATES), lambda t: t < seq))
    order = Window.partitionBy(*identity, generation, F.col(_USABLE)).orderBy(seq, oper)
    df = df.withColumn(
        _RESET, _resets(changes, by) | F.coalesce(F.lag(oper).over(order) == "D", F.lit(False))
    )
    carried = F.col(changes.header("column_mask"))
    ordinals = [changes.ordinal(c) for c in changes.columns]
    there = dict(zip(changes.columns, mask.bits(carried, ordinals), strict=True))
    rows = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    result, known = {}, {}
    for column in changes.columns:
        value = F.col(quoted(column))
        has = carried.isNull() | there[column]
        seen = F.when(F.col(_RESET) | has, F.struct(has.alias("known"), value.alias("value")))
        last = F.last(seen, ignorenulls=True).over(rows)
        fill = F.col(_USABLE) & (oper != "T") & ~has
        result[column] = F.when(fill & last["known"], last["value"]).otherwise(value)
        known[changes.ordinal(column)] = has | (fill & F.coalesce(last["known"], F.lit(False)))
    every = F.lit(bytearray(mask.encode(ordinals)))
    now = F.nullif(mask.with_bits(mask.no_words(max(ordinals, default=-1) + 1), known), every)
    result[changes.header("column_mask")] = F.when(carried.isNotNull() & (oper != "T"), now).otherwise(
        carried
    )
    filled = df.withColumns(result)
    return changes.with_df(filled.filter(~F.col(_BASE)).select(*map(F.col, map(quoted, changes.df.columns))))


def _identity(changes: ChangeTable, by: str) -> list[Column]:
    if by == "key":
        if not changes.key:
            raise ConfigError("the change table has no key", where=changes.name, hint="rebuild by recid")
        return [F.col(quoted(k)) for k in changes.key]
    if changes.header("recid") not in changes.df.columns:
        raise ConfigError("the change table has no recid", where=changes.name, hint="rebuild by key")
    parts = [F.col(h) for n in _PART if (h := changes.header(n)) in changes.df.columns]
    return [F.col(changes.header("recid")), *(F.coalesce(p, F.lit(0)) for p in parts)]


def _refuse(changes: ChangeTable, by: str, base: DataFrame) -> None:
    """Raises ConfigError for a base whose columns are not those of the changes: a union would fill missing
    columns with NULL, and change types."""
    wanted = {f.name: f.dataType.simpleString() for f in changes.df.schema}
    known = [changes.header(n) for n in ("recid", *_PART)] if by == "recid" else []
    needed = [*changes.columns, *(h for h in known if h in wanted)]
    there = {f.name.lower(): f.dataType.simpleString() for f in base.schema}
    missing_columns = [n for n in needed if n.lower() not in there]
    wrong = [
        f"{n} is {kind}, not {wanted[n]}"
        for n in needed
        if (kind := there.get(n.lower(), wanted[n])) != wanted[n]
    ]
    if missing_columns or wrong:
        said = ([f"it does not have {', '.join(missing_columns)}"] if missing_columns else []) + wrong
        raise ConfigError(
            f"the base has other columns than the changes: {'; '.join(said)}",
            where=changes.name,
            hint="give `base` the columns of the change table, in their types: `base.withColumn(name, cast)`",
        )


def _resets(changes: ChangeTable, by: str) -> Column:
    """Returns rows before which the identity is unknown: inserts, and updates that took over the key."""
    oper = F.col(changes.header("change_oper"))
    if by == "recid":
        return oper == "I"
    bits = mask.bits(F.col(changes.header("change_mask")), [changes.ordinal(k) for k in changes.key])
    moved = F.lit(False)
    for bit in bits:
        moved = moved | bit
    return (oper == "I") | ((oper == "U") & moved)


def _prepared(changes: ChangeTable, by: str, base: DataFrame | None) -> DataFrame:
    """Returns the changes after their base rows, with the values that each row needs."""
    df = changes.df.withColumn(_BASE, F.lit(False))
    seq, oper = F.col(changes.header("change_seq")), F.col(changes.header("change_oper"))
    good = F.col(WHY).isNull() if WHY in df.columns else F.lit(True)
    truncates = df.filter(good & (oper == "T")).agg(F.collect_list(seq).alias(_TRUNCATES))
    if base is not None:
        spelled = {changes.header("change_seq"): F.lit(""), changes.header("change_oper"): F.lit("I")}
        rows = base.withColumns({**spelled, _BASE: F.lit(True)})
        df = df.unionByName(rows, allowMissingColumns=True).select(*map(F.col, map(quoted, df.columns)))
        good = F.col(WHY).isNull() if WHY in df.columns else F.lit(True)
    for identity in _identity(changes, by):
        good = good & identity.isNotNull()
    return df.withColumn(_USABLE, good).crossJoin(F.broadcast(truncates))
