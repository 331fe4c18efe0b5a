"""A batch on its way into a PostgreSQL table: folded, staged by Spark's tasks, written in one transaction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import psycopg

from ....engine.columns import KEPT, OP, TAKE
from ....errors import ApplyError
from ....lake.failpoints import reach
from ....model.change import DELETE
from ....sources.postgresql.connect import Session
from ...fold import fold
from ...images import col, last_truncate
from ...plan import Folded, TableBatch
from ..outcome import ApplyOutcome
from . import stage as staging
from .foreign_writes import Looked, naming_conflicts, unchanged
from .notes import Notes
from .place import WORK_MEM, Place
from .progress import Progress, Reached
from .shared import empty
from .stage import Staged
from .values import cells
from .write import StagedWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class PostgresBatch:
    """A batch: the connection that has its table, what was reached before, what the names of its
    staging tables begin with, what one task may hold in memory; `looks`: at rows that it was made from."""

    spark: SparkSession
    session: Session
    place: Place
    progress: Progress
    batch: TableBatch
    reached: Reached
    name: str
    memory: int | None = None
    looks: list[Looked] = field(default_factory=list)

    @cached_property
    def folded(self) -> Folded:
        """What is left of the changes."""
        batch, after = self.batch, self.reached.upto
        truncate = None if batch.folded else last_truncate(batch.changes, batch.counts, after)
        return fold(batch, after=after, truncate=truncate, there=self._under, memory=self.memory)

    @property
    def plan(self) -> str:
        """A name in `PLANS`."""
        if self.folded.replaces:
            return "replace_all"
        if self.batch.relation.key:
            return "upsert"
        return "bag" if TAKE in self.folded.extra else "append"

    @property
    def target(self) -> str:
        """The table, as quoted SQL."""
        return self.progress.target(self.batch.table)

    def stage(self) -> Staged:
        """Writes what is left of the changes to the staging table."""
        folded, relation = self.folded, self.batch.relation
        df = folded.df.where(col(OP) != DELETE) if folded.replaces and relation.key else folded.df
        return staging.stage(self.session, self.place, self.name, df, relation, folded.extra, self.target)

    def _under(self, keys: DataFrame) -> DataFrame:
        """The target's rows under keys, looked at until the transaction."""
        batch = self.batch
        staged = staging.keys(
            self.session, self.place, f"{self.name}_keys", keys, batch.relation, self.target
        )
        look = Looked(self.place.own(f"{self.name}_moved"), self.target, batch.relation)
        look.take(self.session, staged)
        self.looks.append(look)
        query = f"SELECT {cells(batch.relation.columns)} FROM {look.rows}"
        return staging.rows_of_query(self.spark, self.place, query, batch.relation)

    def commit(self, staged: Staged, notes: Notes, note: tuple[str, int] | None) -> ApplyOutcome:
        """The one transaction. It looks at the progress again: behind some connection poolers the lock on
        the table does not hold from one transaction to the next.

        Raises:
            ConcurrentCommitError: others changed rows that the batch was made from, or that it changes.
        """
        mine, batch = self.session, self.batch
        where = f"{self.place.label}, {batch.table}"
        # What is changed in part is written by several statements, which must find the same rows.
        one_state = self.target if KEPT in staged.extra else None
        with naming_conflicts(where), mine.transaction(), unchanged(mine, self.looks, where, one_state):
            now = self.progress.read(mine, batch.table, lock=True)
            if now != self.reached:
                raise ApplyError(
                    "another process applied to this table meanwhile; nothing of this batch was written",
                    where=where,
                    hint="run a task once only; a pooler before the target must keep session locks",
                )
            mine.execute(f"SET LOCAL work_mem = '{WORK_MEM}'".encode())
            done = self.write(staged)
            if note is not None:
                notes.leave(mine, batch.table, batch.upto, *note)
            done = replace(done, version=self.progress.advance(mine, batch.table, batch.upto))
            reach("postgresql.commit")
        reach("postgresql.committed")
        return done

    def write(self, staged: Staged) -> ApplyOutcome:
        """Brings the staged rows into the table; within a transaction."""
        try:
            with self.session.transaction():
                return self._write(staged)
        except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
            to = StagedWriter(self.session, self.target, self.batch.relation, staged)
            if self.plan != "upsert" or to.followed:
                raise
            inserted, updated, deleted = to.anew(partial=KEPT in staged.extra)
            return ApplyOutcome(inserted, updated, deleted, plan=self.plan)

    def _write(self, staged: Staged) -> ApplyOutcome:
        """The statements of the plan."""
        batch = self.batch
        to = StagedWriter(self.session, self.target, batch.relation, staged)
        gone = empty(self.session, self.progress, batch.table) if self.folded.replaces else 0
        if not staged.extra:
            return ApplyOutcome(inserted=to.append(), deleted=gone, plan=self.plan)
        if not batch.relation.key:
            taken = 0 if self.folded.replaces else to.take_copies()
            missing = to.copies_to_take() - taken
            return ApplyOutcome(to.add_copies(), 0, gone + taken, plan=self.plan, missing=missing)
        partial = KEPT in staged.extra
        # Deletes first: what others made unique here may pass from an old row to a new one.
        if not self.folded.replaces and batch.may("D", "key_changes"):
            gone += to.delete()
        partly = to.update_partly() if partial else 0
        inserted, updated = to.upsert(partial=partial)
        return ApplyOutcome(inserted, partly + updated, gone, plan=self.plan)

    def drop(self) -> None:
        """Drops the staging tables."""
        staging.drop_all(self.session, self.place, self.name)
