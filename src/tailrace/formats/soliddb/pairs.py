"""One table's records, ordered by transaction and statement -> its changes: rows decoded, updates and key
changes paired. Runs in Spark's tasks, a batch at a time; what a batch leaves open waits for the next one.

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
from .transactions import Marks, Of, Once, marks_of, needed, transactions_of

OPER = "_oper"
"""Column with the operation that records leave with."""
EXACT, SAME = "_exact", "_same"
"""Columns: whether writing the values gives DATA again, and whether it gives the whole record again."""
NO_COMMIT = "its transaction has no COMMIT, though its TRXID begins again"
NO_START = (
    "its transaction has no TRX_START: put the part of the log where it begins next to this one "
    "(starts=optional, if the log has no TRX_START)"
)
OTHER_ROW = "before image of another row than the update's"
_DROPPED = (MARK, MOVES, RANK, WHY, FINER)
_LETTERS = [*dict.fromkeys(OPERS.values())]


@dataclass(frozen=True)
class Pairs:
    """Turns a table's records in order (`transactions.ordered`) into its changes, with `OPER`, `SEQ` (B takes
    that of its U), the columns of `decoding`, `EXACT` and `SAME`; reasons in `WHY`.

    A transaction begins with TRX_START, or, where `starts` is `optional`, after the COMMIT of the one
    before. Neighbours among the records
    of one statement: 5 with the 3 after it is an update; inserts and deletes that strictly alternate, with
    different keys, are key changes (delete and insert in either order).

    Attributes:
        key: places of the key's columns.
        opers: rank of a made LOGADDR -> operation.
        capture_off: what transactions with CAPTURE_OFF mean, as the option says it.
        starts: whether changes of transactions without TRX_START are bad, as the option says it.
        truncate: DATA of the table's truncates as writing makes it.
    """

    decoding: Decoding
    key: tuple[int, ...]
    opers: dict[int, str]
    capture_off: str
    starts: str
    truncate: bytes = b""

    def schema(self, kinds: Mapping[str, str]) -> str:
        """The Spark schema of the rows that come out, from that of those that come."""
        came = [f"{quoted(name)} {kind}" for name, kind in kinds.items() if name not in _DROPPED]
        values = [f"_c{i} {t}" for i, (_, t) in enumerate(self.decoding.columns)]
        more = f"{EXACT} boolean, {SAME} boolean, {WHY} string, {FINER} boolean, {OPER} string"
        return ", ".join([*came, f"{SEQ} string", *values, more])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The changes of a task's records."""
        marks: Marks | None = None
        rest: pa.RecordBatch | None = None
        strict, once = True, Once()
        for each in batches:
            batch, copies = once.split(each)
            marks = marks_of(batch.filter(batch[MARK]), marks)
            rows = batch.filter(pc.invert(batch[MARK]))
            rows = rows if rest is None else concatenated(rest, rows)
            made, rest, strict = self._step(rows, marks, strict=strict, last=False)
            yield from self._again(copies.filter(pc.invert(copies[MARK])), marks)
            marks = needed(marks, rest, batch)
            if made.num_rows:
                yield made
        if rest is not None and marks is not None:
            made, _, _ = self._step(rest, marks, strict=strict, last=True)
            if made.num_rows:
                yield made

    def _again(self, copies: pa.RecordBatch, marks: Marks) -> Iterator[pa.RecordBatch]:
        """Copies of records, each by itself, with their reason; not yet those of transactions that wait."""
        of = transactions_of(copies, marks)
        stays = of.committed | ~of.waits
        if not stays.any():
            return
        rows, of = copies.filter(pa.array(stays)), of.where(stays)
        n = rows.num_rows
        recid = rows["RECID"].to_numpy(zero_copy_only=False)
        made = self._changes(rows, of, recid, np.arange(n), n, strict=True)
        yield made.set_column(made.schema.get_field_index(WHY), WHY, pa.repeat(AGAIN, n))

    def _step(
        self, rows: pa.RecordBatch, marks: Marks, *, strict: bool, last: bool
    ) -> tuple[pa.RecordBatch, pa.RecordBatch, bool]:
        """The changes that are sure, the records that wait for the next batch, and whether inserts and
        deletes of the statement that continues have alternated (`strict`: in the batch before)."""
        statement = statements(rows)
        ends, kept = len(statement), rows.slice(len(statement))
        if self.capture_off == "skip-deletes" and not last and ends:
            ends = int(np.searchsorted(statement, statement[-1]))
            rows, kept, statement, last = rows.slice(0, ends), rows.slice(ends), statement[:ends], True
        of = transactions_of(rows, marks)
        recid = rows["RECID"].to_numpy(zero_copy_only=False)
        stays = (of.committed | ~of.waits) & ~skipped(self.capture_off, of, recid, statement)
        if not stays.all():
            rows, of = rows.filter(pa.array(stays)), of.where(stays)
            recid, statement = recid[stays], statement[stays]
        group = _groups(rows, statement, of)
        if last or not len(group):
            return self._changes(rows, of, recid, group, len(group), strict=strict), kept, True
        begins = int(np.searchsorted(group, group[-1]))
        alternate = _alternate(recid, group, strict=strict)
        open_ = alternate[-1] and rows[MOVES][len(group) - 1].as_py()
        # Where they have not alternated, a record is paired by its neighbour alone.
        ends = begins if open_ else len(group) - 1
        made = self._changes(rows, of, recid, group, ends, strict=strict)
        return made, rows.slice(ends), bool(alternate[-1])

    def _changes(
        self, rows: pa.RecordBatch, of: Of, recid: Ints, group: Ints, ends: int, *, strict: bool
    ) -> pa.RecordBatch:
        """The first `ends` records as changes."""
        *values, exact, bad, finer = self.decoding.decode(rows["DATA"], rows[LAYOUT], rows["RECID"])
        n = len(recid)
        headless = ~of.begun & (self.starts == "required")
        made, moves = (rows[c].to_numpy(zero_copy_only=False) for c in (MADE, MOVES))
        # np.append: there is none after the last record.
        follows = np.append(group[1:] == group[:-1], False)
        wrong = bad.is_valid().to_numpy(zero_copy_only=False) | ~of.committed | headless
        key = numbered([values[i] for i in self.key], n)
        following = np.minimum(np.arange(n) + 1, n - 1)
        update = (recid == REC_BEFORE) & follows & (recid[following] == REC_UPDATE)
        other_row = np.zeros(n, np.bool_)
        if self.key:  # updates never change it
            same = (key[following] == key) | made | wrong[following]
            other_row = update & ~same & ~wrong
            update &= same
        moved, partner = _moved(rows, group, recid, moves & ~made, strict=strict)
        moved &= ~wrong & ~wrong[partner] & (key[partner] != key) if self.key else False
        letter = np.zeros(n, np.int64)
        for code, oper in OPERS.items():
            letter[recid == code] = _LETTERS.index(oper)
        letter[moved] = np.where(recid[moved] == REC_DELETE, *map(_LETTERS.index, (BEFORE, UPDATE)))
        ranks = rows[RANK].fill_null(-1).to_numpy(zero_copy_only=False)
        for rank, oper in self.opers.items():
            letter[made & (ranks == rank)] = _LETTERS.index(oper)
        seq = _sequences(rows, update & ~made, moved & ~made, partner, following)
        why = _why(bad, {NO_START: headless, NO_COMMIT: ~of.committed, OTHER_ROW: other_row})
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
        """`EXACT` and `SAME` of records: of a truncate, whose DATA is no row, by its bytes."""
        truncates = pc.equal(rows["RECID"], DDL)
        exact = pc.fill_null(pc.if_else(truncates, pc.equal(rows["DATA"], self.truncate), exact), False)
        usual = pc.and_(pc.equal(rows["FLAGS"], DATA), pc.equal(rows["RECNAME"], record_names(rows["RECID"])))
        kept = pc.and_(pc.and_(rows[MADE], exact), pc.and_(usual, rows["TEXTDATA"].is_null()))
        return exact, pc.fill_null(kept, False)


