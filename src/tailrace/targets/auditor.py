"""Decides the outcome of each change of a merge, and writes exceptions and the key log, for all targets.

The merge reads the keys of the target anyway. From them the auditor knows which changes conflict. Exceptions
are committed before the target. Files of the key log are returned to the caller, who commits them afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..engine.batch import Batch, Changes
from ..engine.columns import LETTER, MASK, OPER, SEQ, WHY, carried, one, raw_values, typed
from ..engine.keys import Keys, Places
from ..engine.log_rows import ChangeTexts, logged, logged_in_parts
from ..engine.null_keys import null_key
from ..engine.rules import Rules
from ..engine.source import RowsOf, Source, order, ordered
from ..errors import ApplyError
from ..execution import InlineExecutor
from ..lake import delta as lake
from ..model import mask
from ..model.change import DELETE, INSERT, PREFIX, UPDATE
from ..model.positions import order_key
from ..model.types import schema_of
from .audit import Audit
from .change_batch import ChangeBatch, audit_of
from .keyless import refuse
from .merge_result import ApplyOutcome, Conflicts, MergeResult
from .text_renderer import TextRenderer

NO_ROWS: Places = np.zeros(1, np.int64)
"""The number of rows found for changes that read no row of the target (see `append_source`)."""
_CARRIED = PREFIX + "column_mask"
_ROWS = 1 << 16
"""The maximum number of rows of a key log that are rendered together."""


class BatchAuditor:
    """Auditor of one merge; it decides again if the merge is retried.

    Args:
        audit: how the changes are decided and logged.
        end: the end of the batch.
        source: the changes.
        texts: the texts of the changes for the key log, see `TextRenderer.parts`.
        shard: the `change_seq` of all truncates of the batch, if the changes are a shard of it. The driver
            then decides where the batch ends, and commits the exceptions.
    """

    def __init__(
        self,
        audit: Audit,
        end: int,
        source: Source,
        texts: Sequence[Future[ChangeTexts]] = (),
        *,
        shard: Sequence[str] | None = None,
    ) -> None:
        self._audit, self._max_end, self._texts = audit, end, texts
        self._keyed = bool(source.key) or audit.archives
        self._shard = shard
        self._changes = Changes.of(source, shard)
        if WHY in source.rows.schema.names:
            self._changes = self._changes.spoiled(one(source.rows[WHY]))
        if audit.plain and (seq := self._changes.first_bad) is not None:
            raise null_key(audit.table, source.key, seq)
        if not self._keyed:
            refuse(audit.table, self._changes.unclear(audit.header.ordinals))
        self._batch: Batch | None = None
        self._writing: Future[list[lake.AddedFile] | pa.Table] | None = None
        self._parts: tuple[lake.AddedFile, ...] = ()
        self._logged: pa.Table | None = None
        self._exceptions_file: lake.AddedFile | None = None

    @property
    def batch(self) -> Batch:
        """The decided changes."""
        assert self._batch is not None  # noqa: S101 - read after `decide`
        return self._batch

    @property
    def end(self) -> int | None:
        """The progress of the table after the batch; None if there is nothing to commit. Known after
        `decide`."""
        end = self.batch.upto(self._max_end)
        return None if end < 0 else end

    @property
    def ignores_rows(self) -> bool:
        """Whether the table's rows need not be read: without rules, a truncate removes all of them."""
        return self._audit.plain and self.truncated

    @property
    def truncated(self) -> bool:
        """Whether a truncate is among the changes."""
        return bool(self._changes.events.truncates)

    @property
    def empties_target(self) -> bool:
        """Whether a truncate removes all rows of the table. Known after `decide`."""
        return bool(self.batch.truncates)

    def add_data_errors(self, why: pa.StringArray) -> None:
        """Marks changes as data errors; `why`: the reason for each row, NULL for rows without an error.

        Raises:
            ApplyError: there are no rules for data errors.
        """
        self._changes = self._changes.spoiled(why)
        if self._audit.plain and self._changes.why is not None and why.null_count < len(why):
            row = int(np.argmax(why.is_valid().to_numpy(zero_copy_only=False)))
            raise ApplyError(
                f"the target cannot hold a change: {why[row].as_py()}",
                where=f"{self._audit.table}, change_seq {self._changes.rows[SEQ][row].as_py()}",
                hint="keep the column as text (`types`), or correct the value and resync the table",
            )

    def remaining(self, source: Source, rows: Places, rows_of: RowsOf) -> Source:
        """Decides all changes, and returns those that take effect.

        Args:
            source: the changes.
            rows: by number of the key, how many rows of the table have the key and are not marked as deleted.
            rows_of: reads rows of the table.
        """
        return self.decide(rows).left(source, self._audit.header.ordinals, rows_of)

    def decide(self, rows: Places) -> Batch:
        """Decides all changes; `rows`: see `remaining`."""
        audit, changes = self._audit, self._changes
        counts = audit.counts if self._shard is None else None
        if self._keyed:
            self._batch = changes.met(rows > 0, audit.rules, counts)
        else:
            self._batch = changes.met_copies(rows, audit.rules, counts)
        return self._batch

    def start_log(self, pool: Executor) -> None:
        """Starts to write the key log of the decided changes, while the table is written."""
        self._writing = self._log(self._raw(), pool)

    def finish(self) -> None:
        """Waits for the key log and writes exceptions; called before the commit."""
        self.finish_log()
        audit = self._audit
        if audit.plain or audit.log_only or not audit.rules.keeps:
            return
        if self._shard is None:
            write_exceptions([self.exceptions()], audit, self.batch.odd, order_key(self.end))
        elif (rows := self.exceptions()).num_rows:
            self._exceptions_file = audit.exceptions.write_file(rows, audit.table)

    def exceptions(self) -> pa.Table:
        """Returns the flagged and skipped changes as rows of exceptions."""
        audit, rows = self._audit, self.batch.aside()
        schema = audit.exceptions.rows_schema
        return logged(self._raw(), audit.header, schema, rows, _now()) if len(rows) else schema.empty_table()

    def finish_log(self) -> None:
        """Waits until the key log's rows are written.

        Raises:
            ApplyError: there are no rules, and a change has an unknown operation.
        """
        assert self._writing is not None  # noqa: S101 - started before
        written = self._writing.result()
        if isinstance(written, pa.Table):
            self._logged = written
        else:
            self._parts = tuple(written)
        if self._audit.plain:
            self._refuse_unknown(self.batch)

    def _raw(self) -> Batch:
        return replace(self.batch, rows=raw_values(self.batch.rows))

    @property
    def exceptions_file(self) -> lake.AddedFile | None:
        """The file of a shard's exceptions; None if the shard has no exceptions."""
        return self._exceptions_file

    def _refuse_unknown(self, batch: Batch) -> None:
        for situation, (_, seq) in batch.odd.items():
            if situation == "?":
                raise ApplyError(
                    "a change has an operation that is not known",
                    where=f"{self._audit.table}, change_seq {seq}",
                    hint="`tailrace inspect` shows the operations of the table",
                )

    def _log(self, batch: Batch, pool: Executor) -> Future[list[lake.AddedFile] | pa.Table]:
        if (log := self._audit.keylog) is None:
            return InlineExecutor().submit(list)
        rows = batch.changes
        rows = rows[batch.flagged(rows)] if log.mode == "errors" else rows
        header, schema, now, texts = log.header, log.schema, _now(), self._texts
        if texts and len(rows) > log.max_returned_rows:
            parts = logged_in_parts(pool, batch, header, schema, rows, now, texts)
            return pool.submit(lake.write_pieces, log.path, schema, (part.result() for part in parts))

        def write() -> list[lake.AddedFile] | pa.Table:
            if not texts and len(rows) > max(log.max_returned_rows, _ROWS):
                starts = range(0, len(rows), _ROWS)
                tables = (
                    logged(batch, header, schema, rows[n : n + _ROWS], now, images=log.images) for n in starts
                )
                return lake.write_pieces(log.path, schema, tables)
            joined = ChangeTexts.joined([part.result() for part in texts]) if texts else None
            table = logged(batch, header, schema, rows, now, images=log.images, texts=joined)
            return table if len(rows) <= log.max_returned_rows else lake.write_part(log.path, table)

        return pool.submit(write)

    def result(self, outcome: ApplyOutcome) -> MergeResult | None:
        """Returns the result of the merge; None if the target had the batch already."""
        if (batch := self._batch) is None:
            return None
        if not self._keyed and self._audit.plain:
            outcome = replace(outcome, missing=batch.missing)
        ends, why = batch.ends, batch.why_it_ends
        return MergeResult(outcome, self.end, batch.counts, batch.odd, ends, self._parts, why, self._logged)


