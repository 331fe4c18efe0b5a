"""The fold of images that lack columns, by the engine, in shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..engine.batch import folded
from ..engine.columns import KEPT, OP, OPER, one
from ..engine.keys import Places
from ..engine.source import Source
from ..model.change import BEFORE
from ..model.types import arrow_type
from .fold import CARRIED, Folded, Images, carried_names, col
from .outcomes import small
from .plan import UNKNOWN
from .shards import parts, sharded, theirs
from .targets.delta_local import mapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fold_partial(made: Images, counts: Mapping[str, int], target: DataFrame | None) -> Folded:
    """Folds images of which some lack columns; see `fold.fold`."""
    rows, moves = made.df, bool(counts.get("key_changes"))
    kinds = {n: made.df.schema[n].dataType.simpleString() for n in made.columns}
    if moves and target is not None and not made.replaces:
        rows = rows.unionByName(_moved(made, kinds, counts, target), allowMissingColumns=True)
    schema = pa.schema([(n, arrow_type(kind)) for n, kind in kinds.items()])
    shape = ", ".join(["op string, kept string", *[f"c{i} {kind}" for i, kind in enumerate(kinds.values())]])
    task = FoldTask(schema, tuple(made.key))
    df = mapped(sharded(rows, made.key, counts, links=moves), task, shape).toDF(OP, KEPT, *made.columns)
    if made.replaces:
        return Folded(df.drop(KEPT), False, True)
    return Folded(df, True, False)


def _moved(made: Images, kinds: Mapping[str, str], counts: Mapping[str, int], target: DataFrame) -> DataFrame:
    """The target's rows under old keys: they give what images of key changes lack."""
    from pyspark.sql import functions as F

    have = set(target.columns)
    cells = [(col(n) if n in have else F.lit(None)).cast(kind).alias(n) for n, kind in kinds.items()]
    keys = made.df.where(col(OPER) == BEFORE).select(*map(col, made.key))
    keys = keys if counts == UNKNOWN else small(keys, sum(counts.values()))
    return theirs(target.select(*cells).join(keys, made.key, "left_semi"))


@dataclass(frozen=True)
class FoldTask:
    """Folds a shard: one row a key."""

    schema: pa.Schema
    key: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if (found := parts(batches, self.schema, {CARRIED: pa.string()})) is not None:
            yield from self._folded(*found).to_batches()

    def _folded(self, rows: pa.Table, there: pa.Table) -> pa.Table:
        source = Source.of(rows, self.key, self.schema, partial=False)
        number = source.keys.find([one(there[n]) for n in self.key])
        there, number = there.filter(pa.array(number >= 0)), number[number >= 0]
        place = np.full(len(source.last), -1, np.int64)
        place[number] = np.arange(len(number))

        def rows_of(wanted: Places) -> tuple[Places, pa.Table]:
            known = wanted[place[wanted] >= 0]
            return known, there.select(self.schema.names).take(pa.array(place[known]))

        carried = carried_names(one(source.rows[CARRIED]), len(self.schema))
        made = folded(source, carried, rows_of).lasting()
        names = ["op", "kept", *[f"c{i}" for i in range(len(self.schema))]]
        return made.rename_columns(names)
