"""A shard of a batch: all changes of some keys, and the target's rows with these keys.

A batch that fits into one task is one shard. Outcomes are decided here for both cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from ..model.change import UPDATE
from .batch import Batch, Changes, folded, split, taken_and_added
from .columns import ADD, HAVE, MASK, MOVED, OPER, SEQ, SILENT, SITUATION, TAKE, WHY, carried, one
from .decide import NAMES
from .events import Bools
from .keys import Places
from .missing_values import origins_after_updates
from .rules import PLAIN, Rules
from .source import Source, chosen, ordered

_PLAIN = np.array([name in PLAIN for name in NAMES])


@dataclass(frozen=True)
class Shard:
    """Changes, and the target's rows with their keys before them.

    Attributes:
        source: the changes, in order; rows of a keyless table are identified by all of their values.
        changes: the same, numbered.
        there: the target's rows in the columns of `source.schema`; columns that were not read are NULL. For a
            keyless table, distinct rows with the number of copies in `HAVE`.
        number: the number of each row's key.
        ordinals: the bits of the columns, except `source.mark`, in column masks.
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
            rows: `SEQ`, `OPER`, the columns of `schema`, and optionally `MASK`, `WHY` (the error in a
                change's values, NULL: none) and `SILENT` (updates that are only read); in any order.
            there: as in `Shard`; rows with other keys are skipped.
            key: names of the key's columns; empty for a keyless table.
            schema: the data columns.
            ordinals: as in `Shard`.
            mark: the column that marks deleted rows of the target, if it has one.
            truncates: the `change_seq` of all truncates of the batch, which are not among `rows`.
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
        """Returns the outcomes of all changes; a shard cannot determine where its batch ends."""
        if self.source.key:
            return self.changes.met(self._exists, rules)
        copies = np.zeros(len(self.source.last), np.int64)
        if self.there.num_rows:
            copies[self.number] = self.there[HAVE].to_numpy()
        return self.changes.met_copies(copies, rules)

    def images(self, batch: Batch | None) -> pa.Table:
        """Returns the resulting images after the last truncate: one row per key (`OP`, `KEPT`, the data
        columns).

        For a keyless table, one row per distinct row, with `TAKE` and `ADD`.

        Args:
            batch: the outcomes; None if all changes are applied leniently.
        """
        if not self.source.key:
            return self._net(batch)
        if batch is not None:
            return batch.left(self.source, self.ordinals, self._rows_of).lasting()
        there = carried(self.source.rows, self.ordinals)
        return folded(self.source, self.changes.events, there, self._rows_of).lasting()

    def odd(self, batch: Batch) -> pa.Table:
        """Returns the changes with a conflict, or with a key change.

        The columns are `SEQ`, `OPER`, `SITUATION`, `WHY` (strings), `MOVED` (boolean), and the schema's
        columns with the old key (for a keyless table, the old row).
        """
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
        """Returns the effective updates with missing columns as complete rows, as they are in the target
        right after each.

        The columns are `SEQ`, and those of the schema.
        """
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
        values, origin = origins_after_updates(batch.events, batch.decided, there, updates, stays=stays)
        at, made = self._place[origin], {SEQ: one(source.rows[SEQ]).take(pa.array(updates))}
        for i, name in enumerate(data):
            made[name] = chosen(one(source.rows[name]), values[:, i], one(self.there[name]), at[:, i])
        return pa.table(made)

    @property
    def _exists(self) -> Bools:
        """Whether the target has a row that is not marked as deleted, per key number."""
        living, mark = self.number, self.source.mark
        if mark is not None:
            living = living[self.there[mark].is_null().to_numpy()]
        found = np.zeros(len(self.source.last), np.bool_)
        found[living] = True
        return found

    @cached_property
    def _place(self) -> Places:
        """The index in `there` of each key number; -1 if it has none. The last entry is for no key."""
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
