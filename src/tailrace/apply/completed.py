"""Images that lack columns, made whole with the rows they meet: what a target has after each of them, by the
rule of `engine.carry`, found by the engine in shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..engine.batch import Changes
from ..engine.carry import complete
from ..engine.columns import OPER, SEQ, one
from ..engine.rules import Rules
from ..engine.source import Source, chosen
from ..model.change import BEFORE, TRUNCATE, UPDATE, ChangeTable, Relation
from ..model.types import schema_of
from .data_errors import lacks
from .expect import truncates_of
from .fold import CARRIED, carried_names, col, images
from .outcomes import small
from .shards import parts, sharded, theirs
from .targets.delta_local import mapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SILENT, _LIVES = "header__silent", "header__lives"


def lacking(changes: ChangeTable, counts: Mapping[str, int]) -> bool:
    """Whether updates lack columns; runs a small job when `counts` says that some may."""
    return bool(counts.get("absent")) and not changes.df.where(lacks(changes)).isEmpty()


def completed(
    changes: ChangeTable,
    relation: Relation,
    rules: Rules,
    counts: Mapping[str, int],
    there: DataFrame | None,
    silent: DataFrame | None = None,
) -> DataFrame:
    """The updates that lack columns and take part, whole: `SEQ` and the relation's columns in its types.

    Args:
        changes: those of a batch.
        relation: their layout, with a key.
        rules: how they are applied.
        counts: as in `TableBatch.counts`.
        there: the target's rows before the batch, at least those under the changes' keys; None: none.
        silent: the `SEQ` of updates that are only looked at: they leave nothing to later ones.
    """
    rows = changes.df.where(col(changes.header("change_oper")) != TRUNCATE)
    made = images(changes.with_df(rows), relation, {"absent": 1}, null_keys=True).df
    made = made if silent is None else _silenced(made, silent)
    if there is not None:
        found = _target(there, made, relation, rules, sum(counts.values()))
        made = made.unionByName(found, allowMissingColumns=True)
    key, schema = tuple(relation.key), schema_of(relation.columns)
    task = CompleteTask(schema, key, rules, truncates_of(changes, counts))
    kinds = ", ".join(f"c{i} {c.type}" for i, c in enumerate(relation.columns))
    shards = sharded(made, key, counts, links=bool(counts.get("key_changes")))
    return mapped(shards, task, f"seq string, {kinds}").toDF(SEQ, *[c.name for c in relation.columns])


def filled(changes: ChangeTable, whole: DataFrame, relation: Relation) -> ChangeTable:
    """Changes of which some are made whole (`completed`), for targets in which the old row stays."""
    from pyspark.sql import functions as F

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


def _silenced(events: DataFrame, silent: DataFrame) -> DataFrame:
    """Events with `_SILENT` (boolean): whether they are those of updates that are silent."""
    from pyspark.sql import functions as F

    mine = silent.select(col(SEQ).alias("header__at"), F.lit(True).alias(_SILENT))
    same = (col(SEQ) == col("header__at")) & col(OPER).isin(BEFORE, UPDATE)
    return events.join(mine, same, "left").drop("header__at")


def _target(there: DataFrame, rows: DataFrame, relation: Relation, rules: Rules, many: int) -> DataFrame:
    """The target's rows under the keys of the changes, and whether they live (`_LIVES`)."""
    from pyspark.sql import functions as F

    have, mark = set(there.columns), rules.soft_column
    marked = rules.mode == "soft_delete" and mark in have
    lives = col(mark).isNull() if marked else F.lit(True)
    cells = [
        (col(c.name) if c.name in have else F.lit(None)).cast(c.type).alias(c.name) for c in relation.columns
    ]
    keys = small(rows.select(*map(col, relation.key)), many)
    return theirs(there.select(*cells, lives.alias(_LIVES)).join(keys, relation.key, "left_semi"))


@dataclass(frozen=True)
class CompleteTask:
    """Makes the updates of a shard whole; `schema`: the data columns, `truncates`: `change_seq` of all."""

    schema: pa.Schema
    key: tuple[str, ...]
    rules: Rules
    truncates: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        extra = {CARRIED: pa.string(), _SILENT: pa.bool_(), _LIVES: pa.bool_()}
        if (found := parts(batches, self.schema, extra)) is not None:
            yield self._whole(*found)

    def _whole(self, rows: pa.Table, there: pa.Table) -> pa.RecordBatch:
        source = Source.of(rows, self.key, self.schema, partial=False)
        number = source.keys.find([one(there[n]) for n in self.key])
        there, number = there.filter(pa.array(number >= 0)), number[number >= 0]
        exists = np.zeros(len(source.last), np.bool_)
        if there.num_rows:
            exists[number[one(there[_LIVES]).to_numpy(zero_copy_only=False)]] = True
        changes = Changes.of(source, self.truncates)
        if _SILENT in rows.schema.names:
            silent = one(rows[_SILENT]).fill_null(False).to_numpy(zero_copy_only=False)
            changes = replace(changes, events=replace(changes.events, silent=silent))
        batch, names = changes.met(exists, self.rules), carried_names(one(rows[CARRIED]), len(self.schema))
        lacks = (batch.events.oper == UPDATE) & rows[CARRIED].is_valid().to_numpy()
        updates = np.flatnonzero(lacks & batch.decided.effective)
        stays = self.rules.mode == "soft_delete"
        values, origin = complete(batch.events, batch.decided, names, updates, stays=stays)
        place = np.full(len(exists) + 1, -1, np.int64)  # the last one is for no key
        place[number] = np.arange(there.num_rows)
        at, made = place[origin], [one(rows[SEQ]).take(pa.array(updates))]
        for i, field in enumerate(self.schema):
            mine = one(rows[field.name])
            made.append(chosen(mine, values[:, i], one(there[field.name]), at[:, i]))
        return pa.record_batch(made, ["seq", *[f"c{i}" for i in range(len(self.schema))]])