def write_exceptions(
    rows: Sequence[pa.Table], audit: Audit, tally: Mapping[str, tuple[int, str]], end: int
) -> None:
    """Writes exceptions of changes up to a change number, after it removed those of an attempt that was not
    committed; `tally`: as in `MergeResult`."""
    if audit.rules.keeps:
        audit.exceptions.remove_after(audit.table, audit.start, audit.counts)
    exceptions = pa.concat_tables(rows)
    if exceptions.num_rows:
        counts = Conflicts(tally=tally).counted(audit.rules, audit.counts)
        audit.exceptions.add_rows(exceptions, audit.table, end, start=audit.start, counts=counts)


def log_without_conflicts(batch: ChangeBatch) -> list[lake.AddedFile]:
    """Writes the key log of a batch without conflicts, in which each key has one change. Returns the files,
    which are not committed. The target has the changes already."""
    batch = batch.located()
    audit = audit_of(batch)
    assert audit.keylog is not None  # noqa: S101 - it is to be logged
    log, schema = audit.keylog, schema_of(batch.relation.columns)
    if log.mode == "errors":
        return []
    key = tuple(batch.relation.key)
    columns = batch_columns(pa.schema([f for f in batch.extra if f.name != LETTER]), schema)

    def rows() -> Iterator[pa.Table]:
        for read in batch.read(columns):
            source = Source.of(ordered(pa.Table.from_batches([read])), key, schema, False)
            changes = Changes.of(source)
            exists = np.ones(len(source.last), np.bool_)
            exists[source.keys.place[changes.events.oper == INSERT]] = False
            decided = changes.met(exists, audit.rules)
            yield logged(decided, log.header, log.schema, decided.changes, _now(), images=log.images)

    return lake.write_pieces(log.path, log.schema, rows())


