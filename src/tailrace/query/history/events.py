"""The events table of a kept history: a Delta table beside the versions, to which each event is appended
once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from ...engine.change_arrays import WHY
from ...engine.columns import one
from ...engine.history_events import (
    OPERATION,
    SEQUENCE,
    TIED,
    TIME,
    TRUNCATE_EVENT,
    CleanedEvents,
    decide_ties,
    event_hashes,
    event_schema,
)
from ...engine.history_updates import StartPerKey
from ...lake import delta as lake
from ...lake.failpoints import reach
from ...lake.opened import open_table
from ...model.positions import order_key
from ...model.sequence import FIRST

APP = "tailrace/history"
"""Application id that counts a history's batches, in its events and in its versions."""
BATCH = "__batch"
"""Column with the number of the batch of an event."""
FORGOTTEN = "events before it are forgotten"
"""Value of `WHY` in the row that stores the sequence before which events were removed."""


@dataclass(frozen=True)
class HistoryEvents:
    """One version of the events table.

    Attributes:
        path: the table's folder.
        key: names of the key's columns.
        schema: the columns of an event.
        delta: the Delta table.
    """

    path: str
    key: tuple[str, ...]
    schema: pa.Schema
    delta: DeltaTable

    @staticmethod
    def at(path: str, key: tuple[str, ...], data: pa.Schema, sequence: pa.DataType) -> HistoryEvents:
        """Opens the newest version."""
        return HistoryEvents(path, key, event_schema(data, sequence), open_table(path))

    @property
    def number(self) -> int | None:
        """The number of the last batch; None if the history has no batch."""
        return lake.reached(self.delta, APP)

    @property
    def horizon(self) -> pa.Scalar:
        """The sequence before which events were removed; NULL if no events were."""
        rows = self._read(ds.field(WHY) == FORGOTTEN)
        return pc.max(rows[SEQUENCE])

    def first(self, which: ds.Expression) -> pa.Scalar:
        """Returns the smallest sequence of the valid events for which a filter holds; NULL if none match."""
        return pc.min(self._read(ds.field(WHY).is_null() & which)[SEQUENCE])

    @property
    def newest(self) -> pa.Scalar:
        """The greatest sequence of the valid events; NULL without events."""
        return pc.max(self._sequences(ds.field(WHY).is_null()))

    def sequences(self, since: str) -> pa.ChunkedArray:
        """Returns the sequences of all events from `since` on, rejected ones included."""
        return self._sequences(ds.field(SEQUENCE) >= since)

    def not_stored(self, found: pa.Table) -> pa.Table:
        """Returns those of the given events whose key and sequence are not stored yet."""
        names = [*self.key, SEQUENCE]
        have = lake.dataset(self.delta).to_table(columns=names, filter=ds.field(SEQUENCE).is_valid())
        have = have.cast(pa.schema([self.schema.field(n) for n in names]))
        numbered = found.select(names).cast(have.schema).append_column(BATCH, pa.array(np.arange(len(found))))
        new = numbered.join(have, names, join_type="left anti")[BATCH]
        return found.take(new.take(pc.sort_indices(new)))

    def initial_rows(self) -> pa.Table:
        """Returns the rows before the first change, in a history that follows a change table."""
        return self._read(ds.field(WHY).is_null() & (ds.field(SEQUENCE) == FIRST))

    def after(self, batch: int | None) -> pa.Table:
        """Returns the valid events of later batches; None: of all."""
        return self._read((ds.field(BATCH) > order_key(batch)) & ds.field(WHY).is_null())

    def stored_for(self, since: StartPerKey, cuts: pa.Scalar, upto: int | None) -> pa.Table:
        """Returns valid events of batches up to a number (None: of none), for the given keys and from their
        start on.

        Truncates are included from there or from `cuts` (NULL: none) on.
        """
        low = pc.min(pa.chunked_array([pa.array([v.as_py()], v.type) for v in (since.least, cuts)]))
        parts = [self.schema.empty_table()]
        if not low.is_valid:
            return parts[0]
        which = (ds.field(SEQUENCE) >= low) & ds.field(WHY).is_null() & (ds.field(BATCH) <= order_key(upto))
        for batch in lake.dataset(self.delta).to_batches(columns=self.schema.names, filter=which):
            rows = pa.Table.from_batches([batch]).cast(self.schema)
            truncate = pc.equal(rows[OPERATION], TRUNCATE_EVENT)
            mine = since.reached(rows, SEQUENCE) | one(truncate).to_numpy(zero_copy_only=False)
            parts.append(rows.filter(pa.array(mine)))
        return pa.concat_tables(parts).combine_chunks()

    def append(self, found: CleanedEvents, progress: Mapping[str, int]) -> int:
        """Stores the next batch without events that are stored already, and returns their number."""
        number, new = self.number, found.events
        known = self.stored_for(StartPerKey.of(new, self.key), first_truncate(new), number)
        _, _, again = decide_ties(pa.concat_tables([new, known]), self.key)
        fresh = new.filter(pa.array(~again[: new.num_rows]))
        rows = pa.concat_tables(
            [fresh.append_column(WHY, pa.nulls(fresh.num_rows, pa.string())), found.aside]
        )
        new_number = order_key(number) + 1
        added = self._part(rows, new_number)
        lake.commit(self.path, added, progress={APP: new_number, **progress}, after={APP: number})
        return int(new.num_rows - fresh.num_rows)

    def rejects(self) -> pa.Table:
        """Returns the rejected events, each once, with the reason in `WHY`."""
        once = _once(self._read(ds.field(WHY).is_valid() & (ds.field(WHY) != FORGOTTEN), WHY))
        good = self._read(ds.field(WHY).is_null()).combine_chunks()
        _, lost, _ = decide_ties(good, self.key)
        tied = good.filter(pa.array(lost))
        return pa.concat_tables([once, tied.append_column(WHY, pa.repeat(TIED, tied.num_rows))])

    def forget(self, before: pa.Scalar, versions: pa.Table, at: str) -> int | None:
        """Removes events before a sequence, except those from which a version valid at that sequence began.

        Args:
            before: the sequence.
            versions: the versions that were valid at it.
            at: the column of `versions` with the start of each.

        Returns:
            The number of removed events; None if another process has written to the events.
        """
        keys = versions.select([*self.key, at]).rename_columns([*self.key, SEQUENCE])
        needed = StartPerKey(keys.combine_chunks(), self.key)
        data = lake.dataset(self.delta)
        part = lake.Part(self.path, lake.arrow_schema(self.path))
        gone = 0
        for batch in data.to_batches():
            rows = pa.Table.from_batches([batch]).cast(lake.arrow_schema(self.path))
            kept = rows.filter(pc.not_equal(rows[WHY].fill_null(""), FORGOTTEN))
            later = pc.greater_equal(kept[SEQUENCE], before).fill_null(True)
            aside = kept[WHY].is_valid()
            keep = one(pc.or_(later, aside)).to_numpy(zero_copy_only=False) | needed.reached(kept, SEQUENCE)
            gone += int((~keep).sum())
            part.write(kept.filter(pa.array(keep)))
        schema = lake.arrow_schema(self.path)
        part.write(self._mark(before).select(schema.names).cast(schema))
        added = part.close()
        reach("history.forget")
        done = lake.overwrite(
            self.path, [added] if added else [], schema=lake.arrow_schema(self.path), progress={},
            only_after=self.delta.version(),
        )  # fmt: skip
        return None if done is None else gone

    def _mark(self, before: pa.Scalar) -> pa.Table:
        """Returns the row that stores the sequence before which events were removed."""
        columns = {f.name: pa.nulls(1, f.type) for f in self.schema} | {SEQUENCE: pa.repeat(before, 1)}
        row = pa.table(columns, schema=self.schema).append_column(WHY, pa.repeat(FORGOTTEN, 1))
        return row.append_column(BATCH, pa.array(np.full(1, order_key(self.number))))

    def _part(self, rows: pa.Table, number: int) -> list[lake.AddedFile]:
        rows = rows.append_column(BATCH, pa.array(np.full(rows.num_rows, number)))
        return lake.write_part(self.path, rows)

    def _sequences(self, which: ds.Expression) -> pa.ChunkedArray:
        kind = self.schema.field(SEQUENCE).type
        return lake.dataset(self.delta).to_table(columns=[SEQUENCE], filter=which)[SEQUENCE].cast(kind)

    def _read(self, which: ds.Expression, *more: str) -> pa.Table:
        names = [*self.schema.names, *more]
        fields = [*self.schema, *(pa.field(n, pa.string()) for n in more)]
        found = lake.dataset(self.delta).to_table(columns=names, filter=which)
        return found.cast(pa.schema(fields)).combine_chunks()


def _once(events: pa.Table) -> pa.Table:
    """Returns each event once, with its earliest time."""
    if not events.num_rows:
        return events
    _, first, number = np.unique(event_hashes(events), return_index=True, return_inverse=True)
    times = pa.table({"number": number, TIME: events[TIME]}).group_by("number").aggregate([(TIME, "min")])
    earliest = times.sort_by("number")[f"{TIME}_min"]
    rows = np.sort(first)
    found = events.take(pa.array(rows))
    return found.set_column(found.column_names.index(TIME), TIME, earliest.take(pa.array(number[rows])))


def events_schema(data: pa.Schema, sequence: pa.DataType) -> pa.Schema:
    """Returns the columns of the events table."""
    return pa.schema([*event_schema(data, sequence), (WHY, pa.string()), (BATCH, pa.int64())])


def first_truncate(events: pa.Table) -> pa.Scalar:
    """Returns the sequence of the first truncate; NULL without a truncate."""
    return pc.min(events.filter(pc.equal(events[OPERATION], TRUNCATE_EVENT))[SEQUENCE])


def flow_app_id(name: str) -> str:
    """Returns the application id that counts the batches of a flow in a history."""
    return f"{APP}/{name}"
