"""A batch on its way into a PostgreSQL table: folded, staged by Spark's tasks, written in one transaction."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psycopg

from ...engine.columns import KEPT, OP, OPER
from ...errors import ApplyError
from ...lake.failpoints import reach
from ...model.change import BEFORE
from ...sources.postgresql.connect import Session
from .. import bag
from ..fold import Images, col, fold
from ..plan import TableBatch
from . import postgresql_stage as staging
from .base import Outcome
from .delta_local import NET
from .postgresql_looked import Looked, naming_conflicts, unchanged
from .postgresql_notes import Notes
from .postgresql_place import WORK_MEM, Place
from .postgresql_progress import Progress, Reached
from .postgresql_relax import relax
from .postgresql_stage import Staged
from .postgresql_values import cells
from .postgresql_write import Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Job:
    """A batch: the connection that has its table, what was reached before, the changes made ready, what the
    names of its staging tables begin with; `looks`: at rows that it was made from."""

    spark: SparkSession
    session: Session
    place: Place
    progress: Progress
    batch: TableBatch
    reached: Reached
    made: Images
    name: str
    looks: list[Looked] = field(default_factory=list)

    @property
    def plan(self) -> str:
        """A name in `PLANS`."""
        if self.made.replaces:
            return "replace_all"
        if self.made.key:
            return "upsert"
        return "bag" if self.batch.may("U", "D") else "append"

    @property
    def target(self) -> str:
        """The table, as quoted SQL."""
        return self.progress.target(self.batch.table)

    def stage(self) -> Staged:
        """Folds the changes and writes them to the staging table."""
        made, relation = self.made, self.batch.relation
        extra: tuple[str, ...]
        if not made.key:
            plain = self.plan == "append"
            df, extra = bag.net(made, plain=plain), () if plain else (NET,)
        else:
            folded = fold(made, self.batch.counts, self._moved())
            df, extra = folded.df, (OP, KEPT) if KEPT in folded.df.columns else (OP,)
            if made.replaces:
                df = df.where(col(OP) != "D")
        df = df.select(*map(col, extra), *map(col, made.columns))
        return staging.stage(self.session, self.place, self.name, df, relation, extra, self.target)

    def _moved(self) -> DataFrame | None:
        """The target's rows under old keys: they give what images of key changes lack."""
        batch = self.batch
        if self.made.replaces or not (batch.may("key_changes") and batch.may("absent")):
            return None
        keys = self.made.df.where(col(OPER) == BEFORE).select(*map(col, self.made.key))
        staged = staging.keys(
            self.session, self.place, f"{self.name}_keys", keys, batch.relation, self.target
        )
        look = Looked(self.place.own(f"{self.name}_moved"), self.target, batch.relation)
        look.take(self.session, staged)
        self.looks.append(look)
        query = f"SELECT {cells(batch.relation.columns)} FROM {look.rows}"
        return staging.rows_of_query(self.spark, self.place, query, batch.relation)

    def commit(self, staged: Staged, notes: Notes, note: tuple[str, int] | None) -> Outcome:
        """The one transaction. It looks at the progress again: behind some connection poolers the lock on
        the table does not hold from one transaction to the next.

        Raises:
            ConcurrentCommitError: others changed rows that the batch was made from.
        """
        mine, batch = self.session, self.batch
        where = f"{self.place.label}, {batch.table}"
        with naming_conflicts(where), mine.transaction(), unchanged(mine, self.looks, where):
            now = self.progress.read(mine, batch.table, lock=True)
            if now != self.reached:
                raise ApplyError(
                    "another process applied to this table meanwhile; nothing of this batch was written",
                    where=where,
                    hint="run a task once only; a pooler before the target must keep session locks",
                )
            mine.execute(f"SET LOCAL work_mem = '{WORK_MEM}'".encode())
            relax(mine, self.place, self.target, batch.relation, staged)
            done = self.write(staged)
            if note is not None:
                notes.leave(mine, batch.table, batch.upto, *note)
            done = replace(done, version=self.progress.advance(mine, batch.table, batch.upto))
            reach("postgresql.commit")
        reach("postgresql.committed")
        return done

    def write(self, staged: Staged) -> Outcome:
        """Brings the staged rows into the table; within a transaction."""
        try:
            with self.session.transaction():
                return self._write(staged)
        except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
            if self.plan != "upsert":
                raise
            to = Writer(self.session, self.target, self.batch.relation, staged)
            inserted, updated, deleted = to.anew(partial=KEPT in staged.extra)
            return Outcome(inserted, updated, deleted, plan=self.plan)

    def _write(self, staged: Staged) -> Outcome:
        """The statements of the plan."""
        batch, table = self.batch, self.batch.table
        to = Writer(self.session, self.target, batch.relation, staged)
        own = self.progress.own_rows(table) if self.progress.own(table) else None
        gone = to.truncate(own) if self.made.replaces else 0
        if self.plan == "append":
            return Outcome(inserted=to.append(), plan=self.plan)
        if not self.made.key:
            taken, missing = to.take_copies()
            return Outcome(to.add_copies(), 0, gone + taken, plan=self.plan, missing=missing)
        partial = KEPT in staged.extra
        # Deletes first: what others made unique here may pass from an old row to a new one.
        if not self.made.replaces and batch.may("D", "key_changes"):
            gone += to.delete()
        partly = to.update_partly() if partial else 0
        inserted, updated = to.upsert(partial=partial)
        return Outcome(inserted, partly + updated, gone, plan=self.plan)

    def drop(self) -> None:
        """Drops the staging tables."""
        staging.drop_all(self.session, self.place, self.name)