def _now() -> datetime:
    return datetime.now(timezone.utc)


def batch_columns(extra: pa.Schema, data: pa.Schema) -> pa.Schema:
    """Returns the columns of an audited batch: `SEQ`, `OPER`, the `extra` ones (see `engine.columns`),
    data."""
    order_by = [pa.field(n, pa.string()) for n in (SEQ, OPER)]
    return pa.schema([*order_by, *extra, *data])


def read_sorted(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema, memory_bytes: int | None, texts: TextRenderer
) -> pa.Table | None:
    """Returns a batch's rows in their order, and starts to render their texts; None if they need more than a
    third of the memory."""
    rows = collect(texts.pass_through(typed(batch, columns) for batch in batches), columns, memory_bytes)
    if rows is None:
        return None
    rows = rows.combine_chunks()
    texts.finish(rows, indices := order(rows))
    return rows if indices is None else rows.take(pa.array(indices)).combine_chunks()


def collect(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema, memory_bytes: int | None
) -> pa.Table | None:
    """Returns a batch's rows; None if they need more than a third of the memory."""
    found, size = [], 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if memory_bytes is not None and size > memory_bytes // 3:
            return None
    return pa.Table.from_batches(found, columns)


def append_source(rows: pa.Table, key: tuple[str, ...], schema: pa.Schema, audit: Audit) -> Source | None:
    """Returns the changes of a batch that only adds rows: of an archive, or inserts of a keyless table. None
    if rows of the table have to be read."""
    if audit.archives:
        rows = rows.set_column(rows.schema.names.index(OPER), OPER, rows[LETTER])
        if (index := rows.schema.get_field_index(_CARRIED)) >= 0:
            rows = rows.set_column(index, _CARRIED, _archive_masks(rows, audit))
    elif key or pc.any(pc.not_equal(rows[OPER], INSERT)).as_py():
        return None
    keys, none = Keys([pa.nulls(rows.num_rows, pa.int8())]), np.zeros(rows.num_rows, np.bool_)
    return Source(rows, (), schema, False, keys, keys.last, none)


def appended_rows(source: Source, batch: Batch | None = None) -> pa.Table:
    """Returns the rows that changes of an `append_source` add: of all changes, or of those that take effect
    in the decided `batch`."""
    added = pc.is_in(source.rows[OPER], value_set=pa.array([INSERT, UPDATE, DELETE]))
    if batch is not None:
        added = pc.and_(added, pa.array(batch.decided.effective))
    return source.rows.select(source.schema.names).filter(added)


def _archive_masks(rows: pa.Table, audit: Audit) -> pa.Array:
    """Returns the column masks of images, with the bits of the archive's columns."""
    if (bits := carried(rows, audit.header.ordinals)) is None:
        return pa.nulls(rows.num_rows, pa.binary())
    masks = mask.pack(bits, audit.mask_bits)
    return pc.if_else(one(rows[MASK]).is_valid(), masks, pa.scalar(None, pa.binary()))


def source_of(rows: pa.Table, key: tuple[str, ...], schema: pa.Schema, rules: Rules) -> Source:
    """Returns the changes as the engine merges them under rules."""
    source = Source.of(rows, key, schema, partial=False)
    return replace(source, mark=rules.soft_column) if rules.mode == "soft_delete" else source
