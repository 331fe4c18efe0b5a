"""The merge of a batch into a PostgreSQL table, in one transaction.

The keys of the changes are sent to the database, which returns the keys that exist. The engine decides each
change. The resulting rows are staged by COPY and merged. The transaction sees the table as of its start. If
another session changes a row of the batch meanwhile, the database reports an error, and the transaction is
repeated. If the database refuses rows, the changes are applied one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import psycopg
import pyarrow as pa

from ...errors import ApplyError
from ...keylog.notes import note_of
from ...lake.failpoints import reach
from ...lake.retrying import retried
from ...model.change import Relation
from ...model.positions import order_key
from ...sources.postgresql.connect import Session
from ..audit import Audit
from ..auditor import BatchAuditor, write_exceptions
from ..merge_result import ApplyOutcome, Conflicts, MergeResult
from ..multi_source import TargetLocation
from .chunk_merge import ChunkMerge, RowCounts
from .chunks import ChangeChunk, ChunkReader, OrderError
from .connection import WORK_MEM, Database, is_refusal, open_session
from .progress import ProgressRow, ProgressTable
from .single_changes import SingleChanges

_ATTEMPTS = 5
Merged = tuple[ApplyOutcome, MergeResult | None]
"""The outcome, and the result; None instead of the result if the table had the batch already."""


@dataclass(frozen=True)
class BatchMerge:
    """The merge of a batch; called as a function, the task of a Spark job that gets all its changes.

    Attributes:
        database, task, repairs: see `ProgressTable`.
        at: the location of the table's rows.
        row: the progress row of the table when the changes were selected.
        end: the last change number of the batch.
        relation: the target's layout.
        audit: how the changes are decided.
        extra: further columns of the changes, besides those of the target.
        memory_bytes: the memory that the merge may use; None: no limit. Changes that need more than a third
            of it are merged in chunks.
    """

    database: Database
    task: str
    repairs: bool
    at: TargetLocation
    row: ProgressRow
    end: int
    relation: Relation
    audit: Audit
    extra: pa.Schema
    memory_bytes: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Merged | None:
        with open_session(self.database, self.where) as session:
            return self.run(batches, session)

    def run(self, batches: Iterable[pa.RecordBatch], session: Session) -> Merged | None:
        """Merges the changes; None if memory does not hold them and they are in no order."""
        limit = self.memory_bytes and self.memory_bytes // 3
        chunks = ChunkReader(batches, limit, self.end, self.relation, self.audit, self.extra)
        with chunks.next() as first:

            def once() -> Merged:
                with session.transaction():
                    return _Transaction(self, session).run(first, chunks)

            try:
                # Changes of later chunks are read once.
                done = retried(
                    once, psycopg.errors.SerializationFailure, tries=_ATTEMPTS if first.last else 1
                )
            except OrderError:
                return None
            except psycopg.errors.SerializationFailure as error:
                raise ApplyError(
                    "other sessions change the batch's rows in the target faster than it is applied",
                    where=self.where,
                    hint="let nothing else write to it while changes are applied",
                ) from error
        reach("postgresql.committed")
        return done

    @property
    def where(self) -> str:
        """The table, for messages."""
        return f"{self.database.label}, {self.relation.table}"

    @property
    def progress(self) -> ProgressTable:
        """The table's progress."""
        return ProgressTable(self.database, self.task, partial(_same, self.at), repairs=self.repairs)


def _same(at: TargetLocation, _: str) -> TargetLocation:
    return at


