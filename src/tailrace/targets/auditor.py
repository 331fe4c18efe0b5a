"""What a merge inside one task finds out on its way: the outcome of each change, whatever the target is.

The look at the target's keys that a merge takes in any case tells what each change met. Exceptions are
committed before the target; the part of the key log is handed to whoever commits it after.
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
from .text_renderer import Rendering

NONE_THERE: Places = np.zeros(1, np.int64)
"""What a table has for changes that look for no row (see `only_adds`)."""
_CARRIED = PREFIX + "column_mask"
_ROWS = 1 << 16
"""The maximum number of rows of a key log that are rendered together."""


class BatchAuditor:
    """The auditor of one merge; decides again when the merge has to begin again.

    `shard`: the changes are a shard of a batch, whose truncates (`change_seq`) these are: where the batch
    ends is not its own to decide, and exceptions become a part that the driver commits.
    """

    def __init__(
        self,
        audit: Audit,
        upto: int,
        source: Source,
        texts: Sequence[Future[ChangeTexts]] = (),
        *,
        shard: Sequence[str] | None = None,
    ) -> None:
        self._audit, self._most, self._texts = audit, upto, texts  # see `Rendering.parts`
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
        self._kept: lake.AddedFile | None = None

    @property
    def batch(self) -> Batch:
        """The changes, decided."""
        assert self._batch is not None  # noqa: S101 - asked once decided
        return self._batch

    @property
    def end(self) -> int | None:
        """The progress of the table after the batch; None: there is nothing to commit. Known once decided."""
        end = self.batch.upto(self._most)
        return None if end < 0 else end

    @property
    def blind(self) -> bool:
        """Whether the table's rows tell nothing: without rules, a truncate takes them away unseen."""
        return self._audit.plain and self.truncated

    @property
    def truncated(self) -> bool:
        """Whether a truncate is among the changes."""
        return bool(self._changes.events.truncates)

    @property
    def empties(self) -> bool:
        """Whether a truncate takes away all rows that the table has. Known once decided."""
        return bool(self.batch.truncates)

    def spoil(self, why: pa.StringArray) -> None:
        """Takes changes as data errors: what is wrong with each row (NULL: nothing).

        Raises:
            ApplyError: there are no rules that say what happens then.
        """
        self._changes = self._changes.spoiled(why)
        if self._audit.plain and self._changes.why is not None and why.null_count < len(why):
            row = int(np.argmax(why.is_valid().to_numpy(zero_copy_only=False)))
            raise ApplyError(
                f"the target cannot hold a change: {why[row].as_py()}",
                where=f"{self._audit.table}, change_seq {self._changes.rows[SEQ][row].as_py()}",
                hint="keep the column as text (`types`), or correct the value and resync the table",
            )

    def decide(self, source: Source, there: Places, rows_of: RowsOf) -> Source:
        """The changes with what counts of them; `there`: of each key's number how many rows of the table have
        it that are not marked as deleted."""
        return self.judge(there).left(source, self._audit.header.ordinals, rows_of)

    def judge(self, there: Places) -> Batch:
        """Decides all changes."""
        audit, changes = self._audit, self._changes
        counted = audit.counted if self._shard is None else None
        if self._keyed:
            self._batch = changes.met(there > 0, audit.rules, counted)
        else:
            self._batch = changes.met_copies(there, audit.rules, counted)
        return self._batch

    def log(self, pool: Executor) -> None:
        """Begins to write the key log of what was decided, while the table is written."""
        self._writing = self._log(self._raw(), pool)

    def finish(self) -> None:
        """Ends what was begun, and writes exceptions; called before the commit."""
        self.end_log()
        audit = self._audit
        if audit.plain or audit.log_only or not audit.rules.keeps:
            return
        if self._shard is None:
            keep([self.aside()], audit, self.batch.odd, order_key(self.end))
        elif (rows := self.aside()).num_rows:
            self._kept = audit.exceptions.write_file(rows, audit.table)

    def aside(self) -> pa.Table:
        """The changes that were flagged and skipped, as rows of exceptions."""
        audit, rows = self._audit, self.batch.aside()
        schema = audit.exceptions.rows_schema
        return logged(self._raw(), audit.header, schema, rows, _now()) if len(rows) else schema.empty_table()

    def end_log(self) -> None:
        """Waits until the key log's rows are written.

        Raises:
            ApplyError: there are no rules, and a change has an unknown operation.
        """
        assert self._writing is not None  # noqa: S101 - begun before
        made = self._writing.result()
        if isinstance(made, pa.Table):
            self._logged = made
        else:
            self._parts = tuple(made)
        if self._audit.plain:
            self._refuse_unknown(self.batch)

    def _raw(self) -> Batch:
        return replace(self.batch, rows=raw_values(self.batch.rows))

    @property
    def kept(self) -> lake.AddedFile | None:
        """The part of a shard's exceptions; None: there are none."""
        return self._kept

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
        if texts and len(rows) > log.handed:
            parts = logged_in_parts(pool, batch, header, schema, rows, now, texts)
            return pool.submit(lake.write_pieces, log.path, schema, (part.result() for part in parts))

        def write() -> list[lake.AddedFile] | pa.Table:
            if not texts and len(rows) > max(log.handed, _ROWS):
                cuts = range(0, len(rows), _ROWS)
                some = (
                    logged(batch, header, schema, rows[n : n + _ROWS], now, images=log.images) for n in cuts
                )
                return lake.write_pieces(log.path, schema, some)
            joined = ChangeTexts.joined([part.result() for part in texts]) if texts else None
            whole = logged(batch, header, schema, rows, now, images=log.images, texts=joined)
            return whole if len(rows) <= log.handed else lake.write_part(log.path, whole)

        return pool.submit(write)

    def audited(self, outcome: ApplyOutcome) -> MergeResult | None:
        """What was found; None when the target had the batch already."""
        if (batch := self._batch) is None:
            return None
        if not self._keyed and self._audit.plain:
            outcome = replace(outcome, missing=batch.missing)
        ends, why = batch.ends, batch.why_it_ends
        return MergeResult(outcome, self.end, batch.counts, batch.odd, ends, self._parts, why, self._logged)


