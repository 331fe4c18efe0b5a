"""Selects the records of a log that are no changes of a known table, unchanged; in Spark's tasks, batch by
batch.

They are DDL and SQL, marks of transactions that writing would not generate, and changes that the policy
skips. Source: spec/soliddb.md §3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...model.quoting import quoted
from ...wire.soliddb_address import RANKS, sequences
from ...wire.soliddb_rows import Bools
from ..base import AGAIN, WHY
from .log import COMMIT, DATA, DDL, RECNAMES, ROWS, SEQ, SQL, START, address_bytes, sequences_of
from .pairs import concatenated, skipped, statements
from .rules import CHANGE, MADE, MARK, MOVES, OFF
from .transactions import Marks, Once, RecordStates, equal, marks_of, needed, transactions_of

WAITS = "_waits"
"""The column that shows whether a record's transaction may still be committed."""
_IN_TRANSACTIONS = (*ROWS, START, SQL, DDL)
_EMPTY = ("STMTTRXID", "RELID", "DATA", "TEXTDATA")
_DROPPED = (MARK, MOVES, MADE, CHANGE, OFF)


@dataclass
class _Open:
    """The marks of open transactions: their rows, and for each mark the first LOGADDR of the changes after it
    and the last of those before it (NULL: none)."""

    marks: Marks
    rows: pa.RecordBatch
    first: pa.Array
    last: pa.Array


@dataclass(frozen=True)
class OtherRecords:
    """Selects the records to keep, from records ordered as for `Pairs`, with `SEQ` and `WAITS`; bad ones too,
    with `SEQ` if their LOGADDR has one.

    Attributes:
        capture_off: how transactions with CAPTURE_OFF are treated, a value of the option.
        keep_records: whether records that are no changes are kept.
    """

    capture_off: str
    keep_records: bool

    def schema(self, kinds: Mapping[str, str]) -> str:
        """Returns the Spark schema of the result, from that of the input."""
        came = [f"{quoted(name)} {kind}" for name, kind in kinds.items() if name not in _DROPPED]
        return ", ".join([*came, f"{SEQ} string, {WAITS} boolean"])

    @property
    def by_statement(self) -> bool:
        """Whether the records of a transaction have to be ordered by statement."""
        return self.capture_off == "skip-deletes"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the records of a task that are kept."""
        now: _Open | None = None
        rest: pa.RecordBatch | None = None
        once = Once()
        for each in batches:
            yield from _bad(each)
            batch, copies = once.split(each.filter(each[WHY].is_null()))
            yield from self._again(copies)
            if not batch.num_rows:
                continue
            now = _with(now, batch.filter(batch[MARK]))
            rows = batch.filter(pc.invert(batch[MARK]))
            rows = rows if rest is None else concatenated(rest, rows)
            ends = rows.num_rows
            if self.by_statement and ends:
                statement = statements(rows)
                ends = int(np.searchsorted(statement, statement[-1]))
            rest = rows.slice(ends)
            yield from self._step(rows.slice(0, ends), now)
            left = needed(now.marks, rest, batch)
            over = len(now.marks.recid) - len(left.recid)
            yield from self._marks(now, over)
            now = _Open(left, now.rows.slice(over), now.first.slice(over), now.last.slice(over))
        if now is not None and rest is not None:
            yield from self._step(rest, now)
            yield from self._marks(now, now.rows.num_rows)

    def _again(self, copies: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields copies of records that are no changes, with their reason."""
        rows = copies.filter(pc.invert(copies[CHANGE]))
        if self.keep_records and rows.num_rows:
            seq = sequences(address_bytes(rows["LOGADDR"]))
            why = pa.repeat(AGAIN, rows.num_rows)
            told = rows.set_column(rows.schema.get_field_index(WHY), WHY, why)
            yield _selected(told, seq, np.zeros(rows.num_rows, np.bool_))

    def _step(self, rows: pa.RecordBatch, now: _Open) -> Iterator[pa.RecordBatch]:
        """Yields the records to keep; records the positions of generated changes in their marks."""
        if not rows.num_rows:
            return
        state = transactions_of(rows, now.marks)
        _note(rows, state, now)
        recid = rows["RECID"].to_numpy(zero_copy_only=False)
        change = rows[CHANGE].to_numpy(zero_copy_only=False)
        waits = state.waits & ~state.committed & np.isin(recid, _IN_TRANSACTIONS)
        kept = np.full(len(recid), self.keep_records) & ~change
        if self.keep_records:
            kept |= change & skipped(self.capture_off, state, recid, statements(rows))
        yield from _out(rows, kept | waits, waits)

    def _marks(self, now: _Open, many: int) -> Iterator[pa.RecordBatch]:
        """Yields the first marks that are kept, because writing would generate different ones."""
        if not many:
            return
        rows, marks = now.rows.slice(0, many), now.marks
        following = np.append(marks.transaction[1:] == marks.transaction[:-1], False)[:many]
        start = marks.recid[:many] == START
        waits = start & ~following
        result = np.zeros(many, np.bool_)
        for place, rank, which in ((now.first, "start", start), (now.last, "commit", ~start)):
            mine = pc.binary_replace_slice(place.slice(0, many), -1, 2**31 - 1, bytes([RANKS[rank]]))
            result |= (
                pc.fill_null(pc.equal(rows["LOGADDR"], mine), False).to_numpy(zero_copy_only=False) & which
            )
        kept = np.full(many, self.keep_records) & ~(result & _plain(rows))
        yield from _out(rows, kept | waits, waits)


