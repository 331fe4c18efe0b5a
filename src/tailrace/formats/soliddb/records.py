"""Converts a table's changes to its records of SYS_LOG, in arrays: in Spark's tasks, or for rows of a small
log.

Source: spec/soliddb.md §2-§5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...model.change import BEFORE, DELETE, INSERT, TRUNCATE, UPDATE
from ...model.types import arrow_type
from ...wire.soliddb_address import RANKS, addresses
from ...wire.soliddb_rows import Bools, Ints
from .codec import Encoding
from .log import (
    COLUMNS,
    COMMIT,
    DATA,
    DDL,
    REC_BEFORE,
    REC_DELETE,
    REC_INSERT,
    REC_UPDATE,
    RECNAMES,
    ROWS,
    START,
    SYS_LOG,
    truncate_body,
)  # fmt: skip
from .pairs import numbered
from .tables import SolidLayout

SEQ, OPER, OWN = "_seq", "_oper", "_native"
"""Columns of changes: change sequence, operation, whether the row has solidDB's own values (`_LOGADDR`,
`_RECID`, ...)."""
_OPERS = (BEFORE, DELETE, INSERT, UPDATE, TRUNCATE)
_RECIDS = np.array([REC_BEFORE, REC_DELETE, REC_INSERT, REC_UPDATE, DDL], np.int32)
_RANKS = np.array([RANKS[o] for o in _OPERS], np.uint8)
_KINDS = {c.name: arrow_type(c.type) for c in SYS_LOG.columns}
SCHEMA = ", ".join(f"{c.name} {c.type}" for c in SYS_LOG.columns)
"""The Spark schema of records."""
ENDS = "TRXID bigint, _first binary, _last binary"
"""The Spark schema of the first and the last LOGADDR of transactions."""


@dataclass(frozen=True)
class Records:
    """Creates the records of one table's changes: B directly before its U, if there is a key.

    A batch has `SEQ`, `OPER`, `TRXID`, `STMTTRXID`, the values `_c0`, `_c1`, ..., and with `own` `OWN` and
    solidDB's own values.

    Attributes:
        table: its name.
        layouts: its layouts; without any, no records are created.
        encoding: encodes rows as DATA; its fields are those of `layouts`.
        key: indexes of the key's columns.
        length: bytes of a LOGADDR.
        own: whether rows may have solidDB's own values.
    """

    table: str
    layouts: tuple[SolidLayout, ...]
    encoding: Encoding
    key: tuple[int, ...]
    length: int
    own: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the records of a task's changes; a B at the end of a batch waits for its U."""
        rest: list[pa.RecordBatch] = []
        for batch in batches:
            if not batch.num_rows or not self.layouts:
                continue
            rows = pa.Table.from_batches([*rest, batch]).combine_chunks().to_batches()[0]
            ends = rows.num_rows
            if self.key and rows[OPER][ends - 1].as_py() == BEFORE:
                ends -= 1
            rest = [rows.slice(ends)] if ends < rows.num_rows else []
            if ends:
                yield self.records(rows.slice(0, ends))
        for batch in rest:
            yield self.records(batch)

    def records(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the records of these changes."""
        n = rows.num_rows
        letter = _letters(rows[OPER])
        recid = pa.array(_RECIDS[letter], mask=letter < 0)
        if self.key and (moved := self._moved(rows, letter)).any():
            halves = np.where(letter == 0, REC_DELETE, REC_INSERT).astype(np.int32)
            recid = pc.if_else(pa.array(moved), pa.array(halves), recid)
        recid = self._or_own(rows, "RECID", recid)
        address = self._addresses(rows, letter)
        layout = self._layout(rows, recid, address)
        values = [rows[f"_c{i}"] for i in range(len(self.encoding.columns))]
        encoded = self.encoding.encode(values, layout)
        ddl = pc.fill_null(pc.equal(recid, DDL), False)
        data = pc.if_else(ddl, pa.scalar(truncate_body(self.table)), encoded)
        relid = pa.array([x.relid for x in self.layouts], pa.int32()).take(layout)
        if self.own:
            relid = pc.coalesce(relid, rows["_RELID"])
            data = pc.coalesce(pc.if_else(rows[OWN], rows["_DATA"], None), data)
        result = {
            "RECID": recid,
            "RECNAME": self._or_own(rows, "RECNAME", _names(recid)),
            "TRXID": rows["TRXID"],
            "STMTTRXID": rows["STMTTRXID"],
            "RELID": self._or_own(rows, "RELID", pc.fill_null(relid, self.layouts[-1].relid)),
            "FLAGS": self._or_own(rows, "FLAGS", pa.array(np.full(n, DATA, np.int32))),
            "LOGADDR": address,
            "DATA": data,
            "TEXTDATA": self._or_own(rows, "TEXTDATA", pa.nulls(n, pa.string())),
        }
        return _batch(result)

    def _or_own(self, rows: pa.RecordBatch, name: str, derived: pa.Array) -> pa.Array:
        return pc.if_else(rows[OWN], rows[f"_{name}"], derived) if self.own else derived

    def _moved(self, rows: pa.RecordBatch, letter: Ints) -> Bools:
        """Returns which rows belong to an update that changes the key."""
        seq, n = rows[SEQ], rows.num_rows
        pair = np.zeros(n, np.bool_)
        if n > 1:
            same = pc.fill_null(pc.equal(seq.slice(0, n - 1), seq.slice(1)), False)
            pair[:-1] = same.to_numpy(zero_copy_only=False) & (letter[:-1] == 0) & (letter[1:] == 3)
        if not pair.any():
            return pair
        key = numbered([rows[f"_c{i}"] for i in self.key], n)
        pair[:-1] &= key[:-1] != key[1:]
        moved: Bools = pair | np.append(False, pair[:-1])
        return moved

    def _addresses(self, rows: pa.RecordBatch, letter: Ints) -> pa.Array:
        """Returns LOGADDR of each row."""
        if not self.own:
            return made_addresses(rows[SEQ], letter, self.length)
        own = rows[OWN].to_numpy(zero_copy_only=False)
        if own.all():
            return rows["_LOGADDR"]
        at = np.flatnonzero(~own)
        result = made_addresses(rows[SEQ].take(pa.array(at)), letter[at], self.length)
        place = np.zeros(len(own), np.int64)
        place[at] = np.arange(len(at))
        return pc.if_else(rows[OWN], rows["_LOGADDR"], result.take(pa.array(place)))

    def _layout(self, rows: pa.RecordBatch, recid: pa.Array, address: pa.Array) -> pa.Array:
        """Returns the index of the layout that is valid for each row record; NULL if no layout is."""
        n = rows.num_rows
        found = np.full(n, -1, np.int32)
        for place, x in sorted(enumerate(self.layouts), key=lambda p: p[1].start):
            fits = np.ones(n, np.bool_)
            if x.start:
                since = pc.greater_equal(address, pa.scalar(x.start, pa.binary()))
                fits = since.to_numpy(zero_copy_only=False)
            if self.own:
                relid = pc.fill_null(pc.equal(rows["_RELID"], x.relid), True)
                fits = fits & relid.to_numpy(zero_copy_only=False)
            found[fits] = place
        none = ~np.isin(recid.fill_null(-1).to_numpy(zero_copy_only=False), ROWS) | (found < 0)
        return pa.array(found, mask=none)


def made_addresses(seqs: pa.StringArray, letter: Ints, length: int) -> pa.Array:
    """Returns LOGADDR derived from change sequences, for rows with these operations."""
    octets = addresses(seqs, np.where(letter < 0, 0, _RANKS[letter]).astype(np.uint8), length)
    ends = np.arange(len(octets) + 1, dtype=np.int32) * length
    return pa.Array.from_buffers(
        pa.binary(), len(octets), [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(octets))]
    )


@dataclass(frozen=True)
class Ends:
    """Finds the first and the last LOGADDR of each transaction among rows with `TRXID`, `SEQ` and `OPER`."""

    length: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the first and the last LOGADDR of each transaction, for each batch of a task."""
        for batch in batches:
            if batch.num_rows:
                address = made_addresses(batch[SEQ], _letters(batch[OPER]), self.length)
                yield ends(batch["TRXID"], address, address)


def ends(transaction: pa.Array, first: pa.Array, last: pa.Array) -> pa.RecordBatch:
    """Returns a row per transaction: the least `_first` and the greatest `_last`."""
    rows = pa.table({"TRXID": transaction, "_first": first, "_last": last})
    found = []
    for column, order in (("_first", "ascending"), ("_last", "descending")):
        ordered = rows.sort_by([("TRXID", "ascending"), (column, order)]).combine_chunks()
        ids = ordered["TRXID"].to_numpy()
        begins = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])[: len(ids)])
        found.append(ordered.take(pa.array(begins)))
    result = [found[0]["TRXID"], found[0]["_first"], found[1]["_last"]]
    return pa.RecordBatch.from_arrays(
        [c.combine_chunks() for c in result], names=["TRXID", "_first", "_last"]
    )