def keep(rows: Sequence[pa.Table], audit: Audit, tally: Mapping[str, tuple[int, str]], upto: int) -> None:
    """Writes exceptions of changes up to a change number, and removes those of an attempt that was not
    committed; `tally`: as in `MergeResult`."""
    if audit.rules.keeps:
        audit.exceptions.remove_after(audit.table, audit.after, audit.counted)
    found = pa.concat_tables(rows)
    if found.num_rows:
        counts = Conflicts(tally=tally).counted(audit.rules, audit.counted)
        audit.exceptions.add_rows(found, audit.table, upto, start=audit.after, counts=counts)


def log_without_conflicts(one: ChangeBatch) -> list[lake.AddedFile]:
    """Writes the key log of a batch whose changes all met what they expect, each key in one change, to parts
    that nothing refers to; the target has the changes."""
    one = one.located()
    audit = audit_of(one)
    assert audit.keylog is not None  # noqa: S101 - it is to be logged
    log, schema = audit.keylog, schema_of(one.relation.columns)
    if log.mode == "errors":
        return []
    columns = wanted(pa.schema([f for f in one.extra if f.name != LETTER]), schema)

    def rows() -> Iterator[pa.Table]:
        for some in one.read(columns):
            source = Source.of(ordered(pa.Table.from_batches([some])), tuple(one.relation.key), schema, False)
            changes = Changes.of(source)
            exists = np.ones(len(source.last), np.bool_)
            exists[source.keys.place[changes.events.oper == INSERT]] = False
            batch = changes.met(exists, audit.rules)
            yield logged(batch, log.header, log.schema, batch.changes, _now(), images=log.images)

    return lake.write_pieces(log.path, log.schema, rows())


def _now() -> datetime:
    return datetime.now(timezone.utc)


def wanted(extra: pa.Schema, data: pa.Schema) -> pa.Schema:
    """The columns of an audited batch: `SEQ`, `OPER`, what `extra` names (see `engine.columns`), the data."""
    order_by = [pa.field(n, pa.string()) for n in (SEQ, OPER)]
    return pa.schema([*order_by, *extra, *data])


def held(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema, memory_bytes: int | None, texts: Rendering
) -> pa.Table | None:
    """A batch's rows in their order, and their texts begun; None when they take more than a third of the
    memory."""
    rows = gathered(texts.seen(typed(batch, columns) for batch in batches), columns, memory_bytes)
    if rows is None:
        return None
    rows = rows.combine_chunks()
    texts.finish(rows, places := order(rows))
    return rows if places is None else rows.take(pa.array(places)).combine_chunks()


def gathered(
    batches: Iterable[pa.RecordBatch], columns: pa.Schema, memory_bytes: int | None
) -> pa.Table | None:
    """A batch's rows; None when they take more than a third of the memory."""
    found, size = [], 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if memory_bytes is not None and size > memory_bytes // 3:
            return None
    return pa.Table.from_batches(found, columns)


def only_adds(rows: pa.Table, key: tuple[str, ...], schema: pa.Schema, audit: Audit) -> Source | None:
    """The changes of a batch that looks for no row of the table: an archive's, and inserts of a table without
    key; None: it looks for some."""
    if audit.archives:
        rows = rows.set_column(rows.schema.names.index(OPER), OPER, rows[LETTER])
        if (place := rows.schema.get_field_index(_CARRIED)) >= 0:
            rows = rows.set_column(place, _CARRIED, _moved(rows, audit))
    elif key or pc.any(pc.not_equal(rows[OPER], INSERT)).as_py():
        return None
    keys, none = Keys([pa.nulls(rows.num_rows, pa.int8())]), np.zeros(rows.num_rows, np.bool_)
    return Source(rows, (), schema, False, keys, keys.last, none)


def added_rows(source: Source, batch: Batch | None = None) -> pa.Table:
    """The rows that such changes add; once they are decided (`batch`), those of changes that count."""
    kept = pc.is_in(source.rows[OPER], value_set=pa.array([INSERT, UPDATE, DELETE]))
    if batch is not None:
        kept = pc.and_(kept, pa.array(batch.decided.effective))
    return source.rows.select(source.schema.names).filter(kept)


def _moved(rows: pa.Table, audit: Audit) -> pa.Array:
    """Which columns images carry, as masks of an archive."""
    if (bits := carried(rows, audit.header.ordinals)) is None:
        return pa.nulls(rows.num_rows, pa.binary())
    masks = mask.pack(bits, audit.places)
    return pc.if_else(one(rows[MASK]).is_valid(), masks, pa.scalar(None, pa.binary()))


def source_of(rows: pa.Table, key: tuple[str, ...], schema: pa.Schema, rules: Rules) -> Source:
    """The rows ready to be merged under rules."""
    source = Source.of(rows, key, schema, partial=False)
    return replace(source, mark=rules.soft_column) if rules.mode == "soft_delete" else source
