"""A shard of a batch: all changes of some keys, and what the target has under these keys. A batch that one
task holds is one shard, a larger one is many; their outcome is decided here for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from ..model.change import UPDATE
from .batch import Batch, Changes, folded, split, taken_and_added
from .carry import complete
from .columns import ADD, HAVE, MASK, MOVED, OPER, SEQ, SILENT, SITUATION, TAKE, WHY, carried, one
from .decide import NAMES
from .events import Bools
from .keys import Places
from .rules import PLAIN, Rules
from .source import Source, chosen, ordered

_PLAIN = np.array([name in PLAIN for name in NAMES])


@dataclass(frozen=True)
class Shard:
    """Changes, and the rows that the target had under their keys before them.

    Attributes:
        source: the changes, in order; without key, rows are known by all of their values.
        changes: the same, numbered.
        there: the target's rows, in the columns of `source.schema`; those that nobody read are NULL. Of a
            table without key each different row, and in `HAVE` how many copies there are.
        number: the number of the key of each.
        ordinals: the bits of the columns, but for `source.mark`, in column masks.
    """

    source: Source
    changes: Changes
    there: pa.Table
    number: Places
    ordinals: tuple[int, ...]

    @staticmethod
    def of(
        rows: pa.Table,
        there: pa.Table,
        key: tuple[str, ...],
        schema: pa.Schema,
        ordinals: tuple[int, ...],
        *,
        mark: str | None = None,
        truncates: Sequence[str] = (),
    ) -> Shard:
        """Numbers the keys.

        Args:
            rows: `SEQ`, `OPER`, `schema`, and which there is of `MASK`, `WHY` (what is wrong with a change's
                values, NULL: nothing) and `SILENT` (updates that are only looked at); in any order.
            there: as in `Shard`; rows whose keys no change names are skipped.
            key: empty: the table has none.
            mark: the column that marks rows of the target as deleted, if it has one.
            truncates: the `change_seq` of all truncates of the batch; they are not among `rows`.
        """
        source = replace(Source.of(ordered(rows), key, schema, partial=False), mark=mark)
        number = source.keys.find([one(there[n]) for n in source.known_by])
        named = number >= 0
        changes, have = Changes.of(source, truncates), source.rows.schema.names
        if WHY in have:
            changes = changes.spoiled(one(source.rows[WHY]))
        if SILENT in have:
            silent = one(source.rows[SILENT]).fill_null(False).to_numpy(zero_copy_only=False)
            changes = replace(changes, events=replace(changes.events, silent=silent))
        return Shard(source, changes, there.filter(pa.array(named)), number[named], ordinals)

    def met(self, rules: Rules) -> Batch:
        """What the changes met; as a shard does not tell where its batch ends, all are decided."""
        if self.source.key:
            return self.changes.met(self._exists, rules)
        copies = np.zeros(len(self.source.last), np.int64)
        if self.there.num_rows:
            copies[self.number] = self.there[HAVE].to_numpy()
        return self.changes.met_copies(copies, rules)

    def images(self, batch: Batch | None) -> pa.Table:
        """What is left of the changes after the last truncate: one row a key (`OP`, `KEPT`, the columns of
        the schema); without key, one a different row, `TAKE` and `ADD`.

        `batch`: what they met; None: all are made to fit, whatever they meet.
        """
        if not self.source.key:
            return self._net(batch)
        if batch is not None:
            return batch.left(self.source, self.ordinals, self._rows_of).lasting()
        there = carried(self.source.rows, self.ordinals)
        return folded(self.source, self.changes.events, there, self._rows_of).lasting()

    def odd(self, batch: Batch) -> pa.Table:
        """The changes that did not meet what they expect, or change their key: `SEQ`, `OPER`, `SITUATION`,
        `WHY` (strings), `MOVED` (boolean); the schema's columns have the old key then, without key the old
        row."""
        events, changes = batch.events, batch.changes
        before = events.former if self.source.key else events.before
        old = np.where(events.oper == UPDATE, before, -1)[changes]
        unusual = ~_PLAIN[batch.decided.situation[changes]] | (old >= 0)
        rows, old = changes[unusual], old[unusual]
        at = pa.array(old, mask=old < 0)
        made = {
            SEQ: one(batch.rows[SEQ]).take(pa.array(rows)),
            OPER: pa.array(events.oper[rows], pa.string()),
            SITUATION: pa.array(np.array(NAMES)[batch.decided.situation[rows]], pa.string()),
            WHY: pa.nulls(len(rows), pa.string()) if batch.why is None else batch.why.take(pa.array(rows)),
            MOVED: pa.array(old >= 0),
        }
        known_by = self.source.known_by
        made |= {n: one(batch.rows[n]).take(at) for n in self.source.schema.names if n in known_by}
        return pa.table(made)

    def completed(self, rules: Rules) -> pa.Table:
        """The updates that lack columns and take part, whole: `SEQ`, and the columns of the schema as the
        target has them right after each."""
        source, batch = self.source, self.met(rules)
        data = [n for n in source.schema.names if n != source.mark]
        there = carried(source.rows, self.ordinals)
        if there is None:
            return source.rows.select([SEQ, *data]).slice(0, 0)
        lacks = (batch.events.oper == UPDATE) & one(source.rows[MASK]).is_valid().to_numpy(
            zero_copy_only=False
        )
        updates = np.flatnonzero(lacks & batch.decided.effective)
        stays = rules.mode == "soft_delete"
        values, origin = complete(batch.events, batch.decided, there, updates, stays=stays)
        at, made = self._place[origin], {SEQ: one(source.rows[SEQ]).take(pa.array(updates))}
        for i, name in enumerate(data):
            made[name] = chosen(one(source.rows[name]), values[:, i], one(self.there[name]), at[:, i])
        return pa.table(made)

    @property
    def _exists(self) -> Bools:
        """Of each key's number whether the target has a row that is not marked."""
        living, mark = self.number, self.source.mark
        if mark is not None:
            living = living[self.there[mark].is_null().to_numpy()]
        found = np.zeros(len(self.source.last), np.bool_)
        found[living] = True
        return found

    @cached_property
    def _place(self) -> Places:
        """The place in `there` of each key's number; -1: it has none. The last one is for no key."""
        found = np.full(len(self.source.last) + 1, -1, np.int64)
        found[self.number] = np.arange(len(self.number))
        return found

    def _rows_of(self, wanted: Places) -> tuple[Places, pa.Table]:
        known = wanted[self._place[wanted] >= 0]
        return known, self.there.select(self.source.schema.names).take(pa.array(self._place[known]))

    def _net(self, batch: Batch | None) -> pa.Table:
        if batch is None:
            take, add = taken_and_added(self.source, self.changes.events)
        else:
            take, add = split(batch.net(self.source))
        changed = np.flatnonzero(take | add)
        rows = self.source.rows.select(self.source.schema.names).take(pa.array(self.source.last[changed]))
        return rows.add_column(0, ADD, pa.array(add[changed])).add_column(0, TAKE, pa.array(take[changed]))
