"""The plan `rewrite`: a merge by rewriting (see `rewrite`), by several tasks side by side.

*Stage*: the tasks that have the changes write them to files; those of a change table stay where they are.
*Find*: tasks read the key columns of the files of the table and note which rows the changes meet. *Write*:
tasks write the touched pieces to new parts, and the rows that are new. *Commit*: files out, parts in and the
progress, on exactly the version that was read. No row passes the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ....errors import ConcurrentCommitError
from ....execution import Job, map_tasks
from ....lake import delta as lake
from ..outcome import ApplyOutcome
from .files import BATCH, PART, edges, pieces_of
from .local import info
from .rewrite import exchange
from .rewrite_pieces import FilePiece, FindTask, Found, Unit, WriteTask
from .size import actions, size_of
from .staged import NumberedChanges, SharedChanges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")


@dataclass(frozen=True)
class RewriteTasks:
    """One merge of changes into a table's files, as of the version that `table` has open.

    Attributes:
        table, path: the table.
        staged: the changes, staged or where they were stored.
        session: whose tasks may merge; None: threads of this process do.
        changes: the number of changes.
        shards: the number of tasks.
        memory: what a task may hold; None: no limit.
        most: touched files of more bytes in all are not rewritten.
    """

    table: DeltaTable
    path: str
    staged: NumberedChanges
    session: SparkSession | None
    changes: int
    shards: int
    memory: int | None
    most: int

    def merge(self, app_id: str, upto: int) -> ApplyOutcome | None:
        """Merges and commits, with that progress; None, and nothing is written, when the changes touch more
        than `most` bytes, or take too much memory.

        Raises:
            ConcurrentCommitError: somebody else committed since the version that is open.
        """
        files = actions(self.table).to_pylist()
        spans = [
            FilePiece(f["path"], f["size_bytes"], part, *edges(f, self.staged.key[0]))
            for f in files
            for part in range(pieces_of(f["size_bytes"]))
        ]
        looked = self._find(spans)
        if not looked:
            return None
        touched = {spans[one.piece].file for one in looked if one.met}
        gone = [f for f in files if f["path"] in touched]
        if sum(f["size_bytes"] for f in gone) > self.most:
            return None
        met, deleted = sum(one.met for one in looked), sum(one.gone for one in looked)
        new = looked[0].upserts - (met - deleted)
        known = {one.piece: one.file for one in looked}
        units = [Unit(s, known[n]) for n, s in enumerate(spans) if n in known and s.file in touched]
        if (parts := self._write(self._adding(units, gone, new))) is None:
            return None
        try:
            exchange(self.table, gone, parts, app_id, upto, info(plan="rewrite"))
        except CommitFailedError as error:
            raise ConcurrentCommitError.at(self.path, self.table.version()) from error
        return ApplyOutcome(new, met - deleted, deleted, self.table.version() + 1, "rewrite")

    @cached_property
    def _shared(self) -> NumberedChanges:
        """The changes; threads of one process read their keys once."""
        return SharedChanges(self.staged)

    def _job(self, does: str, shards: int) -> Job:
        text = f"apply {self.staged.table}: {self.changes:,} changes, {shards} shards ({does})"
        return Job("apply", text, self.changes)

    def _find(self, spans: Sequence[FilePiece]) -> list[Found] | None:
        """What the pieces have of the changes; None if that takes too much memory."""
        dealt = self._dealt(list(enumerate(spans)), [_weight(s) for s in spans])
        task, job = FindTask(self._shared, self.path), self._job("find rows", len(dealt))
        found = map_tasks(task, dealt, session=self.session, job=replace(job, counts=False))
        return None if any(one is None for one in found) else [each for one in found for each in one or ()]

    def _adding(self, units: list[Unit], gone: Sequence[dict[str, Any]], new: int) -> list[Unit]:
        """The units, with so many new rows: few go to the end of the file with the greatest keys, as far as
        files are written; many are parts of their own."""
        size = size_of(self.table)
        more = new * size.bytes // max(1, size.rows)
        if new and units and more <= lake.SMALL_FILE:
            tops = {f["path"]: edges(f, self.staged.key[0])[1] for f in gone}
            highest = max((top for top in tops.values() if top is not None), default=None)
            at = max(n for n, u in enumerate(units) if u.span and tops[u.span.file] in (highest, None))
            return [replace(u, adds=(0, 1)) if n == at else u for n, u in enumerate(units)]
        many = 1 + more // PART if new else 0
        return [*units, *[Unit(adds=(n, many)) for n in range(many)]]

    def _write(self, units: list[Unit]) -> list[lake.AddedFile] | None:
        dealt = self._dealt(units, [_weight(u.span) for u in units])
        batch = BATCH if self.memory is None else min(BATCH, self.memory // 6)
        met = tuple(u.met for u in units if u.met)
        columns = lake.arrow_schema(self.table)
        task, job = WriteTask(self._shared, self.path, met, batch, columns), self._job("write", len(dealt))
        found = map_tasks(task, dealt, session=self.session, job=job)
        return None if any(one is None for one in found) else [each for one in found for each in one or ()]

    def _dealt(self, work: Sequence[_T], sizes: Sequence[int]) -> tuple[tuple[_T, ...], ...]:
        """Work dealt to shards, the largest first, each to the shard that has least."""
        dealt: list[list[_T]] = [[] for _ in range(min(len(work), self.shards))]
        loads = [0] * len(dealt)
        for at in sorted(range(len(work)), key=lambda n: -sizes[n]):
            least = loads.index(min(loads))
            dealt[least].append(work[at])
            loads[least] += sizes[at]
        return tuple(map(tuple, dealt))


def _weight(span: FilePiece | None) -> int:
    return 1 + min(span.size, PART) if span else PART