def skipped(policy: str, of: Of, recid: Ints, statement: Ints) -> Bools:
    """Records that the policy (the option `capture_off`) keeps from being changes. A delete in a statement
    that inserts into the table, too, is half of a key change: `skip-deletes` lets it be."""
    if policy == "keep":
        return np.zeros(len(recid), np.bool_)
    if policy == "skip-all" or not of.off.any():
        return of.off
    both = statement * (int(of.part.max(initial=0)) + 1) + of.part
    inserts = np.isin(both, both[recid == REC_INSERT])
    found: Bools = of.off & (recid == REC_DELETE) & ~inserts
    return found


def concatenated(first: pa.RecordBatch, then: pa.RecordBatch) -> pa.RecordBatch:
    both = pa.Table.from_batches([first, then]).combine_chunks().to_batches()
    return both[0] if both else then


def statements(rows: pa.RecordBatch) -> Ints:
    """A number for each transaction, table and statement, ascending."""
    return _runs([*_plain(rows["TRXID"]), *_plain(rows["RELID"]), *_plain(rows["STMTTRXID"])], rows.num_rows)


def _groups(rows: pa.RecordBatch, statement: Ints, of: Of) -> Ints:
    """A number for each group of records that are neighbours to one another, ascending."""
    made, moves = (rows[c].to_numpy(zero_copy_only=False) for c in (MADE, MOVES))
    return _runs([statement, of.part, made, moves], rows.num_rows)


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
    """Whether no two neighbours of a record's group are of one kind; `strict`: those before the first."""
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
    """Which records may be halves of key changes, and their other halves."""
    n = len(recid)
    first = np.searchsorted(group, group)
    size = np.searchsorted(group, group, "right") - first
    known = rows["STMTTRXID"].is_valid().to_numpy(zero_copy_only=False)
    pairs = moves & known & (size % 2 == 0) & _alternate(recid, group, strict=strict)
    at = np.arange(n)
    partner = np.where((at - first) % 2 == 0, at + 1, at - 1)
    return pairs, np.where(pairs, partner, at)


def numbered(columns: Sequence[pa.Array], n: int) -> Ints:
    """A number for each different key; NULL is a value like others."""
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
    """The change sequences, of pairs that of the one following."""
    seq = sequences(address_bytes(rows["LOGADDR"])) if rows.num_rows else pa.array([], pa.string())
    at = np.arange(len(seq))
    at = np.where(update, following, np.where(moved, np.maximum(partner, at), at))
    return seq if (at == np.arange(len(seq))).all() else seq.take(pa.array(at))


def _why(bad: pa.Array, reasons: Mapping[str, Bools]) -> pa.Array:
    made = bad
    for text, condition in reasons.items():
        if condition.any():
            reason = pc.if_else(pa.array(condition), pa.scalar(text), pa.scalar(None, pa.string()))
            made = pc.coalesce(pc.binary_join_element_wise(made, reason, "; "), made, reason)
    return made
