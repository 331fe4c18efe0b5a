"""Converts one table's records, ordered by transaction and statement, to its changes: decodes rows, pairs
updates and key changes. Runs in Spark's tasks, batch by batch; open records of a batch wait for the next one.

Source: spec/soliddb.md §2-§5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...model.change import BEFORE, UPDATE
from ...model.quoting import quoted
from ...wire.soliddb_address import sequences
from ...wire.soliddb_rows import Bools, Ints
from ..base import AGAIN, FINER, WHY
from .codec import Decoding
from .log import (
    DATA,
    DDL,
    OPERS,
    RANK,
    REC_BEFORE,
    REC_DELETE,
    REC_INSERT,
    REC_UPDATE,
    SEQ,
    address_bytes,
    record_names,
)  # fmt: skip
from .rules import LAYOUT, MADE, MARK, MOVES
from .transactions import Marks, Once, RecordStates, marks_of, needed, transactions_of

OPER = "_oper"
"""The column of the resulting operation."""
EXACT, SAME = "_exact", "_same"
"""Columns that show whether writing the values generates the same DATA, and whether the same record."""
NO_COMMIT = "its transaction has no COMMIT, although its TRXID starts again"
NO_START = (
    "its transaction has no TRX_START: put the part of the log where it starts next to this one "
    "(starts=optional, if the log has no TRX_START)"
)
OTHER_ROW = "before image of another row than the update's"
_DROPPED = (MARK, MOVES, RANK, WHY, FINER)
_LETTERS = [*dict.fromkeys(OPERS.values())]


@dataclass(frozen=True)
class Pairs:
    """Converts a table's records in order (`transactions.ordered`) to its changes, with `OPER`, `SEQ` (B has
    that of its U), the columns of `decoding`, `EXACT` and `SAME`; reasons in `WHY`.

    A transaction starts with TRX_START, or, if `starts` is `optional`, after the COMMIT of the previous one.
    Among the records of one statement, 5 followed by 3 is an update; alternating inserts and deletes with
    different keys are key changes (delete and insert in either order).

    Attributes:
        key: indexes of the key's columns.
        opers: rank of a generated LOGADDR -> operation.
        capture_off: how transactions with CAPTURE_OFF are treated, a value of the option.
        starts: whether changes of transactions without TRX_START are bad, a value of the option.
        truncate: DATA of the table's truncates as writing generates it.
    """

    decoding: Decoding
    key: tuple[int, ...]
    opers: dict[int, str]
    capture_off: str
    starts: str
    truncate: bytes = b""

    def schema(self, kinds: Mapping[str, str]) -> str:
        """Returns the Spark schema of the result, from that of the input."""
        came = [f"{quoted(name)} {kind}" for name, kind in kinds.items() if name not in _DROPPED]
        values = [f"_c{i} {t}" for i, (_, t) in enumerate(self.decoding.columns)]
        more = f"{EXACT} boolean, {SAME} boolean, {WHY} string, {FINER} boolean, {OPER} string"
        return ", ".join([*came, f"{SEQ} string", *values, more])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the changes of a task's records."""
        marks: Marks | None = None
        rest: pa.RecordBatch | None = None
        strict, once = True, Once()
        for each in batches:
            batch, copies = once.split(each)
            marks = marks_of(batch.filter(batch[MARK]), marks)
            rows = batch.filter(pc.invert(batch[MARK]))
            rows = rows if rest is None else concatenated(rest, rows)
            result, rest, strict = self._step(rows, marks, strict=strict, last=False)
            yield from self._again(copies.filter(pc.invert(copies[MARK])), marks)
            marks = needed(marks, rest, batch)
            if result.num_rows:
                yield result
        if rest is not None and marks is not None:
            result, _, _ = self._step(rest, marks, strict=strict, last=True)
            if result.num_rows:
                yield result

    def _again(self, copies: pa.RecordBatch, marks: Marks) -> Iterator[pa.RecordBatch]:
        """Yields copies of records, unpaired, with their reason; without those of transactions that wait."""
        state = transactions_of(copies, marks)
        stays = state.committed | ~state.waits
        if not stays.any():
            return
        rows, state = copies.filter(pa.array(stays)), state.where(stays)
        n = rows.num_rows
        recid = rows["RECID"].to_numpy(zero_copy_only=False)
        result = self._changes(rows, state, recid, np.arange(n), n, strict=True)
        yield result.set_column(result.schema.get_field_index(WHY), WHY, pa.repeat(AGAIN, n))

    def _step(
        self, rows: pa.RecordBatch, marks: Marks, *, strict: bool, last: bool
    ) -> tuple[pa.RecordBatch, pa.RecordBatch, bool]:
        """Returns the changes that are complete, the records that wait for the next batch, and whether
        inserts and deletes of the statement that continues have alternated (`strict`: in the batch
        before)."""
        statement = statements(rows)
        ends, kept = len(statement), rows.slice(len(statement))
        if self.capture_off == "skip-deletes" and not last and ends:
            ends = int(np.searchsorted(statement, statement[-1]))
            rows, kept, statement, last = rows.slice(0, ends), rows.slice(ends), statement[:ends], True
        state = transactions_of(rows, marks)
        recid = rows["RECID"].to_numpy(zero_copy_only=False)
        stays = (state.committed | ~state.waits) & ~skipped(self.capture_off, state, recid, statement)
        if not stays.all():
            rows, state = rows.filter(pa.array(stays)), state.where(stays)
            recid, statement = recid[stays], statement[stays]
        group = _groups(rows, statement, state)
        if last or not len(group):
            return self._changes(rows, state, recid, group, len(group), strict=strict), kept, True
        begins = int(np.searchsorted(group, group[-1]))
        alternate = _alternate(recid, group, strict=strict)
        open_ = alternate[-1] and rows[MOVES][len(group) - 1].as_py()
        # If they have not alternated, a record is paired by its neighbour alone.
        ends = begins if open_ else len(group) - 1
        result = self._changes(rows, state, recid, group, ends, strict=strict)
        return result, rows.slice(ends), bool(alternate[-1])

    def _changes(
        self, rows: pa.RecordBatch, state: RecordStates, recid: Ints, group: Ints, ends: int, *, strict: bool
    ) -> pa.RecordBatch:
        """Returns the first `ends` records as changes."""
        *values, exact, bad, finer = self.decoding.decode(rows["DATA"], rows[LAYOUT], rows["RECID"])
        n = len(recid)
        headless = ~state.begun & (self.starts == "required")
        derived, moves = (rows[c].to_numpy(zero_copy_only=False) for c in (MADE, MOVES))
        # np.append: no record follows the last one.
        follows = np.append(group[1:] == group[:-1], False)
        wrong = bad.is_valid().to_numpy(zero_copy_only=False) | ~state.committed | headless
        key = numbered([values[i] for i in self.key], n)
        following = np.minimum(np.arange(n) + 1, n - 1)
        update = (recid == REC_BEFORE) & follows & (recid[following] == REC_UPDATE)
        other_row = np.zeros(n, np.bool_)
        if self.key:  # updates never change it
            same = (key[following] == key) | derived | wrong[following]
            other_row = update & ~same & ~wrong
            update &= same
        moved, partner = _moved(rows, group, recid, moves & ~derived, strict=strict)
        moved &= ~wrong & ~wrong[partner] & (key[partner] != key) if self.key else False
        letter = np.zeros(n, np.int64)
        for code, oper in OPERS.items():
            letter[recid == code] = _LETTERS.index(oper)
        letter[moved] = np.where(recid[moved] == REC_DELETE, *map(_LETTERS.index, (BEFORE, UPDATE)))
        ranks = rows[RANK].fill_null(-1).to_numpy(zero_copy_only=False)
        for rank, oper in self.opers.items():
            letter[derived & (ranks == rank)] = _LETTERS.index(oper)
        seq = _sequences(rows, update & ~derived, moved & ~derived, partner, following)
        why = _why(bad, {NO_START: headless, NO_COMMIT: ~state.committed, OTHER_ROW: other_row})
        names = [c for c in rows.schema.names if c not in _DROPPED]
        arrays = [
            *(rows[c] for c in names),
            seq,
            *values,
            *self._same(rows, exact),
            why,
            finer,
            pa.array(_LETTERS).take(pa.array(letter)),
        ]
        named = [*names, SEQ, *(f"_c{i}" for i in range(len(values))), EXACT, SAME, WHY, FINER, OPER]
        return pa.RecordBatch.from_arrays(arrays, names=named).slice(0, ends)

    def _same(self, rows: pa.RecordBatch, exact: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Returns `EXACT` and `SAME` of records; a truncate, whose DATA is no row, is compared by its
        bytes."""
        truncates = pc.equal(rows["RECID"], DDL)
        exact = pc.fill_null(pc.if_else(truncates, pc.equal(rows["DATA"], self.truncate), exact), False)
        usual = pc.and_(pc.equal(rows["FLAGS"], DATA), pc.equal(rows["RECNAME"], record_names(rows["RECID"])))
        kept = pc.and_(pc.and_(rows[MADE], exact), pc.and_(usual, rows["TEXTDATA"].is_null()))
        return exact, pc.fill_null(kept, False)


def skipped(policy: str, state: RecordStates, recid: Ints, statement: Ints) -> Bools:
    """Returns the records that are no changes under the policy (the option `capture_off`). A delete in a
    statement that also inserts into the table is half of a key change: `skip-deletes` does not skip it."""
    if policy == "keep":
        return np.zeros(len(recid), np.bool_)
    if policy == "skip-all" or not state.off.any():
        return state.off
    both = statement * (int(state.part.max(initial=0)) + 1) + state.part
    inserts = np.isin(both, both[recid == REC_INSERT])
    found: Bools = state.off & (recid == REC_DELETE) & ~inserts
    return found


def concatenated(first: pa.RecordBatch, then: pa.RecordBatch) -> pa.RecordBatch:
    both = pa.Table.from_batches([first, then]).combine_chunks().to_batches()
    return both[0] if both else then


def statements(rows: pa.RecordBatch) -> Ints:
    """Returns a number for each transaction, table and statement, ascending."""
    return _runs([*_plain(rows["TRXID"]), *_plain(rows["RELID"]), *_plain(rows["STMTTRXID"])], rows.num_rows)


def _groups(rows: pa.RecordBatch, statement: Ints, state: RecordStates) -> Ints:
    """Returns a number for each group of neighbouring records, ascending."""
    result, moves = (rows[c].to_numpy(zero_copy_only=False) for c in (MADE, MOVES))
    return _runs([statement, state.part, result, moves], rows.num_rows)


def _plain(values: pa.Array) -> list[npt.NDArray[np.generic]]:
    return [
        values.fill_null(0).to_numpy(zero_copy_only=False),
        values.is_valid().to_numpy(zero_copy_only=False),
    ]


def _runs(columns: Sequence[npt.NDArray[np.generic]], n: int) -> Ints:
    differs = np.zeros(n, np.bool_)
    for values in columns:
        differs[1:] |= values[1:] != values[:-1]
    return np.cumsum(differs)


def _alternate(recid: Ints, group: Ints, *, strict: bool) -> Bools:
    """Whether no two neighbours in a record's group are of the same kind; `strict`: those before the
    first."""
    again = np.zeros(len(recid), np.bool_)
    again[1:] = (group[1:] == group[:-1]) & (recid[1:] == recid[:-1])
    if len(again):
        again[0] = not strict
    some = np.zeros(int(group[-1]) + 1 if len(group) else 0, np.bool_)
    some[group[again]] = True
    found: Bools = ~some[group]
    return found


def _moved(
    rows: pa.RecordBatch, group: Ints, recid: Ints, moves: Bools, *, strict: bool
) -> tuple[Bools, Ints]:
    """Returns which records may be halves of key changes, and their other halves."""
    n = len(recid)
    first = np.searchsorted(group, group)
    size = np.searchsorted(group, group, "right") - first
    known = rows["STMTTRXID"].is_valid().to_numpy(zero_copy_only=False)
    pairs = moves & known & (size % 2 == 0) & _alternate(recid, group, strict=strict)
    at = np.arange(n)
    partner = np.where((at - first) % 2 == 0, at + 1, at - 1)
    return pairs, np.where(pairs, partner, at)


def numbered(columns: Sequence[pa.Array], n: int) -> Ints:
    """Returns a number for each different key; NULL is an ordinary value."""
    key = np.zeros(n, np.int64)
    for place, values in enumerate(columns):
        known = values.dictionary_encode(null_encoding="encode")
        code = known.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        both = key * (len(known.dictionary) + 1) + code
        key = np.unique(both, return_inverse=True)[1] if place else both
    return key


def _sequences(
    rows: pa.RecordBatch, update: Bools, moved: Bools, partner: Ints, following: Ints
) -> pa.StringArray:
    """Returns the change sequences; pairs have that of their second record."""
    seq = sequences(address_bytes(rows["LOGADDR"])) if rows.num_rows else pa.array([], pa.string())
    at = np.arange(len(seq))
    at = np.where(update, following, np.where(moved, np.maximum(partner, at), at))
    return seq if (at == np.arange(len(seq))).all() else seq.take(pa.array(at))


def _why(bad: pa.Array, reasons: Mapping[str, Bools]) -> pa.Array:
    result = bad
    for text, condition in reasons.items():
        if condition.any():
            reason = pc.if_else(pa.array(condition), pa.scalar(text), pa.scalar(None, pa.string()))
            result = pc.coalesce(pc.binary_join_element_wise(result, reason, "; "), result, reason)
    return result
