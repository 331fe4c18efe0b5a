"""Images that lack columns (unchanged TOAST values), with and without key changes: their fold, and the parts
of which `completed` makes them whole.

An absent column has the value of the image before: of the same key, as long as no delete, insert or truncate
lies between; behind a key change, of the old key's row at that moment; else of the target's row. A key's
changes are cut into *stretches*, one life of a row under that key each:

    I or M begins a stretch (M: an update that moved a row here), D or X ends it (X: the row moved away).
    Stretch 0 is the row that the target had under this key.

Within a stretch a window carries values forward. Across moves, each X is joined to the X its stretch came
from, by pointer doubling, so a chain of n moves takes log2(n) joins; what is unresolved then is read from the
target under the key where the chain began. A rare path: right first, quick second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..change import BEFORE, DELETE, INSERT, UPDATE
from .fold import CARRIED, KEPT, OP, OPER, SEQ, UPSERT, Folded, Images, col
from .outcomes import SILENT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

MOVED_IN, MOVED_OUT = "M", "X"
STRETCH, KEY, FROM = "header__stretch", "header__key", "header__from"
_LAST = "header__last"


@dataclass(frozen=True)
class Names:
    """Column names of the long way: carried values are structs of one field, NULL where still unknown."""

    key: list[str]
    rest: list[str]

    def held(self, name: str) -> str:
        return f"header__v{self.rest.index(name)}"

    @property
    def all_held(self) -> list[str]:
        return [self.held(n) for n in self.rest]


def fold_partial(made: Images, key_changes: bool, target: DataFrame | None) -> Folded:
    """Folds images of which some lack columns; see the module."""
    names = Names(made.key, [c for c in made.columns if c not in made.key])
    df = with_moves(made) if key_changes else made.df.where(col(OPER) != BEFORE)
    rows = carried(df, made, names)
    # Read twice, and the windows are the dear part.
    rows = rows.localCheckpoint(eager=False) if key_changes else rows
    final = rows.where(col(_LAST) == 1)
    if key_changes:
        final = resolve(rows, final, names, target)
    return _flat(final, made, names)


def key_struct(key: list[str]) -> Column:
    from pyspark.sql import functions as F

    return F.struct(*[col(k).alias(f"k{i}") for i, k in enumerate(key)])


def with_moves(made: Images) -> DataFrame:
    """B and U of a key change become X and M; other B rows go."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    change = Window.partitionBy(col(SEQ))
    old = F.max(F.when(col(OPER) == BEFORE, key_struct(made.key))).over(change)
    new = F.max(F.when(col(OPER) == UPDATE, key_struct(made.key))).over(change)
    moved = F.coalesce(old.isNotNull() & new.isNotNull() & ~old.eqNullSafe(new), F.lit(False))
    marked = made.df.withColumn("header__moved", moved)
    marked = marked.where(col("header__moved") | (col(OPER) != BEFORE))
    kind = F.when(col("header__moved"), F.when(col(OPER) == BEFORE, MOVED_OUT).otherwise(MOVED_IN)).otherwise(
        col(OPER)
    )
    return marked.withColumn("header__kind", kind).drop("header__moved")


