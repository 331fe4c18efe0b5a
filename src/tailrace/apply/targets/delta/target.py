"""Delta targets: `<root>/<schema>.<table>`, one Delta table a source table, progress in its own commits."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ....errors import ConcurrentCommitError, TailraceError
from ....lake import delta as lake
from ....lake.thinning import Past, thin
from ....model.change import Relation
from ....model.types import spark_type
from ...data_errors import Demands
from ...fold import emptied, in_types
from ...gone import gone
from ...images import explaining, last_truncate, shaped
from ...mapping.shared_rows import TargetPlace, as_there, own_rows
from ...plan import Limits, Size, TableBatch, awkward, choose, choose_marks, is_local
from ...tasks import TOO_LARGE, Parts
from ..audit import Audit, Audited
from ..capabilities import Capabilities
from ..outcome import ApplyOutcome
from ..task_batch import TaskBatch
from . import distributed
from . import layout as delta_layout
from .audit import audited
from .batch import DeltaBatch
from .in_place import InPlace
from .load import load
from .local import LEAST_MEMORY
from .many import ManyTask, merge_many
from .shared import fits, load_part, rounds
from .size import is_plain, refuse, rows_in, size_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SAME_ROWS = {"REORG", "OPTIMIZE", "SET TBLPROPERTIES", "UPGRADE PROTOCOL"}
"""Operations that leave a table's rows as they are."""


