"""What a merge inside one task finds out on its way: what became of each change, whatever the target is.

The look at the target's keys that a merge takes in any case tells what each change met. Exceptions are
committed before the target; the part of the key log is handed to whoever commits it after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...lake import delta as lake
from ...model.change import BEFORE, DELETE, INSERT, UPDATE
from ...model.sequence import number_of
from ..carry import carry
from ..decide import NAMES, Decided, Events, decide, tally
from ..fold import OPER, SEQ, null_key
from ..keylog import Stretch
from ..keylog_rows import LETTER, Batch, carried, letters, logged
from ..noted import note_of
from ..null_keys import null_keys
from ..rules import Rules
from .audit import Audit, Audited
from .base import Outcome
from .delta_changes import RowsOf, Source, one, order, whole
from .delta_local import typed
from .delta_marks import marked
from .row_keys import Keys

if TYPE_CHECKING:
    pass


class BatchAuditor:
    """The auditor of one merge; decides anew when the merge has to begin again."""

    def __init__(self, audit: Audit, upto: int, source: Source) -> None:
        self._audit, self._most = audit, upto
        self._rows = source.rows
        self._events = _events(source)
        keys = [(name, one(source.rows[name])) for name in source.key]
        if bad := null_keys(keys, self._events.oper, self._events.change):
            self._events = replace(self._events, bad=bad.rows)
        self._why = bad.why if bad else None
        self._refuse_null_keys(source.key)
        self._batch: Batch | None = None
        self._writing: Future[lake.AddedFile | None] | None = None
        self._part: lake.AddedFile | None = None

    def _refuse_null_keys(self, key: Sequence[str]) -> None:
        if self._events.bad is not None and self._audit.plain:
            first = int(np.argmax(self._events.bad))
            raise null_key(self._audit.table, key, self._seq[first].as_py())

    @cached_property
    def _seq(self) -> pa.StringArray:
        return one(self._rows[SEQ])

    @property
    def upto(self) -> int:
        """The change number reached."""
        assert self._batch is not None  # noqa: S101 - asked once decided
        end = self._batch.decided.upto
        if self._batch.decided.ends is None:
            return self._most
        return max((number_of(s) for s in self._seq[max(end - 1, 0) : end].to_pylist()), default=-1)

    def decide(
        self, source: Source, exists: npt.NDArray[np.bool_], rows_of: RowsOf, pool: ThreadPoolExecutor
    ) -> Source:
        """See `delta_changes.Auditor`."""
        decided = self.judge(exists, pool)
        there, marks = carried(self._rows, self._audit.sheet.ordinals), source.mark is not None
        imaged = decided.effective
        if marks:
            source, there = marked(source, self._events, decided, there)
        else:
            imaged = imaged & ~np.isin(self._events.oper, [DELETE, BEFORE])
        if there is None or there[imaged].all():
            return replace(source, last=decided.last(source.keys.place, len(source.last)))
        return whole(source, carry(self._events, decided, there, marks=marks), rows_of)

    def judge(self, exists: npt.NDArray[np.bool_], pool: ThreadPoolExecutor) -> Decided:
        """Decides all changes, and begins to write the key log."""
        decided = decide(self._events, exists, self._audit.rules, self._audit.counted)
        self._batch = Batch(self._rows, self._events, decided, self._audit.rules, self._why)
        self._writing = pool.submit(self._log, self._batch)
        return decided

    def finish(self) -> None:
        """See `delta_changes.Auditor`."""
        assert self._batch is not None and self._writing is not None  # noqa: S101 - decided before
        self._part = self._writing.result()
        audit = self._audit
        if audit.rules.keeps:
            audit.exceptions.take_back(audit.table, audit.after, audit.counted)
        if len(aside := self._batch.aside()):
            rows = logged(self._batch, audit.sheet, audit.exceptions.rows_schema, aside)
            counts = self._counts()
            audit.exceptions.keep_rows(rows, audit.table, self.upto, after=audit.after, counts=counts)

    def _counts(self) -> dict[str, tuple[int, int]]:
        """Kind -> conflicts before the batch, and with it, of the kinds that have a limit."""
        assert self._batch is not None  # noqa: S101 - decided before
        rules, counted = self._audit.rules, self._audit.counted
        found = {kind: (counted.get(kind, 0), counted.get(kind, 0)) for kind in rules.limits}
        for situation, (many, _) in tally(self._events, self._batch.decided).items():
            if (kind := rules.outcome(situation).conflict) in found:
                before, now = found[kind]
                found[kind] = before, now + many
        return found

    def _log(self, batch: Batch) -> lake.AddedFile | None:
        if (log := self._audit.keylog) is None:
            return None
        rows = batch.changes
        part = lake.Part(log.path, log.schema)
        rows = rows[batch.flagged(rows)] if log.mode == "errors" else rows
        part.write(logged(batch, log.sheet, log.schema, rows, images=log.mode != "keys"))
        return part.close()

    def note(self) -> tuple[str, int] | None:
        """What a target without versions keeps of the part of the key log, and up to which change number
        earlier notes are needed no more; None when there is no key log."""
        if (log := self._audit.keylog) is None or (batch := self._batch) is None:
            return None
        sheet, flagged = log.sheet, int(batch.flagged(batch.changes).sum())
        one = Stretch(sheet.subscription, sheet.after, self.upto, flagged)
        sort = sheet.sort + self._most - sheet.after
        return note_of([self._part] if self._part else [], one, log.path, sort), log.visible

    def told(self, outcome: Outcome) -> Audited | None:
        """What was found; None when the target had the batch already."""
        if self._batch is None:
            return None
        batch, events, decided = self._batch, self._events, self._batch.decided
        counts = Counter(events.oper[batch.changes].tolist())
        odd = {s: (n, self._seq[row].as_py()) for s, (n, row) in tally(events, decided).items()}
        ends, why = None, None
        if decided.ends is not None:
            kind = batch.rules.outcome(NAMES[decided.situation[decided.ends]]).conflict
            assert kind is not None  # noqa: S101 - only conflicts end a batch
            ends = (self._seq[decided.ends].as_py(), kind, decided.policy)
            why = None if self._why is None else self._why[decided.ends].as_py()
        told = {k: counts[k] for k in "IUDT"}
        return Audited(outcome, self.upto, told, odd, ends, self._part, why)


def _events(source: Source) -> Events:
    seq = one(source.rows[SEQ])
    change = np.zeros(len(seq), np.int64)
    change[1:] = np.cumsum(pc.not_equal(seq[1:], seq[:-1]).to_numpy(zero_copy_only=False))
    return Events(letters(one(source.rows[OPER])), change, source.keys.place)


def wanted(extra: pa.Schema, data: pa.Schema) -> pa.Schema:
    """The columns of an audited batch: `SEQ`, `OPER`, what `extra` names (see `keylog_rows`), the data."""
    order_by = [pa.field(n, pa.string()) for n in (SEQ, OPER)]
    return pa.schema([*order_by, *extra, *data])


def held(batches: Iterable[pa.RecordBatch], columns: pa.Schema, memory_bytes: int | None) -> pa.Table | None:
    """A batch's rows in their order; None when they take more than a third of the memory."""
    found, size = [], 0
    for batch in batches:
        found.append(typed(batch, columns))
        size += batch.nbytes
        if memory_bytes is not None and size > memory_bytes // 3:
            return None
    rows = pa.Table.from_batches(found, columns).combine_chunks()
    places = order(rows)
    return rows if places is None else rows.take(pa.array(places)).combine_chunks()


def archived(rows: pa.Table, schema: pa.Schema) -> tuple[Source, pa.Table]:
    """The changes of an archive's batch, which have no key to be looked up, and its rows."""
    rows = rows.set_column(rows.schema.names.index(OPER), OPER, rows[LETTER])
    keys, none = Keys([pa.nulls(rows.num_rows, pa.int8())]), np.zeros(rows.num_rows, np.bool_)
    source = Source(rows, (), schema, False, keys, keys.last, none)
    kept = pc.is_in(rows[OPER], value_set=pa.array([INSERT, UPDATE, DELETE]))
    return source, rows.select(schema.names).filter(kept)


def source_of(rows: pa.Table, key: tuple[str, ...], schema: pa.Schema, rules: Rules) -> Source:
    """The rows ready to be merged under rules."""
    source = Source.of(rows, key, schema, partial=False)
    return replace(source, mark=rules.soft_column) if rules.mode == "soft_delete" else source