def carried(df: DataFrame, made: Images, names: Names, *, stays: bool = False) -> DataFrame:
    """Adds stretches and, per column, the value carried so far; keeps `OPER` as the kind of event.

    `stays`: rows that are deleted or moved away stay, and give later images under their key what these lack.
    Events that are `SILENT` get their own row, and give nothing to others.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    if "header__kind" in df.columns:
        df = df.withColumn("header__order", col(OPER)).withColumn(OPER, col("header__kind"))
    else:
        df = df.withColumn("header__order", col(OPER))
    order = (col(SEQ), col("header__order"))
    by_key = Window.partitionBy(*map(col, made.key))
    so_far = by_key.orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = by_key.orderBy(*order).rowsBetween(Window.unboundedPreceding, -1)
    loud = ~col(SILENT) if SILENT in df.columns else None
    heard = F.lit(True) if loud is None else loud
    starts = F.sum((heard & col(OPER).isin(INSERT, MOVED_IN)).cast("int")).over(so_far)
    gone = F.sum((heard & col(OPER).isin(DELETE, MOVED_OUT)).cast("int"))
    ends = F.coalesce(gone.over(before), F.lit(0))
    df = df.withColumn(STRETCH, starts if stays else starts + ends)
    stretch = Window.partitionBy(*map(col, made.key), col(STRETCH)).orderBy(*order)
    stretch = stretch.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    held, empty = [], (DELETE, MOVED_OUT) if stays else (DELETE,)
    for name in names.rest:
        at = made.columns.index(name) + 1
        there = col(CARRIED).isNull() | (F.substring(col(CARRIED), at, 1) == "1")
        # A plain D carries nothing that matters; an X may carry the old image's values.
        own = F.when(there & ~col(OPER).isin(*empty), F.struct(col(name).alias("v")))
        held.append(_latest(own, loud, stretch).alias(names.held(name)))
    newest = by_key.orderBy(col(SEQ).desc(), col("header__order").desc())
    came = _latest(F.when(col(OPER) == MOVED_IN, col(SEQ)), loud, stretch).alias(FROM)
    last = F.row_number().over(newest).alias(_LAST)
    return df.select(col(SEQ), col(OPER), col(STRETCH), last, came, *map(col, made.key), *held)


def _latest(own: Column, loud: Column | None, stretch: WindowSpec) -> Column:
    """An event's own value, or the last one before it in its stretch; of those that are `loud`, if they say
    so. A silent move here has its own alone."""
    from pyspark.sql import functions as F

    if loud is None:
        return F.last(own, ignorenulls=True).over(stretch)
    so_far = F.last(F.when(loud, own), ignorenulls=True).over(stretch)
    return F.when(~loud & (col(OPER) == MOVED_IN), own).otherwise(F.coalesce(own, so_far))


def resolve(rows: DataFrame, final: DataFrame, names: Names, target: DataFrame | None) -> DataFrame:
    """Fills what final rows lack from the rows they moved from, then from the target (under `KEY`, when they
    have one)."""
    from pyspark.sql import functions as F

    begin = F.when(col(STRETCH) == 0, key_struct(names.key)).alias(KEY)
    moves = rows.where(col(OPER) == MOVED_OUT).select(col(SEQ), col(FROM), begin, *map(col, names.all_held))
    # Not eager: the job that counts open pointers is the one that fills the checkpoint.
    moves = moves.localCheckpoint(eager=False)
    while _open(moves):
        moves = _step(moves, moves, names, [col(SEQ, "m")]).localCheckpoint(eager=False)
    kept = (OPER, STRETCH, *names.key)
    if KEY not in final.columns:
        final = final.withColumn(KEY, F.lit(None).cast(moves.schema[KEY].dataType))
    else:
        kept = (SEQ, *kept)
    found = _step(final, moves, names, [col(c, "m") for c in kept])
    if target is None:
        return found
    there = target.select(
        key_struct(names.key).alias("header__at"),
        *[F.struct(col(n).alias("v")).alias(f"header__t{i}") for i, n in enumerate(names.rest)],
    )
    joined = found.join(there, col(KEY).eqNullSafe(col("header__at")) & col(KEY).isNotNull(), "left")
    filled = [
        F.coalesce(col(names.held(n)), col(f"header__t{i}")).alias(names.held(n))
        for i, n in enumerate(names.rest)
    ]
    return joined.select(*map(col, kept), *filled)


def _open(moves: DataFrame) -> bool:
    """Whether a move still points to another; its old end is the target's row or nothing when it does not."""
    from pyspark.sql import functions as F

    found = moves.agg(F.count(FROM)).first()
    return bool(found and found[0])


def _step(rows: DataFrame, moves: DataFrame, names: Names, own: list[Column]) -> DataFrame:
    """Each row takes what it lacks from the move it points to, and that move's own pointer or beginning."""
    from pyspark.sql import functions as F

    joined = rows.alias("m").join(moves.alias("p"), col(FROM, "m") == col(SEQ, "p"), "left")
    filled = [F.coalesce(col(v, "m"), col(v, "p")).alias(v) for v in names.all_held]
    begin = F.coalesce(col(KEY, "m"), col(KEY, "p")).alias(KEY)
    return joined.select(*own, col(FROM, "p").alias(FROM), begin, *filled)


def _flat(final: DataFrame, made: Images, names: Names) -> Folded:
    """Plain columns again; `KEPT` says which values the target's own row under this key still has to give."""
    from pyspark.sql import functions as F

    live = ~col(OPER).isin(DELETE, MOVED_OUT)
    op = F.when(live, UPSERT).otherwise(DELETE).alias(OP)
    data, flags = [], []
    for name in made.columns:
        if name in names.key:
            data.append(col(name))
            flags.append(F.lit("0"))
        else:
            held = col(names.held(name))
            data.append(held["v"].alias(name))
            flags.append(F.when(held.isNull(), "1").otherwise("0"))
    kept = F.concat(*flags)
    if made.replaces:
        return Folded(final.select(op, *data), False, True)
    own = live & (col(STRETCH) == 0) & kept.contains("1")
    return Folded(final.select(op, F.when(own, kept).alias(KEPT), *data), True, False)
