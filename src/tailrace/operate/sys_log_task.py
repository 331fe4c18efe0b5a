"""Converts records of LOG to records of SYS_LOG, in arrays: in this process or in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import FormatError
from ..formats.soliddb.codec import Encoding
from ..formats.soliddb.log import KEPT, SYS_LOG
from ..formats.soliddb.options import SolidOptions
from ..formats.soliddb.records import OPER, OWN, SEQ, Records, ends, marks
from ..formats.soliddb.tables import SolidLayout
from ..lake import log
from ..model.change import PREFIX, Relation
from ..model.types import arrow_type, header_schema, schema_of
from ..store import images
from ..store.task import lake_batch
from ..store.tracking import numbers
from ..wire.soliddb_rows import flat, row_layout

_TYPES = {c.name: arrow_type(c.type) for c in SYS_LOG.columns}
SYS_LOG_SCHEMA = pa.schema(list(_TYPES.items()))
LOSSES = ("absent_columns", "empty_binary", "empty_text")
"""Columns of records: whether an image had no value for some columns, or has an empty value that is NULL."""
_EMPTY = ("binary", "string")
"""The types of the empty values of `LOSSES`, in their order."""
_CHANGES = (log.INSERT, log.UPDATE, log.DELETE, log.DDL)


@dataclass(frozen=True)
class LogTable:
    """One table of LOG.

    Attributes:
        layouts: its layouts in LOG.
        work: the conversion of each layout, with its own types.
        empty: the types whose empty values are NULL in the records.
    """

    layouts: tuple[log.Layout, ...]
    work: tuple[Records, ...]
    empty: frozenset[str]

    @staticmethod
    def of(
        name: str,
        layouts: Sequence[tuple[log.Layout, bytes]],
        known: Sequence[SolidLayout],
        options: SolidOptions,
        length: int,
    ) -> LogTable:
        """Returns the table, from its layouts in LOG with the LOGADDR from which each is valid, and its
        layouts in the system tables (`known`)."""
        newest = layouts[-1][0].relation.key  # by which a log is read
        there, solid, work = {(x.relid, x.start): x for x in known}, known[0], []
        for one, start in layouts:
            solid = there.get((one.relation.relid, start), solid)  # one without columns is not there
            names = tuple(c.name for c in one.relation.columns)
            fields = tuple(replace(f, taken=True) for f in solid.fields)  # a log has what was there
            encoding = Encoding((fields,), names, options.style())
            key = tuple(i for i, c in enumerate(names) if c in newest)
            work.append(Records(name, (solid,), encoding, key, length, own=True))
        empty = set()
        if row_layout(options.row_layout).empty_is_null:
            empty = {"binary"} if options.trailing_nul else {"binary", "string"}
        return LogTable(tuple(x for x, _ in layouts), tuple(work), frozenset(empty))

    def records(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the records of the table's changes in a batch of LOG, with `LOSSES`."""
        at, relids = numbers(batch["CHANGE_SEQ"]), batch["RELID"].to_numpy()
        for relid in {x.relation.relid for x in self.layouts}:
            mine = [k for k, x in enumerate(self.layouts) if x.relation.relid == relid]
            starts = [0, *(log.number(self.layouts[k]) for k in mine[1:]), np.iinfo(np.int64).max]
            for k, since, until in zip(mine, starts, starts[1:], strict=False):
                rows = np.flatnonzero((relids == relid) & (at >= since) & (at < until))
                if len(rows):
                    yield from self._of_layout(batch.take(pa.array(rows)), k)

    def _of_layout(self, batch: pa.RecordBatch, place: int) -> Iterator[pa.RecordBatch]:
        relation = self.layouts[place].relation
        schema = pa.schema([*header_schema(), *schema_of(relation.columns)])
        ddl = batch["RECID"].to_numpy() == log.DDL
        if ddl.any():
            yield self._made(images.truncates(batch.filter(pa.array(ddl)), schema), place)
        if not ddl.all():
            found = images.decode(batch.filter(pa.array(~ddl)), relation, schema)
            if found.bad:
                one = found.bad[0]
                raise FormatError(f"{one.text!r} does not fit", where=f"{relation.table}.{one.column}, LOG")
            yield self._made(found.rows, place)

    def _made(self, rows: pa.RecordBatch, place: int) -> pa.RecordBatch:
        n, relation = rows.num_rows, self.layouts[place].relation
        taken = {
            SEQ: rows[PREFIX + "change_seq"],
            OPER: rows[PREFIX + "change_oper"],
            "TRXID": _transactions(rows[PREFIX + "transaction_id"]),
            "STMTTRXID": pa.nulls(n, pa.int64()),
            OWN: pa.array(np.zeros(n, np.bool_)),
            **{f"_{c}": pa.nulls(n, _TYPES[c]) for c in KEPT},
            "_RELID": pa.array(np.full(n, relation.relid, np.int32)),
            **{f"_c{i}": rows[c.name] for i, c in enumerate(relation.columns)},
        }
        batch = pa.RecordBatch.from_arrays(list(taken.values()), names=list(taken))
        lost = (rows[PREFIX + "column_mask"].is_valid(), *(self._empty(rows, relation, k) for k in _EMPTY))
        return _with_losses(self.work[place].records(batch), lost)

    def _empty(self, rows: pa.RecordBatch, relation: Relation, kind: str) -> pa.Array:
        """Returns which rows have an empty value of a type that is NULL in the records."""
        found = np.zeros(rows.num_rows, np.bool_)
        for one in relation.columns if kind in self.empty else ():
            if one.type == kind:
                size = pc.fill_null(pc.binary_length(rows[one.name]), -1)
                found |= size.to_numpy(zero_copy_only=False) == 0
        return pa.array(found)


