"""Images that lack columns, made whole with the rows they met: what a target has after each of them, by the
rule of `keychange`. Only changes that take part may be among them: what is passed over leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ..engine.columns import OPER, SEQ
from ..model.change import TRUNCATE, UPDATE, ChangeTable, Relation
from .data_errors import lacks
from .expect import EPOCH, epochs
from .fold import CARRIED, Images, col, images
from .keychange import (
    FROM,
    KEY,
    LOST,
    MOVED_IN,
    MOVED_OUT,
    STRETCH,
    Names,
    carried,
    key_struct,
    resolve,
    value,
    with_moves,
)
from .outcomes import silenced, small

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def lacking(changes: ChangeTable, counts: Mapping[str, int]) -> bool:
    """Whether updates lack columns; runs a small job when `counts` says that some may."""
    return bool(counts.get("absent")) and not changes.df.where(lacks(changes)).isEmpty()


def completed(
    changes: ChangeTable,
    relation: Relation,
    counts: Mapping[str, int],
    there: DataFrame | None,
    *,
    stays: bool = False,
    lost: DataFrame | None = None,
    silent: DataFrame | None = None,
) -> DataFrame:
    """The updates that lack columns, whole: `SEQ` and the relation's columns in its types.

    Args:
        changes: those of a batch that take part.
        relation: their layout, with a key.
        counts: as in `TableBatch.counts`.
        there: the target's rows before the batch, at least those under the changes' keys; None: none.
        stays: deleted rows stay in the target (soft delete): an update of one keeps what it lacks.
        lost: with `stays`, the `SEQ` of changes of a key whose old row is missing, though a marked one may be
            there: it gives nothing, the image before does.
        silent: the `SEQ` of updates that are only looked at: they leave nothing to later ones.
    """
    from pyspark.sql import functions as F

    made = _images(changes, relation, counts)
    made = made if silent is None else replace(made, df=silenced(made.df, silent))
    names = Names(made.key, [c for c in made.columns if c not in made.key])
    df = with_moves(made) if counts.get("key_changes") else made.df
    if lost is not None and counts.get("key_changes"):
        at = lost.select(col(SEQ).alias("at"))
        df = df.join(at, (col(SEQ) == col("at")) & (col("header__kind") == MOVED_OUT), "left")
        df = df.withColumn("header__kind", F.when(col("at").isNull(), col("header__kind")).otherwise(LOST))
    rows = carried(df, made, names, stays=stays).localCheckpoint(eager=False)
    partial = made.df.where((col(OPER) == UPDATE) & col(CARRIED).isNotNull()).select(col(SEQ).alias("at"))
    final = rows.where(col(OPER).isin(UPDATE, MOVED_IN)).join(partial, col(SEQ) == col("at"), "left_semi")
    final = final.withColumn(KEY, F.when((col(STRETCH) == 0) & col(FROM).isNull(), key_struct(made.key)))
    found = resolve(rows, final, names, _target(there, rows, relation, counts))
    rest = [value(names, n).cast(relation.column(n).type).alias(n) for n in names.rest]
    return found.select(SEQ, *map(col, relation.key), *rest)


def filled(
    changes: ChangeTable,
    taking: ChangeTable,
    relation: Relation,
    counts: Mapping[str, int],
    there: DataFrame | None,
    which: DataFrame,
    lost: DataFrame | None,
) -> ChangeTable:
    """Changes of which some are made whole, for targets in which the old row stays.

    `taking`: those that take part; `which`: the ones to make whole (`SEQ`); `lost`: see `completed`.
    """
    from pyspark.sql import functions as F

    whole = completed(taking, relation, counts, there, stays=True, lost=lost)
    whole = whole.join(which.select(SEQ), SEQ, "left_semi")
    place = {c.name: f"header__w{i}" for i, c in enumerate(relation.columns)}
    whole = whole.select(SEQ, *[col(n).alias(to) for n, to in place.items()]).localCheckpoint(eager=True)
    header, have = changes.header, changes.df.columns
    mine = (col(header("change_seq")) == col(SEQ)) & (col(header("change_oper")) == UPDATE)
    df = changes.df.join(small(whole, whole.count()), mine, "left")
    hit, made = col(SEQ).isNotNull(), []
    for name in have:
        value = col(name)
        if name in place:
            value = F.when(hit, col(place[name])).otherwise(value.cast(relation.column(name).type))
        elif name == header("column_mask"):
            value = F.when(~hit, value)
        made.append(value.alias(name))
    return changes.with_df(df.select(*made))


def _images(changes: ChangeTable, relation: Relation, counts: Mapping[str, int]) -> Images:
    """Images without truncates; how many of these lie before each is a part of its key."""
    from pyspark.sql import functions as F

    rows = changes.df.where(col(changes.header("change_oper")) != TRUNCATE)
    made = images(changes.with_df(rows), relation, {"absent": 1})
    df = epochs(made.df, changes) if counts.get("T") else made.df.withColumn(EPOCH, F.lit(0))
    return replace(made, df=df, key=[*made.key, EPOCH])


def _target(
    there: DataFrame | None, rows: DataFrame, relation: Relation, counts: Mapping[str, int]
) -> DataFrame | None:
    """The target's rows under the keys of the changes: those it had before the first truncate."""
    from pyspark.sql import functions as F

    if there is None:
        return None
    keys = small(rows.select(*map(col, relation.key)), sum(counts.values()))
    have = set(there.columns)
    cells = [
        (col(c.name) if c.name in have else F.lit(None)).cast(c.type).alias(c.name) for c in relation.columns
    ]
    return there.select(*cells, F.lit(0).alias(EPOCH)).join(keys, relation.key, "left_semi")
