"""Processes a partition of a store batch in one task: decodes log records, writes Parquet parts.

The task writes one part per change table and one for TRACKING into those tables' folders; they become visible
when the driver commits them. A retried task writes new parts, so the parts of a failed attempt never count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ..config.policies import MAXIMUM, MEDIUM
from ..errors import FormatError
from ..lake import delta as lake
from ..lake import log
from ..lake.failpoints import reach
from ..model.change import Relation
from ..model.sequence import number_of
from ..state.declarations import QUARANTINE
from ..wire.pgvalues import misfit
from . import gaps, images, tracking
from .policy import reduced
from .tables import SEQ
from .unstorable import BadValue, LeftChange, first_written, set_aside

LOG_COLUMNS = ["RECID", "TRXID", "RELID", "LOGADDR", "DATA", "COMMIT_TIME", "CHANGE_SEQ"]


@dataclass(frozen=True)
class KeptLayout:
    """A layout with its columns' names in the change table: the change number from which it is valid, the
    policy's level of each column, and whether the change table cannot hold it."""

    start: int
    relation: Relation
    levels: tuple[int, ...]
    refused: bool = False


@dataclass(frozen=True)
class TablePlan:
    """The plan to store one source table: its change table (path, schema), its layouts, the change number
    that is already stored, and the level of its policy."""

    table: str
    path: str
    schema: pa.Schema
    layouts: tuple[KeptLayout, ...]
    after: int
    level: int = MAXIMUM


@dataclass(frozen=True)
class StorePlan:
    """The plan of a store batch for each of its tasks.

    `stored_after`: changes up to that number are counted in recorded batches; after a crash, later ones may
    be stored again. `bad_after`: bad values of changes up to that number are in the quarantine table.
    """

    tables: Mapping[int, TablePlan]
    tracking: str
    tracking_after: int
    quarantine: str
    stored_after: int = -1
    bad_after: int = -1

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> list[StoreResult]:
        """Stores a task's batches; returns a result for each part written, one for the last commit, and one
        for the numbers of the records."""
        return _Storing(self).run(batches)


@dataclass(frozen=True)
class StoreResult:
    """One result of a task.

    Attributes:
        kind: `changes`, `tracking` or `quarantine` (a part), `commit` (the last one), `numbers` (those of the
            records), `left` (changes that are not stored).
        relid: the relation of a part of changes.
        file: the part; None if there are no rows.
        info: counts of the changes; the commit; the ranges of numbers; `bad`: the first quarantined value of
            each table; `left`: the first change.
    """

    kind: str
    relid: int | None = None
    file: lake.AddedFile | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