class DeltaTarget:
    """Applies to Delta tables under one root folder; see `Target` for what it keeps.

    Args:
        spark: the session of the batches' DataFrames; `merge_many` does without one.
        root: folder or URI of the targets.
        app_id: under which name the progress stands in the tables' commits.
        local_limit_bytes: batches that write files of up to so many bytes anew are merged inside one task
            (on a cluster: those of smaller tables), others by several.
        merge_memory_bytes: what one task-local merge may hold in memory; a batch that needs more is merged by
            Spark. None: no limit.
        rewrite_share, rewrite_bytes: see `Limits`; a table whose rows are marked has deletion vectors, for
            good.
        places: where a source table's rows are; None: each in a target of its own name.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        *,
        app_id: str,
        local_limit_bytes: int = Limits.local_bytes,
        merge_memory_bytes: int | None = 1 << 30,
        rewrite_share: int = Limits.rewrite_share,
        rewrite_bytes: int = Limits.rewrite_bytes,
        places: Callable[[str], TargetPlace] | None = None,
    ) -> None:
        self._places, self._known = places or TargetPlace, dict[str, TargetPlace]()
        self._spark, self._root, self._app = spark, root.rstrip("/"), app_id
        self._limits = Limits(local_limit_bytes, rewrite_share, rewrite_bytes)
        self._memory = None if merge_memory_bytes is None else max(merge_memory_bytes, LEAST_MEMORY)
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._merge_sessions: dict[str, SparkSession] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Versions, audited merges, jobs of many tables."""
        return Capabilities(versions=True, memory_bytes=self._memory, audits=self, shares=self)

    def place(self, table: str) -> TargetPlace:
        """Where a table's rows are."""
        now = self._places(table)
        if self._known.setdefault(table, now) != now:
            self._known[table] = now
            distributed.forget(self._spark)  # at its path another table was, perhaps
        return now

    def path(self, table: str) -> str:
        """The Delta table's path."""
        return f"{self._root}/{lake.file_name(self.place(table).target)}"

    def app(self, table: str) -> str:
        """Under which name the table's progress stands in the commits."""
        return self.place(table).app(table, self._app)

    def exists(self, table: str) -> bool:
        """Whether the target has that table."""
        return lake.exists(self.path(table))

    def progress(self, table: str) -> int:
        """The change number reached; -1 when there is none."""
        return lake.progress(self.path(table), self.app(table))

    def columns(self, table: str) -> dict[str, str]:
        """Names and Spark SQL types of the columns there are."""
        with lake.opened(self.path(table)) as now:
            return {f.name: spark_type(f.type) for f in lake.arrow_schema(now)}

    def rule_columns(self, table: str) -> set[str]:
        """Those of its columns that rules have added; none where they may be those of another source."""
        if self.place(table).partition:
            return set()
        with lake.opened(self.path(table)) as now:
            return delta_layout.rule_columns(now)

    def look(self, relation: Relation, keys: DataFrame) -> int:
        """The newest version; -1 when there is no table."""
        return lake.version(self.path(relation.table))

    def keys_there(
        self, relation: Relation, keys: DataFrame, *, living: str | None = None, reached: int | None = None
    ) -> DataFrame:
        """The keys that have a row in the target, all or at least those among `keys`, in the relation's
        types.

        `living`: only of rows where this column is NULL, if the target has it. `reached`: as of the newest
        version that was no further than this change number.
        """
        return distributed.keys_of(self._rows(relation.table, reached), relation, living)

    def rows_there(self, relation: Relation, keys: DataFrame, *, reached: int | None = None) -> DataFrame:
        """The table's rows, in the relation's columns and types, as of the newest version that was no further
        than `reached`."""
        return shaped(self._rows(relation.table, reached), relation)

    def _rows(self, name: str, reached: int | None) -> DataFrame:
        """A table's own rows, now or as of the newest version that was no further than a change number."""
        path = self.path(name)
        at = DeltaTable(path) if reached is None else distributed.as_of(path, self.app(name), reached)
        return own_rows(distributed.rows_of(self._spark, path, at), self.place(name).partition)

    def demands(self, table: str) -> Demands:
        """NOT NULL and CHECKs that somebody gave to the table; none when it is not there."""
        return delta_layout.demands(DeltaTable(self.path(table))) if self.exists(table) else Demands()

    def load(
        self, relation: Relation, rows: DataFrame | Parts, after: int, rule_columns: Mapping[str, str] = {}
    ) -> int:
        """Makes rows all that the target has of a table."""
        path, app = self.path(relation.table), self.app(relation.table)
        if lake.exists(path):
            refuse(DeltaTable(path), path)
        with self._locks[path]:
            if own := self.place(relation.table).partition:
                return load_part(path, app, relation, rows, after, own, rule_columns)
            return load(path, app, relation, rows, after)

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        """Changes the layout; makes the table when it does not exist."""
        path, shared = self.path(table), bool(self.place(table).partition)
        with self._locks[path]:
            if self.exists(table):
                delta_layout.refuse_layout(path, before, after, shared=shared)
            if not dry_run:
                delta_layout.alter(self._spark, path, before, after, shared=shared)

    def maintain(self, table: str, small_files: int, past: Past) -> None:
        """Joins small files and thins the past; needs no snapshot in the JVM while the table is local."""
        path = self.path(table)
        if not lake.exists(path):
            return
        with self._locks[path]:
            delta = DeltaTable(path)
            if distributed.has_vectors(delta):
                delta_layout.maintain_distributed(self._spark, path, small_files, past.until_s)
            else:
                lake.compact(path, small_files)
                thin(path, past)

    def apply(self, batch: TableBatch) -> ApplyOutcome:
        """Applies one batch by the cheapest plan, in one commit."""
        began = time.monotonic()
        with explaining(batch.table, f"apply {batch.table}"), self._locks[self.path(batch.table)]:
            done = self._apply(batch)
        return replace(done, seconds=time.monotonic() - began)

    def audited(self, batch: TableBatch, audit: Audit, extras: Mapping[str, Column]) -> Audited | str | None:
        """See `Audits`."""
        began = time.monotonic()
        with self._locks[self.path(batch.table)]:
            path = self.path(batch.table)
            table = DeltaTable(path)
            # What is appended to an archive has nothing to do with its size.
            small = audit.rules.mode == "archive" or is_local(size_of(table), self._limits)
            if not small or not is_plain(table):
                return None
            if self.place(batch.table).partition and not fits(table, batch.relation, batch.counts):
                return None
            app = self.app(batch.table)
            with distributed.naming_conflicts(path, table.version()):
                done = audited(
                    batch, audit, extras, path=path, app_id=app, follows=lake.reached(table, app),
                    memory_bytes=self._memory,
                )  # fmt: skip
        if isinstance(done, Audited):
            return replace(done, outcome=replace(done.outcome, seconds=time.monotonic() - began))
        return None if done == TOO_LARGE else done

    def loads(self, table: str) -> bool:
        """See `Shares`; a source's part of a target only if its files may be exchanged."""
        own, path = self.place(table).partition, self.path(table)
        return not own or not lake.exists(path) or is_plain(DeltaTable(path))

    def merge_many(self, batches: Sequence[TaskBatch]) -> list[Audited | TailraceError | None]:
        """See `many.merge_many`; batches of one target, one after the other."""
        mine = [
            replace(b, app=self.app(b.table), shared=bool(self.place(b.table).partition)) for b in batches
        ]
        found: dict[int, Audited | TailraceError | None] = {}
        for places in rounds(mine):
            found |= zip(places, self._merged([mine[place] for place in places]), strict=True)
        return [found[place] for place in range(len(mine))]

    def _merged(self, batches: Sequence[TaskBatch]) -> list[Audited | TailraceError | None]:
        make = ManyTask(self._limits, self._memory)
        with ExitStack() as held:
            for path in sorted(b.target for b in batches):
                held.enter_context(self._locks[path])
            several = InPlace(self._spark, self._limits, self._memory)
            return merge_many(self._spark, batches, make, several.merged)

    def _apply(self, batch: TableBatch) -> ApplyOutcome:
        """Begins anew when somebody else commits first; what others looked at, they have to look at anew."""
        path = self.path(batch.table)
        if not lake.exists(path):
            if batch.based:
                raise gone(batch.table)
            delta_layout.create(path, batch.relation)
        if batch.looked is not None:
            return self._once(batch, DeltaTable(path))

        def once(now: DeltaTable) -> ApplyOutcome | None:
            try:
                return self._once(batch, now)
            except ConcurrentCommitError:
                return None

        return lake.on_newest(path, once)

    def _once(self, batch: TableBatch, table: DeltaTable) -> ApplyOutcome:
        path, app = self.path(batch.table), self.app(batch.table)
        refuse(table, path)
        if self.place(batch.table).partition:
            batch = in_types(batch, as_there(batch.relation, self.columns(batch.table)))
        if (after := lake.reached(table, app)) == batch.upto:
            return ApplyOutcome(version=table.version())
        if after > batch.upto:
            return ApplyOutcome(version=distributed.version_of(path, app, batch.upto))
        if batch.looked is not None and batch.looked != table.version():
            raise ConcurrentCommitError.at(path, batch.looked, table.version())
        if not batch.rows:
            version = lake.commit(path, [], progress={app: batch.upto})
            return ApplyOutcome(version=table.version() if version is None else version)
        truncate = None if batch.folded else last_truncate(batch.changes, batch.counts, after)
        job = DeltaBatch(self._spark, self._session, batch, path, app, table, after, truncate, self._memory)
        empties = job.folded.replaces if batch.folded else truncate is not None
        if empties and (own := self.place(batch.table).partition):
            there = distributed.rows_of(self._spark, path, table)
            folded = emptied(job.folded, own_rows(there, own), batch.relation.key)
            counts = dict(batch.counts) | {"T": 0, "D": batch.counts.get("D", 0) + rows_in(table)}
            job, empties = replace(job, batch=replace(batch, folded=folded, counts=counts)), False
        size = size_of(table)
        return self._by(choose(job.batch, size, self._limits, truncated=empties), job, size)

    def _by(self, plan: str, job: DeltaBatch, size: Size) -> ApplyOutcome:
        """Does a batch by a plan, or by one that its table needs instead."""
        batch, table = job.batch, job.table
        if plan == "task_local":
            # Whoever gave the table a change feed or constraints wants them kept: Spark knows all of that.
            return job.task_local() if is_plain(table) else job.by_spark()
        if plan == "bag" and not self.place(batch.table).partition:
            delta_layout.refuse_copies(self.path(batch.table), table, batch.relation)
        if plan in ("append", "replace_all", "bag"):
            return job.parts(plan) if delta_layout.takes_parts(table) else job.by_spark(plan)
        if plan == "purge":
            batch, table = self._after(distributed.purge, batch, table)
            job = replace(job, batch=batch, table=table)
        if plan in ("rewrite", "purge"):
            done = job.rewrite(self._limits.most(batch.rows, size)) if is_plain(table, purged=True) else None
            if done is not None:
                return done
            plan = choose_marks(batch)
        if plan == "replace_keys" and len(table.schema().fields) > len(batch.relation.columns):
            plan = "merge"  # which leaves columns that somebody added as they are
        if size.vectors or awkward(batch.relation):
            return job.distributed(plan)
        return self._once(*self._after(distributed.enable_vectors, batch, table))

    def _after(
        self, step: Callable[[SparkSession, str, int], None], batch: TableBatch, table: DeltaTable
    ) -> tuple[TableBatch, DeltaTable]:
        """The batch, and its table after a step of Spark that commits the same rows in another form.

        Raises:
            ConcurrentCommitError: somebody else committed in between.
        """
        path, before = self.path(batch.table), table.version()
        step(self._spark, path, before)
        now = DeltaTable(path)
        # A purge of nothing commits nothing: the one commit may be somebody else's.
        moved = now.version() > before + 1
        if moved or (now.version() > before and now.history(1)[0].get("operation") not in _SAME_ROWS):
            raise ConcurrentCommitError.at(path, before, now.version())
        return (batch if batch.looked is None else replace(batch, looked=now.version())), now

    def _session(self, table: str) -> SparkSession:
        """The session of a table's MERGEs."""
        known = self._merge_sessions.get(table)
        # After a lost session there is another context.
        if known is None or known.sparkContext is not self._spark.sparkContext:
            self._merge_sessions[table] = known = distributed.merge_session(self._spark)
        return known