def marks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields TRX_START and COMMIT around the changes of transactions (`ends`)."""
    for batch in batches:
        n = batch.num_rows
        for recid, place, rank in ((START, "_first", "start"), (COMMIT, "_last", "commit")):
            recids = pa.array(np.full(n, recid, np.int32))
            yield _batch(
                {
                    "RECID": recids, "RECNAME": _names(recids), "TRXID": batch["TRXID"],
                    "FLAGS": pa.array(np.full(n, DATA, np.int32)),
                    "LOGADDR": pc.binary_replace_slice(batch[place], -1, 2**31 - 1, bytes([RANKS[rank]])),
                }
            )  # fmt: skip


def _letters(oper: pa.Array) -> Ints:
    found = pc.index_in(oper, value_set=pa.array(_OPERS))
    letters: Ints = found.fill_null(-1).to_numpy(zero_copy_only=False)
    return letters


def _names(recid: pa.Array) -> pa.Array:
    known = pc.index_in(recid, value_set=pa.array(list(RECNAMES), pa.int32()))
    return pa.array(list(RECNAMES.values())).take(known)


def _batch(result: dict[str, pa.Array]) -> pa.RecordBatch:
    n = len(result["RECID"])
    arrays = [result[c].cast(kind) if c in result else pa.nulls(n, kind) for c, kind in _KINDS.items()]
    return pa.RecordBatch.from_arrays(arrays, names=COLUMNS)