class _Storing:
    def __init__(self, plan: StorePlan) -> None:
        self.plan = plan
        self.parts: dict[int, lake.Part] = {}
        self.counts: dict[int, dict[str, int]] = {}
        self.bad: list[BadValue] = []
        self.left: dict[int, LeftChange] = {}
        self.tracking: lake.Part | None = None
        self.last: dict[str, object] | None = None
        self.number_runs: list[gaps.Run] = []

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[StoreResult]:
        for batch in batches:
            self.take(lake_batch(batch))
        return self.results()

    def take(self, batch: pa.RecordBatch) -> None:
        kinds = batch["RECID"].to_numpy()
        relids = batch["RELID"].to_numpy()
        numbers = tracking.numbers(batch["CHANGE_SEQ"])
        self.note_commit(batch, kinds, numbers)
        self.number_runs = gaps.joined(
            [*self.number_runs, *gaps.runs(numbers[numbers > self.plan.tracking_after])]
        )
        changes = np.isin(kinds, (log.INSERT, log.UPDATE, log.DELETE, log.DDL))
        tracked: list[tuple[np.ndarray[tuple[int], np.dtype[np.intp]], pa.RecordBatch]] = []
        for relid in np.unique(relids[changes]):
            table = self.plan.tables.get(int(relid))
            if table is None:
                raise FormatError(
                    f"LOG has changes of relation {relid}, which is not in the relation history",
                    where=f"LOG, change number {int(numbers[changes & (relids == relid)][0])}",
                    hint="the relations table was changed or removed by hand; restore it",
                )
            mine = changes & (relids == relid)
            for layout, end in _ranges(table):
                rows = np.flatnonzero(mine & (numbers >= layout.start) & (numbers < end))
                if layout.refused:
                    self.leave(batch, rows[numbers[rows] > self.plan.tracking_after], int(relid), layout)
                    continue
                again = bool((numbers[rows] <= table.after).any())
                counted, ddl = numbers[rows] > self.plan.stored_after, kinds[rows] == log.DDL
                for part in (
                    rows[k] for k in (counted & ~ddl, counted & ddl, ~counted & ~ddl, ~counted & ddl)
                ):
                    if len(part):
                        mine_now = batch.take(pa.array(part))
                        tracked.append((part, self.store(mine_now, int(relid), table, layout, again)))
        self.track(tracked, numbers)

    def leave(
        self,
        batch: pa.RecordBatch,
        rows: np.ndarray[tuple[int], np.dtype[np.intp]],
        relid: int,
        layout: KeptLayout,
    ) -> None:
        """Records changes that the change table cannot hold."""
        if len(rows) and relid not in self.left:
            position = batch["LOGADDR"][int(rows[0])].as_py().hex().upper()
            self.left[relid] = LeftChange(position, self.plan.tables[relid].table, relid, layout.start)

    def note_commit(
        self,
        batch: pa.RecordBatch,
        kinds: np.ndarray[tuple[int], np.dtype[np.int32]],
        numbers: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> None:
        ends = np.flatnonzero((kinds == log.COMMIT) | (kinds == log.MESSAGE))
        if not len(ends):
            return
        at = int(ends[np.argmax(numbers[ends])])
        if self.last is None or int(numbers[at]) > int(str(self.last["number"])):
            self.last = {
                "number": int(numbers[at]),
                "change_seq": batch["CHANGE_SEQ"][at].as_py(),
                "position": batch["LOGADDR"][at].as_py().hex().upper(),
                "commit_us": batch["COMMIT_TIME"][at].cast(pa.int64()).as_py(),
            }

    def store(
        self, records: pa.RecordBatch, relid: int, table: TablePlan, layout: KeptLayout, again: bool
    ) -> pa.RecordBatch:
        """Writes change-table rows of the records that the table does not have yet; returns their tracking
        rows.

        The counts include all changes that are in no recorded batch, because apply relies on them; also rows
        that an interrupted attempt has already written (`again`: there may be some).
        """
        counts = self.counts.setdefault(relid, dict.fromkeys((*images.COUNTS, "rows"), 0))
        numbers = tracking.numbers(records["CHANGE_SEQ"])
        if numbers[0] <= self.plan.stored_after:
            counts = dict(counts)
        field_maps = None
        if records["RECID"][0].as_py() == log.DDL:
            rows = images.truncates(records, table.schema)
            rows = rows if table.level >= MEDIUM else rows.slice(0, 0)
            counts["T"] += rows.num_rows
        else:
            decoded = images.decode(records, layout.relation, table.schema)
            decoded = reduced(decoded, layout.relation, table.level, layout.levels)
            field_maps, rows = decoded.field_maps, decoded.rows
            for k, v in decoded.counts.items():
                counts[k] += v
            self.keep(decoded.bad, records, table, layout.relation)
        counts["rows"] += rows.num_rows
        self.write(rows, relid, table, again)
        return tracking.rows(records, numbers, field_maps, table.table)

    def write(self, rows: pa.RecordBatch, relid: int, table: TablePlan, again: bool) -> None:
        if again:
            rows = rows.filter(pa.array(tracking.numbers(rows[SEQ]) > table.after))
        if not rows.num_rows:
            return
        if relid not in self.parts:
            self.parts[relid] = lake.Part(table.path, table.schema, name="changes")
        self.parts[relid].write(rows)

    def keep(
        self,
        bad: list[images.BadImageValue],
        records: pa.RecordBatch,
        table: TablePlan,
        relation: Relation,
    ) -> None:
        for one in bad:
            seq = records["CHANGE_SEQ"][one.row].as_py()
            if number_of(seq) <= self.plan.bad_after:
                continue
            reason = misfit(table.table, one.column, one.text)
            reason += f" (lake type {relation.column(one.column).type})"
            position = records["LOGADDR"][one.row].as_py().hex().upper()
            about = (table.table, one.column, one.text, reason, one.column in relation.key, one.before)
            self.bad.append(BadValue(seq, position, *about))

    def track(
        self,
        tracked: list[tuple[np.ndarray[tuple[int], np.dtype[np.intp]], pa.RecordBatch]],
        numbers: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> None:
        if not tracked:
            return
        rows = pa.Table.from_batches([r for _, r in tracked]).combine_chunks()
        places = np.concatenate([p for p, _ in tracked])
        order = np.argsort(places, kind="stable")
        keep = order[numbers[places[order]] > self.plan.tracking_after]
        if not len(keep):
            return
        if self.tracking is None:
            self.tracking = lake.Part(self.plan.tracking, tracking.SCHEMA, name="tracking")
        self.tracking.write(rows.take(pa.array(keep)))

    def results(self) -> list[StoreResult]:
        found: list[StoreResult] = []
        reach("store.part")
        for relid, counts in self.counts.items():
            added = self.parts[relid].close() if relid in self.parts else None
            found.append(StoreResult("changes", relid, added, counts))
        if self.tracking is not None:
            found.append(StoreResult("tracking", None, self.tracking.close()))
        if self.bad:
            part = lake.Part(self.plan.quarantine, QUARANTINE, name="quarantine")
            part.write(set_aside([_row(one) for one in self.bad]))
            info = {"bad": first_written(self.bad)}
            found.append(StoreResult("quarantine", None, part.close(), info))
        found += [StoreResult("left", info={"left": one}) for one in self.left.values()]
        found.append(StoreResult("numbers", info={"runs": self.number_runs}))
        if self.last is not None:
            found.append(StoreResult("commit", info=self.last))
        return found


def _row(one: BadValue) -> dict[str, str]:
    """Returns a bad value as a row of the quarantine table."""
    return {n: str(getattr(one, n)) for n in ("change_seq", "table", "column", "value", "reason")}


def _ranges(table: TablePlan) -> list[tuple[KeptLayout, int]]:
    ends = [one.start for one in table.layouts[1:]] + [np.iinfo(np.int64).max]
    return list(zip(table.layouts, ends, strict=True))


def lake_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch from Spark in LOG's Arrow types."""
    wanted = [log.SCHEMA.field(name) for name in batch.schema.names]
    arrays = [batch[f.name] for f in wanted]
    arrays = [a if a.type == f.type else a.cast(f.type) for a, f in zip(arrays, wanted, strict=True)]
    return pa.record_batch(arrays, schema=pa.schema(wanted))
