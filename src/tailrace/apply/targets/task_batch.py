"""A batch that a task reads by itself, from the files of a change table: no row passes the JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ...engine.columns import AT, LETTER, MASK, OPER, SEQ
from ...lake import delta as lake
from ...model.change import PREFIX, Column, Relation
from ...model.sequence import NUMBER_DIGITS, TIME_DIGITS
from ...model.types import arrow_type
from ...store.kept import files_between
from ...store.tables import kept_as, widens
from ..images import ordinals
from ..plan import UNKNOWN
from .audit import Audit, plain_audit

_SEQ, _POSITION = PREFIX + "change_seq", PREFIX + "stream_position"
_HEADERS = {
    SEQ: "change_seq",
    OPER: "change_oper",
    LETTER: "change_oper",
    MASK: "column_mask",
    AT: "timestamp",
}
_EXTRA = [pa.field(MASK, pa.binary()), pa.field(AT, pa.timestamp("us", "UTC"))]


@dataclass(frozen=True)
class TaskBatch:
    """A table's batch for one task: changes with numbers in (after, upto] at positions from `position` (hex)
    on, of one layout. `changes` and `target` are paths of Delta tables.

    `audit`: how it is audited, but for the places of columns; None: without rules and key log. `layout`: of
    the target, when that has more columns. `adds`: its changes are only added, whatever the target has.
    `tolerant`: as in `TableBatch`; `audit` says how such changes are applied. `rows`: the changes, when they
    have been read (`read_whole`); None: they are read from their files. `counts`: as in `TableBatch`.
    """

    table: str
    changes: str
    target: str
    relation: Relation
    after: int
    upto: int
    position: str = ""
    audit: Audit | None = None
    layout: Relation | None = None
    adds: bool = False
    tolerant: bool = False
    rows: pa.Table | None = field(default=None, repr=False, compare=False)
    counts: Mapping[str, int] = field(default_factory=lambda: UNKNOWN, compare=False)

    @property
    def extra(self) -> pa.Schema:
        """The columns that a merge needs besides the data, see `engine.columns`."""
        letter = [pa.field(LETTER, pa.string())] if self.audit is not None and self.audit.archives else []
        return pa.schema([*_EXTRA, *letter])

    def read(self, wanted: pa.Schema, changes: DeltaTable) -> Iterator[pa.RecordBatch]:
        """The changes, in the columns and types that a merge wants; `changes`: their table, open."""
        if self.rows is None:
            yield from self.read_files(wanted, self.files(changes))
            return
        for batch in self.rows.to_batches():
            yield from _typed(batch, _names(wanted), wanted).to_batches()

    def files(self, changes: DeltaTable) -> list[str]:
        """Paths of the files that may have some of the changes, in order; `changes`: as above."""
        return files_between(self.changes, changes, _SEQ, self.after, self.upto)

    def read_files(self, wanted: pa.Schema, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The changes in these files, in the columns and types that a merge wants."""
        names = _names(wanted)
        for batch in self._chosen(set(names.values()), files):
            yield from _typed(batch, names, wanted).to_batches()

    def read_whole(self, changes: DeltaTable) -> Iterator[pa.RecordBatch]:
        """The changes in all columns of their table, which `rows` has."""
        kinds = lake.arrow_schema(changes)
        for batch in self._chosen(set(kinds.names), self.files(changes)):
            yield from _typed(batch, {n: n for n in kinds.names}, kinds).to_batches()

    def _chosen(self, columns: set[str], files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of the files, as they are there: those of another layout may be of other types."""
        fs, _ = lake.filesystem(self.changes)
        for path in files:
            with pq.ParquetFile(lake.filesystem(path)[1], filesystem=fs, buffer_size=1 << 20) as file:
                there = [n for n in file.schema_arrow.names if n in columns | {_SEQ, _POSITION}]
                for batch in file.iter_batches(columns=there, use_threads=False):
                    yield batch.filter(self._mine(batch))

    def _mine(self, rows: pa.RecordBatch) -> pa.Array:
        number = pc.utf8_slice_codeunits(rows[_SEQ], TIME_DIGITS, TIME_DIGITS + NUMBER_DIGITS)
        mine = pc.less_equal(number, f"{self.upto:0{NUMBER_DIGITS}d}")
        if self.after >= 0:
            mine = pc.and_(mine, pc.greater(number, f"{self.after:0{NUMBER_DIGITS}d}"))
        if self.position:
            mine = pc.and_(mine, pc.greater_equal(rows[_POSITION], self.position))
        return mine


def _names(wanted: pa.Schema) -> dict[str, str]:
    """The change table's columns that are wanted, by the names that a merge gives them."""
    return {f.name: PREFIX + _HEADERS[f.name] if f.name in _HEADERS else f.name for f in wanted}


def _typed(batch: pa.RecordBatch, names: dict[str, str], kinds: pa.Schema) -> pa.Table:
    """A file's columns under other names (new name -> its name); those younger than the file are NULL."""
    have = set(batch.schema.names)
    arrays = [
        batch[names[f.name]].cast(f.type) if names[f.name] in have else pa.nulls(batch.num_rows, f.type)
        for f in kinds
    ]
    return pa.table(arrays, schema=kinds)


def audit_of(one: TaskBatch, changes: DeltaTable) -> Audit | None:
    """How a batch is audited; None when its change table has columns that a task cannot take as they are."""
    columns, there = one.relation.columns, lake.arrow_schema(changes)
    if any(kept_as(there.names, c.name, one.upto) != c.name for c in columns):
        return None
    if (audit := one.audit) is not None:
        # A change table's column is only ever widened: what came before still has its own type's values.
        if not all(_holds(there.field(c.name).type, c) for c in columns if c.name in there.names):
            return None
        header = replace(audit.header, ordinals=ordinals(there.names, [c.name for c in columns]))
        log = replace(audit.keylog, header=header) if audit.keylog else None
        return replace(audit, header=header, keylog=log)
    return plain_audit(one.table, one.relation, there.names, one.after)


def _holds(kind: pa.DataType, column: Column) -> bool:
    """Whether a change table's column has a layout's values, unchanged."""
    mine = arrow_type(column.type)
    return bool(kind == mine or widens(mine, kind))