def _bad(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the bad records, which are in no transaction."""
    if rows[WHY].null_count < rows.num_rows:
        bad = rows.filter(rows[WHY].is_valid())
        yield _selected(bad, sequences_of(bad["LOGADDR"]), np.zeros(bad.num_rows, np.bool_))


def _with(now: _Open | None, more: pa.RecordBatch) -> _Open:
    none = pa.nulls(more.num_rows, pa.binary())
    if now is None:
        return _Open(marks_of(more, None), more, none, none)
    return _Open(
        marks_of(more, now.marks),
        concatenated(now.rows, more) if more.num_rows else now.rows,
        pa.concat_arrays([now.first, none]),
        pa.concat_arrays([now.last, none]),
    )


def _note(rows: pa.RecordBatch, state: RecordStates, now: _Open) -> None:
    """Widens the ranges of marks by positions of changes with a generated LOGADDR after and before them."""
    many = now.rows.num_rows
    derived = pc.and_(rows[CHANGE], rows[MADE]).to_numpy(zero_copy_only=False)
    for order, before, known in (("ascending", 1, now.first), ("descending", 0, now.last)):
        mark = state.part - before
        some = derived & (mark >= 0) & (mark < many)
        some[some] = equal(rows["TRXID"].filter(pa.array(some)), now.rows["TRXID"].take(pa.array(mark[some])))
        if not some.any():
            continue
        table = pa.table({"mark": pa.array(mark[some]), "place": rows["LOGADDR"].filter(pa.array(some))})
        ordered = table.sort_by([("mark", "ascending"), ("place", order)]).combine_chunks()
        marks = ordered["mark"].to_numpy()
        begins = np.flatnonzero(np.append(True, marks[1:] != marks[:-1]))
        index = np.full(many, -1, np.int64)
        index[marks[begins]] = begins
        mine = ordered["place"].combine_chunks().take(pa.array(index, mask=index < 0))
        better = pc.less(mine, known) if before else pc.greater(mine, known)
        # NULL if one of them is missing: then the other one counts.
        wider = pc.coalesce(pc.if_else(better, mine, known), mine, known)
        if before:
            now.first = wider
        else:
            now.last = wider


def _plain(rows: pa.RecordBatch) -> Bools:
    """Whether marks have the values that writing would generate."""
    names = pa.array([RECNAMES[START], RECNAMES[COMMIT]])
    wanted = names.take(pc.cast(pc.equal(rows["RECID"], COMMIT), pa.int8()))
    same = pc.and_(pc.equal(rows["FLAGS"], DATA), pc.equal(rows["RECNAME"], wanted))
    for column in _EMPTY:
        same = pc.and_(same, rows[column].is_null())
    found: Bools = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
    return found


def _out(rows: pa.RecordBatch, kept: Bools, waits: Bools) -> Iterator[pa.RecordBatch]:
    if not kept.any():
        return
    some = rows.filter(pa.array(kept))
    yield _selected(some, sequences(address_bytes(some["LOGADDR"])), waits[kept])


def _selected(rows: pa.RecordBatch, seq: pa.Array, waits: Bools) -> pa.RecordBatch:
    names = [c for c in rows.schema.names if c not in _DROPPED]
    arrays = [*(rows[c] for c in names), seq, pa.array(waits)]
    return pa.RecordBatch.from_arrays(arrays, names=[*names, SEQ, WAITS])


__all__ = ["WAITS", "OtherRecords"]
