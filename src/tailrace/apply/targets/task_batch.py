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
from ..mapping.projection import Projection, column
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
    `tolerant`: as in `TableBatch`; `audit` says how such changes are applied. `logged`: as in `Segment`.
    `rows`: the changes, when they have been read (`read_whole`); None: they are read from their files.
    `counts`: as in `TableBatch`.
    `projection`: the mapping between the changes and `relation`, if there is one. `app`: under which name the
    progress stands in the target's commits; `shared`: other sources feed it, too. The target says both.
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
    logged: bool = False
    rows: pa.Table | None = field(default=None, repr=False, compare=False)
    counts: Mapping[str, int] = field(default_factory=lambda: UNKNOWN, compare=False)
    projection: Projection | None = None
    app: str = ""
    shared: bool = False

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
            yield from self._typed(batch, wanted).to_batches()

    def files(self, changes: DeltaTable) -> list[str]:
        """Paths of the files that may have some of the changes, in order; `changes`: as above."""
        return files_between(self.changes, changes, _SEQ, self.after, self.upto)

    def read_files(self, wanted: pa.Schema, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The changes in these files, in the columns and types that a merge wants."""
        names = [self._source_of(n) for n in wanted.names]
        for batch in self._chosen({n for n in names if n is not None}, files):
            yield from self._typed(batch, wanted).to_batches()

    def read_whole(self, changes: DeltaTable) -> Iterator[pa.RecordBatch]:
        """The changes in all columns of their table, which `rows` has."""
        kinds = lake.arrow_schema(changes)
        for batch in self._chosen(set(kinds.names), self.files(changes)):
            columns = [column(batch, f.name, f) for f in kinds]
            yield from pa.table(columns, schema=kinds).to_batches()

    def sources(self) -> dict[Column, str]:
        """The change table's columns that those of `relation` come from; constants come from none."""
        found = {c: self._source_of(c.name) for c in self.relation.columns}
        return {c: name for c, name in found.items() if name is not None}

    def _source_of(self, name: str) -> str | None:
        """The change table's column that a merge's column is made from, if it has that one; None: none is."""
        if name in _HEADERS:
            return PREFIX + _HEADERS[name]
        made = self.projection
        if made is None or (name.startswith(PREFIX) and name not in (*made.sources, *made.constants)):
            return name  # an archive has headers, too
        return made.sources.get(name)

    def places(self, names: Sequence[str]) -> tuple[int, ...]:
        """The bits of the columns in the masks of the change table, which has these `names`."""
        mine = [c.name for c in self.relation.columns]
        return ordinals(names, mine) if self.projection is None else self.projection.places(names, mine)

    def _typed(self, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.Table:
        """A file's columns under a merge's names; those younger than the file are NULL."""
        columns = []
        for each in wanted:
            source = self._source_of(each.name)
            if source is None and self.projection is not None:
                columns.append(self.projection.column(batch, each))
            else:
                columns.append(column(batch, source, each))
        return pa.table(columns, schema=wanted)

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


def audit_of(one: TaskBatch, changes: DeltaTable) -> Audit | None:
    """How a batch is audited; None when its change table has columns that a task cannot take as they are."""
    there = lake.arrow_schema(changes)
    names = one.sources()
    if any(kept_as(there.names, name, one.upto) != name for name in names.values()):
        return None
    places = one.places(there.names)
    if (audit := one.audit) is not None:
        # A change table's column is only ever widened: what came before still has its own type's values.
        if not all(_holds(there.field(name).type, c) for c, name in names.items() if name in there.names):
            return None
        header = replace(audit.header, ordinals=places)
        log = replace(audit.keylog, header=header) if audit.keylog else None
        return replace(audit, header=header, keylog=log)
    return plain_audit(one.table, one.relation, places, one.after)


def _holds(kind: pa.DataType, column: Column) -> bool:
    """Whether a change table's column has a layout's values, unchanged."""
    mine = arrow_type(column.type)
    return bool(kind == mine or widens(mine, kind))