@dataclass(frozen=True)
class SysLogTask:
    """Converts whole files of LOG to records of SYS_LOG, with TRX_START and COMMIT around each transaction
    that changed one of the tables. Each batch also has `LOSSES`."""

    tables: tuple[LogTable, ...]
    length: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the records of some files, whose transactions are whole and follow one another."""
        open_: pa.RecordBatch | None = None
        for one in batches:
            batch = lake_batch(one)
            batch = batch.filter(pc.is_in(batch["RECID"], pa.array(_CHANGES, batch["RECID"].type)))
            made = [rows for table in self.tables for rows in table.records(batch)]
            yield from made
            found = [ends(r["TRXID"], r["LOGADDR"], r["LOGADDR"]) for r in made]
            if open_ is not None:
                found.append(open_)
            if found:
                all_ = pa.Table.from_batches(found).combine_chunks()
                whole = ends(all_["TRXID"], all_["_first"], all_["_last"])
                goes_on = pc.equal(whole["TRXID"], batch["TRXID"][-1] if batch.num_rows else None)
                goes_on = pc.fill_null(goes_on, True)
                yield from _marks(whole.filter(pc.invert(goes_on)))
                open_ = whole.filter(goes_on)
        if open_ is not None:
            yield from _marks(open_)


def _marks(transactions: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if transactions.num_rows:
        for rows in marks(iter([transactions])):
            yield _with_losses(rows, [pa.array(np.zeros(rows.num_rows, np.bool_))] * len(LOSSES))


def _with_losses(rows: pa.RecordBatch, lost: Sequence[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*rows.columns, *lost], names=[*rows.schema.names, *LOSSES])


def _transactions(ids: pa.StringArray) -> pa.Array:
    """Returns transaction ids, which change tables have as 32 hex digits."""
    octets, starts, _ = flat(ids)
    digits = octets[starts[0] : starts[0] + 32 * len(ids)].reshape(-1, 32)[:, 16:]
    values = np.where(digits > ord("9"), digits - np.uint8(ord("A") - 10), digits - np.uint8(ord("0")))
    powers = np.uint64(16) ** np.arange(15, -1, -1, dtype=np.uint64)
    return pa.array((values.astype(np.uint64) @ powers).astype(np.int64))