@dataclass
class _Transaction:
    """One attempt.

    Attributes:
        merge: the merge of the batch.
        session: the connection.
        found: the results of the chunks.
        exceptions: the rows of exceptions.
        flagged: the number of flagged changes.
    """

    merge: BatchMerge
    session: Session
    found: list[MergeResult] = field(default_factory=list)
    exceptions: list[pa.Table] = field(default_factory=list)
    flagged: int = 0

    def run(self, first: ChangeChunk, chunks: ChunkReader) -> Merged:
        """Merges all chunks, with progress, exceptions and the note for the key log."""
        merge = self.merge
        if (now := self._begun()).number >= merge.end:
            return ApplyOutcome(version=now.version), None
        chunk = first
        self._chunk(chunk)
        while not chunk.last and self.found[-1].ends is None:
            with chunks.next() as chunk:
                self._chunk(chunk)
        found = self._joined()
        if not merge.audit.plain:
            write_exceptions(self.exceptions, merge.audit, found.tally, order_key(found.end))
        if found.end is None:
            return found.outcome, found
        self._note(found, found.end)
        version = merge.progress.advance(self.session, merge.relation.table, found.end)
        reach("postgresql.commit")
        outcome = replace(found.outcome, version=version)
        return outcome, replace(found, outcome=outcome)

    def _begun(self) -> ProgressRow:
        """Locks and returns the table's progress row."""
        merge, session = self.merge, self.session
        progress, table = merge.progress, merge.relation.table
        session.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # The lock comes first: if another task widened a column after the snapshot, this one would see no
        # rows.
        session.execute(f"LOCK TABLE {progress.target(table)} IN ROW EXCLUSIVE MODE".encode())
        session.execute(f"SET LOCAL work_mem = '{WORK_MEM}'".encode())
        now = progress.read(session, table, lock=True)
        if now is not None and (now == merge.row or now.number >= merge.end):
            return now
        raise ApplyError(
            "another process applied to this table meanwhile; nothing of this batch was written",
            where=merge.where,
            hint="run each task only once; a connection pooler must keep session locks",
        )

    def _chunk(self, chunk: ChangeChunk) -> None:
        merge = self.merge
        one = ChunkMerge(self.session, merge.progress, merge.relation, self._audit(), chunk)
        auditor, counts = self._applied(one)
        auditor.finish_log()
        if not merge.audit.plain:
            self.exceptions.append(auditor.exceptions())
        self.flagged += int(auditor.batch.flagged(auditor.batch.changes).sum())
        outcome = ApplyOutcome(
            counts.inserted, counts.updated, counts.deleted, merge.row.version, counts.plan
        )
        found = auditor.result(outcome)
        assert found is not None  # noqa: S101 - the changes are decided
        self.found.append(found)

    def _applied(self, one: ChunkMerge) -> tuple[BatchAuditor, RowCounts]:
        """Merges a chunk together. If the database refuses rows, applies it one change at a time."""
        auditor = one.auditor()
        if one.read_rows(auditor):
            auditor = one.auditor()
        try:
            with self.session.transaction():
                counts = one.merge(auditor)
                if one.chunk.last:
                    self.session.execute("SET CONSTRAINTS ALL IMMEDIATE")
                return auditor, counts
        except psycopg.Error as error:
            if not is_refusal(error):
                raise
        singles = SingleChanges(one)
        counts = singles.run()
        return singles.auditor, counts

    def _audit(self) -> Audit:
        """Returns the audit of the next chunk, with the conflicts and flagged changes of earlier chunks."""
        audit = self.merge.audit
        if not self.found:
            return audit
        logged = Conflicts(tally=self._joined().tally).logged(audit.rules)
        counted = {kind: audit.counts.get(kind, 0) + many for kind, many in logged.items()}
        if (log := audit.keylog) is not None:
            log = replace(log, header=replace(log.header, flagged=log.header.flagged + self.flagged))
        return replace(audit, counts={**audit.counts, **counted}, keylog=log)

    def _joined(self) -> MergeResult:
        """Returns the sum of the chunks' results."""
        first, *rest = self.found
        for found in rest:
            total, more = first.outcome, found.outcome
            outcome = replace(
                total,
                inserted=total.inserted + more.inserted,
                updated=total.updated + more.updated,
                deleted=total.deleted + more.deleted,
                missing=total.missing + more.missing,
                plan=more.plan,
            )
            counts = {kind: many + found.counts[kind] for kind, many in first.counts.items()}
            tally = dict(first.tally)
            for situation, (many, seq) in found.tally.items():
                before, least = tally.get(situation, (0, seq))
                tally[situation] = before + many, least
            end = first.end if found.end is None else found.end
            first = MergeResult(outcome, end, counts, tally, found.ends, first.parts + found.parts, found.why)
        return first

    def _note(self, found: MergeResult, end: int) -> None:
        """Stores a note with the key log's files."""
        if (log := self.merge.audit.keylog) is None:
            return
        header, table = log.header, self.merge.relation.table
        sort = header.sort + self.merge.end - header.after
        note = note_of(
            header.subscription,
            end,
            flagged=self.flagged,
            files=found.parts,
            path=log.path,
            life=log.life,
            sort=sort,
        )
        self.merge.progress.add_note(self.session, table, end, note, log.visible)
