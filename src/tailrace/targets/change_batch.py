"""The changes of one table that are applied together. Tasks read them from files; no row passes the JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..engine.columns import AT, LETTER, MASK, OPER, SEQ
from ..lake import delta as lake
from ..model.change import PREFIX, Column, Relation
from ..model.positions import ChangeRange
from ..model.sequence import NUMBER_DIGITS, TIME_DIGITS
from ..store.kept import files_between
from ..store.tables import kept_as
from .audit import Audit, plain_audit
from .images import ordinals
from .plans import UNKNOWN
from .projection import Projection, column
from .staged_changes import StagedChanges

_SEQ, _POSITION = PREFIX + "change_seq", PREFIX + "stream_position"
_HEADERS = {
    SEQ: "change_seq",
    OPER: "change_oper",
    LETTER: "change_oper",
    MASK: "column_mask",
    AT: "timestamp",
}
_PART_ROWS = 200_000
"""The approximate number of rows of a part of a file."""
_EXTRA = [pa.field(MASK, pa.binary()), pa.field(AT, pa.timestamp("us", "UTC"))]


@dataclass(frozen=True)
class FilePart:
    """Some row groups of a file."""

    path: str
    groups: tuple[int, ...]


@dataclass(frozen=True)
class ChangeBatch:
    """The changes of one table that are applied together, all of one layout.

    Attributes:
        table: `schema.name` of the source table.
        relation: the columns of the changes, in the types of the target.
        range: their change numbers.
        changes: path of the change table.
        position: hex; changes at earlier positions in the log are not part of the batch, because the baseline
            has them.
        before: the layout that the target has before the batch; None: `relation`.
        counts: the maximum number of rows of each kind (keys: `SPECIAL`; a missing key counts as 0). Steps
            for kinds that do not occur are skipped.
        open_window: the changes are from the time in which the baseline was read. Some of them may be in the
            target's rows already, so they are upserted whatever rules the table has.
        logged: the key log has the changes already: a new baseline or an operator has put the target back.
        log_only: the target has the changes already; only the key log needs them.
        appends: the changes are added to the target's rows without reading these.
        projection: the mapping from the change table's columns to `relation`; None: the columns are the same.
        staged: the changes, if Spark's SQL has computed them: in files of this batch alone.
        rows: the changes, if they have been read already.
        files, columns: paths of the files that may have changes of the batch, and their columns. A batch has
            them once it is `located`.
        target, layout: the target's path, and its columns if it has more than `relation`.
        app_id: the name under which commits of a Delta target keep the progress.
        partition: the constants that identify the rows of this source in a target of several sources.
        audit: the rules and the key log; None: neither.
    """

    table: str
    relation: Relation
    range: ChangeRange
    changes: str = ""
    position: str = ""
    before: Relation | None = None
    counts: Mapping[str, int] = field(default_factory=lambda: UNKNOWN, compare=False)
    open_window: bool = False
    logged: bool = False
    log_only: bool = False
    appends: bool = False
    projection: Projection | None = None
    staged: StagedChanges | None = None
    rows: pa.Table | None = field(default=None, repr=False, compare=False)
    files: tuple[str, ...] = ()
    columns: pa.Schema | None = None
    target: str = ""
    layout: Relation | None = None
    app_id: str = ""
    partition: Mapping[str, str] = field(default_factory=dict)
    audit: Audit | None = None

    def may_contain(self, *kinds: str) -> bool:
        """Whether changes of any of these kinds may occur."""
        return any(self.counts.get(kind, 0) for kind in kinds)

    @property
    def size(self) -> int:
        """The number of changes, as far as they were counted; at least 1."""
        return max(1, sum(self.counts.get(kind, 0) for kind in "IUD"))

    def ambiguous(self) -> str | None:
        """Returns why it is not clear which changes of an open window the baseline has; None if it is
        clear."""
        if not self.open_window:
            return None
        if not self.relation.key:
            return "the table lost its key while its baseline was read in an open window"
        # A row whose key changed takes its absent columns from the row with the old key, unless the target
        # has it with the new key already. The batch does not say which is the case.
        if self.may_contain("absent") and self.may_contain("key_changes"):
            return "keys and large values changed together while its baseline was read in an open window"
        return None

    @property
    def extra(self) -> pa.Schema:
        """The columns besides the data columns that a merge needs, see `engine.columns`."""
        letter = [pa.field(LETTER, pa.string())] if self.audit is not None and self.audit.archives else []
        more = [] if self.staged is None else [f for f in self.staged.schema if f.name in self.staged.more]
        return pa.schema([*_EXTRA, *letter, *more])

    @property
    def target_columns(self) -> tuple[Column, ...]:
        """The columns of the target."""
        return tuple((self.layout or self.relation).columns)

    def located(self) -> ChangeBatch:
        """Returns the batch with the paths of its files, so that every task reads the same files.

        Raises:
            PositionError: some of its changes may have been deleted.
        """
        if self.columns is not None:
            return self
        if self.staged is not None:
            return replace(
                self, files=tuple(one.path for one in self.staged.files), columns=self.staged.schema
            )
        with lake.opened(self.changes) as table:
            files = files_between(self.changes, table, _SEQ, self.range.lower, self.range.end)
            return replace(self, files=tuple(files), columns=lake.arrow_schema(table))

    def between(self, start: int | None, end: int) -> ChangeBatch:
        """Returns the batch of a part of the range."""
        return replace(self, range=ChangeRange(start, end), files=(), columns=None, rows=None)

    def read(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yields the changes of a located batch in the `wanted` columns and types."""
        if self.rows is None:
            yield from self.read_files(wanted, self.files)
            return
        for batch in self.rows.to_batches():
            yield from self._typed(batch, wanted).to_batches()

    def parts(self) -> list[FilePart]:
        """Returns the files of a located batch, one per task; large files are split between row groups."""
        found = []
        for path in self.files:
            fs, full = lake.filesystem(path)
            with pq.ParquetFile(full, filesystem=fs) as file:
                groups: list[int] = []
                rows = 0
                for group in range(file.num_row_groups):
                    groups.append(group)
                    rows += file.metadata.row_group(group).num_rows
                    if rows >= _PART_ROWS:
                        found.append(FilePart(path, tuple(groups)))
                        groups, rows = [], 0
                if groups:
                    found.append(FilePart(path, tuple(groups)))
        return found

    def read_files(self, wanted: pa.Schema, files: Sequence[str | FilePart]) -> Iterator[pa.RecordBatch]:
        """Yields the changes in these files in the `wanted` columns and types."""
        names = [self._source_of(n) for n in wanted.names]
        for batch in self._in_range({n for n in names if n is not None}, files):
            yield from self._typed(batch, wanted).to_batches()

    def read_whole(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the changes of a located batch in the given columns of their table; None: in all columns."""
        kinds = self.schema if columns is None else pa.schema([self.schema.field(n) for n in columns])
        for batch in self._in_range(set(kinds.names), self.files):
            columns = [column(batch, f.name, f) for f in kinds]
            yield from pa.table(columns, schema=kinds).to_batches()

    def _source_of(self, name: str) -> str | None:
        """Returns the column of the change table from which a column of a merge is computed; None if it is
        computed from none."""
        if name in _HEADERS:
            return PREFIX + _HEADERS[name]
        mapping = self.projection
        if mapping is None or (
            name.startswith(PREFIX) and name not in (*mapping.sources, *mapping.constants)
        ):
            return self._stored_name(name)  # an archive has headers, too
        return None if name not in mapping.sources else self._stored_name(mapping.sources[name])

    def _stored_name(self, name: str) -> str:
        """Returns the name of a column in the change table; a column whose type changed later has another."""
        return name if self.staged is not None else kept_as(self.schema.names, name, self.range.end)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the change table of a located batch."""
        assert self.columns is not None  # noqa: S101 - it is located
        return self.columns

    def mask_bits(self) -> tuple[int, ...]:
        """Returns the bits of the columns in the masks of the change table."""
        stored, names = self.schema.names, [c.name for c in self.relation.columns]
        if self.staged is not None:
            return ordinals(self.staged.names, names)
        if self.projection is not None:
            sources = {one: self._stored_name(source) for one, source in self.projection.sources.items()}
            return replace(self.projection, sources=sources).mask_bits(stored, names)
        return ordinals(stored, [self._stored_name(name) for name in names])

    def _typed(self, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.Table:
        """Returns rows of a file in the wanted columns; columns that were added later are NULL."""
        columns = []
        for field_ in wanted:
            source = self._source_of(field_.name)
            if source is None and self.projection is not None:
                columns.append(self.projection.column(batch, field_))
            else:
                columns.append(column(batch, source, field_))
        return pa.table(columns, schema=wanted)

    def _in_range(self, columns: set[str], files: Sequence[str | FilePart]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of files that belong to the batch, in the types of each file."""
        for part in files:
            path, groups = (part, None) if isinstance(part, str) else (part.path, list(part.groups))
            fs, full = lake.filesystem(path)
            with pq.ParquetFile(full, filesystem=fs, buffer_size=1 << 20) as file:
                names = [n for n in file.schema_arrow.names if n in columns | {_SEQ, _POSITION}]
                for batch in file.iter_batches(row_groups=groups, columns=names, use_threads=False):
                    yield batch.filter(self._includes(batch))

    def _includes(self, rows: pa.RecordBatch) -> pa.Array:
        """Returns for each row whether the batch has it."""
        number = pc.utf8_slice_codeunits(rows[_SEQ], TIME_DIGITS, TIME_DIGITS + NUMBER_DIGITS)
        included = pc.less_equal(number, f"{self.range.end:0{NUMBER_DIGITS}d}")
        if self.range.start is not None:
            included = pc.and_(included, pc.greater(number, f"{self.range.start:0{NUMBER_DIGITS}d}"))
        if self.position:
            included = pc.and_(included, pc.greater_equal(rows[_POSITION], self.position))
        return included


def audit_of(batch: ChangeBatch) -> Audit:
    """Returns the audit of a located batch, with the bits of its columns in masks."""
    mask_bits = batch.mask_bits()
    if (audit := batch.audit) is None:
        return plain_audit(batch.table, batch.relation, mask_bits, batch.range.lower)
    header = replace(audit.header, ordinals=mask_bits)
    if batch.staged is not None:
        header = replace(header, fields=tuple(map(batch.staged.logged_as, header.fields)))
    log = replace(audit.keylog, header=header) if audit.keylog else None
    return replace(audit, header=header, keylog=log)
