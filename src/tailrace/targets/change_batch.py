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
"""At about this many rows a file is cut."""
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
        counts: how many rows of each kind there are at most (keys: `SPECIAL`; a missing key counts as 0). A
            step for a kind that does not occur is skipped.
        open_window: the changes are from the time in which the baseline was read. Some of them may be in the
            target's rows already, so they are upserted whatever rules the table has.
        logged: the key log has the changes already: a new baseline or an operator has put the target back.
        log_only: the target has the changes already; only the key log needs them.
        appends: the changes are added to the target's rows without reading these.
        projection: the mapping from the change table's columns to `relation`; None: there is none.
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

    def may(self, *kinds: str) -> bool:
        """Whether changes of any of these kinds may occur."""
        return any(self.counts.get(kind, 0) for kind in kinds)

    @property
    def size(self) -> int:
        """The number of changes, as far as they were counted; 1 at least."""
        return max(1, sum(self.counts.get(kind, 0) for kind in "IUD"))

    def ambiguous(self) -> str | None:
        """Why changes of an open window cannot be told from the rows that were read in it; None: they can."""
        if not self.open_window:
            return None
        if not self.relation.key:
            return "the table lost its key while its baseline was read in an open window"
        # A moved row takes its absent columns from the row under the old key, unless the target has it under
        # the new key already. Which of the two holds is not known.
        if self.may("absent") and self.may("key_changes"):
            return "keys and large values changed together while its baseline was read in an open window"
        return None

    @property
    def extra(self) -> pa.Schema:
        """The columns that a merge needs besides the data, see `engine.columns`."""
        letter = [pa.field(LETTER, pa.string())] if self.audit is not None and self.audit.archives else []
        more = [] if self.staged is None else [f for f in self.staged.schema if f.name in self.staged.more]
        return pa.schema([*_EXTRA, *letter, *more])

    @property
    def target_columns(self) -> tuple[Column, ...]:
        """The columns of the target."""
        return tuple((self.layout or self.relation).columns)

    def located(self) -> ChangeBatch:
        """The batch with its files, which it names from then on: every task reads the same.

        Raises:
            PositionError: some of its changes may be gone.
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
        """The changes of a part of the range."""
        return replace(self, range=ChangeRange(start, end), files=(), columns=None, rows=None)

    def read(self, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The changes of a located batch, in the columns and types that a merge wants."""
        if self.rows is None:
            yield from self.read_files(wanted, self.files)
            return
        for batch in self.rows.to_batches():
            yield from self._typed(batch, wanted).to_batches()

    def parts(self) -> list[FilePart]:
        """The files of a located batch in parts, one a task; large files are cut between row groups."""
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
        """The changes in these files, in the columns and types that a merge wants."""
        names = [self._source_of(n) for n in wanted.names]
        for batch in self._chosen({n for n in names if n is not None}, files):
            yield from self._typed(batch, wanted).to_batches()

    def read_whole(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The changes of a located batch in columns of their table (None: all, which `rows` has)."""
        kinds = self.schema if columns is None else pa.schema([self.schema.field(n) for n in columns])
        for batch in self._chosen(set(kinds.names), self.files):
            columns = [column(batch, f.name, f) for f in kinds]
            yield from pa.table(columns, schema=kinds).to_batches()

    def _source_of(self, name: str) -> str | None:
        """The change table's column that a merge's column is made from, if it has that one; None: none is."""
        if name in _HEADERS:
            return PREFIX + _HEADERS[name]
        made = self.projection
        if made is None or (name.startswith(PREFIX) and name not in (*made.sources, *made.constants)):
            return self._kept(name)  # an archive has headers, too
        return None if name not in made.sources else self._kept(made.sources[name])

    def _kept(self, name: str) -> str:
        """The name of a column in the change table: one that had another type later has another name."""
        return name if self.staged is not None else kept_as(self.schema.names, name, self.range.end)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the change table of a located batch."""
        assert self.columns is not None  # noqa: S101 - it is located
        return self.columns

    def mask_bits(self) -> tuple[int, ...]:
        """The bits of the columns in the masks of the change table."""
        names, mine = self.schema.names, [c.name for c in self.relation.columns]
        if self.staged is not None:
            return ordinals(self.staged.names, mine)
        if self.projection is not None:
            sources = {one: self._kept(source) for one, source in self.projection.sources.items()}
            return replace(self.projection, sources=sources).mask_bits(names, mine)
        return ordinals(names, [self._kept(name) for name in mine])

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

    def _chosen(self, columns: set[str], files: Sequence[str | FilePart]) -> Iterator[pa.RecordBatch]:
        """The rows of the files, as they are there: those of another layout may be of other types."""
        for each in files:
            path, groups = (each, None) if isinstance(each, str) else (each.path, list(each.groups))
            fs, full = lake.filesystem(path)
            with pq.ParquetFile(full, filesystem=fs, buffer_size=1 << 20) as file:
                there = [n for n in file.schema_arrow.names if n in columns | {_SEQ, _POSITION}]
                for batch in file.iter_batches(row_groups=groups, columns=there, use_threads=False):
                    yield batch.filter(self._mine(batch))

    def _mine(self, rows: pa.RecordBatch) -> pa.Array:
        number = pc.utf8_slice_codeunits(rows[_SEQ], TIME_DIGITS, TIME_DIGITS + NUMBER_DIGITS)
        mine = pc.less_equal(number, f"{self.range.end:0{NUMBER_DIGITS}d}")
        if self.range.start is not None:
            mine = pc.and_(mine, pc.greater(number, f"{self.range.start:0{NUMBER_DIGITS}d}"))
        if self.position:
            mine = pc.and_(mine, pc.greater_equal(rows[_POSITION], self.position))
        return mine


def audit_of(one: ChangeBatch) -> Audit:
    """Returns the audit of a located batch: its rules, or none, and the bits of its columns in masks."""
    places = one.mask_bits()
    if (audit := one.audit) is None:
        return plain_audit(one.table, one.relation, places, one.range.lower)
    header = replace(audit.header, ordinals=places)
    if one.staged is not None:
        header = replace(header, fields=tuple(map(one.staged.logged_as, header.fields)))
    log = replace(audit.keylog, header=header) if audit.keylog else None
    return replace(audit, header=header, keylog=log)
