"""Images that lack columns, with and without changes of keys: their fold.

The rule, for every engine: **what an image lacks stays as it is in the row that the change meets**, as an
UPDATE that does not name a column leaves it alone. A change of key meets the row under its old key, and takes
its values along. Only where there is no such row, and the change is made to insert one, the image before (B)
gives what it carries; the rest is NULL. An insert lacks nothing: what it does not name is NULL.

A key's changes are cut into *stretches*, one life of a row under that key each:

    I or M begins a stretch (M: an update that moved a row here), D or X ends it (X: the row moved away).
    Stretch 0 is the row that the target had under this key, if it had one.

Within a stretch a window carries named values forward, and the image before of its first change, which met no
row unless the target had one. Across moves, each X is joined to the X its stretch came from, by pointer
doubling, so a chain of n moves takes log2(n) joins; what is unresolved then is read from the target under the
key where the chain began, and where that has no row, from the image before there. A rare path: right first,
quick second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.columns import KEPT, OP, OPER, SEQ, UPSERT
from ..model.change import BEFORE, DELETE, INSERT, UPDATE
from .fold import CARRIED, Folded, Images, col

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

MOVED_IN, MOVED_OUT = "M", "X"
"""Kinds of events beside the operations."""
STRETCH, KEY, FROM, BASE = "header__stretch", "header__key", "header__from", "header__base"
"""What `carried` adds. `BASE`: a struct whose `image` has, per column, what the image before of the stretch's
first change carries; NULL where a move began it."""
_LAST, _BEFORE = "header__last", "header__before"


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
    df = with_moves(made) if key_changes else made.df
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
    """`header__kind`: the operation, but of B and U of a key change, which are X and M."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    change = Window.partitionBy(col(SEQ))
    old = F.max(F.when(col(OPER) == BEFORE, key_struct(made.key))).over(change)
    new = F.max(F.when(col(OPER) == UPDATE, key_struct(made.key))).over(change)
    moved = F.coalesce(old.isNotNull() & new.isNotNull() & ~old.eqNullSafe(new), F.lit(False))
    marked = made.df.withColumn("header__moved", moved)
    kind = F.when(col("header__moved"), F.when(col(OPER) == BEFORE, MOVED_OUT).otherwise(MOVED_IN)).otherwise(
        col(OPER)
    )
    return marked.withColumn("header__kind", kind).drop("header__moved")


def carried(df: DataFrame, made: Images, names: Names) -> DataFrame:
    """Adds stretches and, per column, the value carried so far; keeps `OPER` as the kind of event. B rows
    that move nothing go."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    df = df.withColumn("header__order", col(OPER))
    if "header__kind" in df.columns:
        df = df.withColumn(OPER, col("header__kind"))
    order = (col(SEQ), col("header__order"))
    by_key = Window.partitionBy(*map(col, made.key))
    df = df.withColumn(_BEFORE, _before(made, names, by_key.orderBy(*order))).where(col(OPER) != BEFORE)
    so_far = by_key.orderBy(*order).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = by_key.orderBy(*order).rowsBetween(Window.unboundedPreceding, -1)
    starts = F.sum(col(OPER).isin(INSERT, MOVED_IN).cast("int")).over(so_far)
    ends = F.coalesce(F.sum(col(OPER).isin(DELETE, MOVED_OUT).cast("int")).over(before), F.lit(0))
    df = df.withColumn(STRETCH, starts + ends)
    stretch = Window.partitionBy(*map(col, made.key), col(STRETCH)).orderBy(*order)
    stretch = stretch.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    held = []
    for name in names.rest:
        # The image of a row that goes names nothing.
        own = F.when(_named(made, name) & ~col(OPER).isin(DELETE, MOVED_OUT), F.struct(col(name).alias("v")))
        held.append(F.last(own, ignorenulls=True).over(stretch).alias(names.held(name)))
    newest = by_key.orderBy(col(SEQ).desc(), col("header__order").desc())
    came = F.last(F.when(col(OPER) == MOVED_IN, col(SEQ)), ignorenulls=True).over(stretch)
    first = F.first(F.struct(col(_BEFORE).alias("image"))).over(stretch)
    base = F.when(came.isNull(), first).alias(BASE)
    last = F.row_number().over(newest).alias(_LAST)
    return df.select(
        col(SEQ), col(OPER), col(STRETCH), last, came.alias(FROM), *map(col, made.key), *held, base
    )


def _named(made: Images, name: str) -> Column:
    """Whether an event's image has a column; an insert has all."""
    from pyspark.sql import functions as F

    at = made.columns.index(name) + 1
    return col(CARRIED).isNull() | (F.substring(col(CARRIED), at, 1) == "1") | (col(OPER) == INSERT)


def _before(made: Images, names: Names, ordered: WindowSpec) -> Column:
    """The image before of an event, a struct of held values; NULL where it has none. That of an update which
    leaves its key as it is is the row before it."""
    from pyspark.sql import functions as F

    values = [F.when(_named(made, n), F.struct(col(n).alias("v"))).alias(names.held(n)) for n in names.rest]
    image = F.struct(F.lit(True).alias("there"), *values)
    paired = (F.lag(OPER).over(ordered) == BEFORE) & (F.lag(SEQ).over(ordered) == col(SEQ))
    own = F.when(col(OPER) == MOVED_OUT, image)
    return own.when((col(OPER) == UPDATE) & paired, F.lag(image).over(ordered))


def resolve(rows: DataFrame, final: DataFrame, names: Names, target: DataFrame | None) -> DataFrame:
    """Fills what final rows lack from the rows they moved from, then from the target."""
    from pyspark.sql import functions as F

    begin = F.when(col(STRETCH) == 0, key_struct(names.key))
    gone = rows.where(col(OPER) == MOVED_OUT)
    moves = gone.select(col(SEQ), col(FROM), begin.alias(KEY), *map(col, names.all_held), col(BASE))
    # Not eager: the job that counts open pointers is the one that fills the checkpoint.
    moves = moves.localCheckpoint(eager=False)
    while _open(moves):
        moves = _step(moves, moves, names, [col(SEQ, "m")]).localCheckpoint(eager=False)
    kept = (OPER, STRETCH, *names.key)
    final = final.withColumn(KEY, F.lit(None).cast(moves.schema[KEY].dataType))
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
    return joined.select(*map(col, kept), *filled, col(BASE))


def value(names: Names, name: str) -> Column:
    """A column's value in the end: the one that was found, or that of the image before where no row was."""
    from pyspark.sql import functions as F

    held = names.held(name)
    return F.coalesce(col(held), col(BASE)["image"][held])["v"]


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
    base = F.coalesce(col(BASE, "m"), col(BASE, "p")).alias(BASE)
    return joined.select(*own, col(FROM, "p").alias(FROM), begin, *filled, base)


def _flat(final: DataFrame, made: Images, names: Names) -> Folded:
    """Plain columns again; `KEPT` says which values the target's own row under the key gives, if there is
    one."""
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
            data.append(value(names, name).alias(name))
            flags.append(F.when(held.isNull(), "1").otherwise("0"))
    kept = F.concat(*flags)
    if made.replaces:
        return Folded(final.select(op, *data), False, True)
    own = live & (col(STRETCH) == 0) & kept.contains("1")
    return Folded(final.select(op, F.when(own, kept).alias(KEPT), *data), True, False)
