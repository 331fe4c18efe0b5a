"""The plan `rewrite`: a merge by rewriting (see `rewrite`), by several tasks side by side.

*Stage*: the tasks that have the changes write them to files; those of a change table stay where they are.
*Find*: tasks read the key columns of the files of the table and note which rows the changes meet. *Write*:
tasks write the touched pieces to new parts, and the rows that are new. *Commit*: files out, parts in and the
progress, on exactly the version that was read. No row passes the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from ....config.spread import spread
from ....errors import ConcurrentCommitError
from ....lake import delta as lake
from ...tasks import RESULT, TOO_LARGE
from ..outcome import ApplyOutcome
from .files import BATCH, PART, edges, pieces_of
from .local import info
from .rewrite import exchange
from .rewrite_lanes import FOUND, FilePiece, FindLane, Unit, WriteLane
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
        spark: whose tasks merge; None: threads of this process do.
        lanes: about how many run side by side.
        memory: what a task may hold; None: no limit.
        most: touched files of more bytes in all are not rewritten.
    """

    table: DeltaTable
    path: str
    staged: NumberedChanges
    spark: SparkSession | None
    lanes: int
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
        if not looked or any(r["piece"] is None for r in looked):
            return None
        touched = {spans[r["piece"]].file for r in looked if r["met"]}
        gone = [f for f in files if f["path"] in touched]
        if sum(f["size_bytes"] for f in gone) > self.most:
            return None
        met, deleted = (sum(r[n] for r in looked) for n in ("met", "gone"))
        new = looked[0]["upserts"] - (met - deleted)
        known = {r["piece"]: r["file"] for r in looked}
        units = [Unit(s, known[n]) for n, s in enumerate(spans) if n in known and s.file in touched]
        if (parts := self._write(self._adding(units, gone, new))) is None:
            return None
        try:
            exchange(self.table, gone, parts, app_id, upto, info(plan="rewrite"))
        except CommitFailedError as error:
            raise ConcurrentCommitError.at(self.path, self.table.version()) from error
        return ApplyOutcome(new, met - deleted, deleted, self.table.version() + 1, "rewrite")

    @cached_property
    def _changes(self) -> NumberedChanges:
        """The changes as tasks get them."""
        return SharedChanges(self.staged) if self.spark is None else self.staged

    def _find(self, spans: Sequence[FilePiece]) -> Sequence[Mapping[str, Any]]:
        dealt = self._dealt(list(enumerate(spans)), [_weight(s) for s in spans])
        return spread(FindLane(self._changes, self.path, dealt), len(dealt), FOUND, self.spark)

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
        task = WriteLane(self._changes, self.path, dealt, met, batch, columns)
        found = spread(task, len(dealt), RESULT, self.spark) if units else []
        if any(r["file"] == TOO_LARGE for r in found):
            return None
        return [lake.AddedFile.from_json(r["file"]) for r in found if r["file"]]

    def _dealt(self, work: Sequence[_T], sizes: Sequence[int]) -> tuple[tuple[_T, ...], ...]:
        """Work dealt to lanes, the largest first, each to the lane that has least."""
        dealt: list[list[_T]] = [[] for _ in range(min(len(work), self.lanes))]
        loads = [0] * len(dealt)
        for at in sorted(range(len(work)), key=lambda n: -sizes[n]):
            least = loads.index(min(loads))
            dealt[least].append(work[at])
            loads[least] += sizes[at]
        return tuple(map(tuple, dealt))


def _weight(span: FilePiece | None) -> int:
    return 1 + min(span.size, PART) if span else PART
