"""PostgreSQL targets: the rows of a batch are staged by COPY, then one transaction brings them in by key,
together with the batch's row of progress.

Data goes from Spark's tasks to the server in bulk and columnar; this process sends statements only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg

from ...change import BEFORE, Relation
from ...errors import ApplyError, TailraceError, UnsupportedError, from_spark
from ...sources.pg_connect import Session, quoted
from .. import bag
from ..data_errors import WHY_COLUMN, Demands
from ..fold import KEPT, OP, OPER, Images, col, fold, images, refused
from ..plan import Size, TableBatch
from . import postgresql_layout as layout
from . import postgresql_stage as staging
from .base import Outcome
from .delta_local import NET
from .postgresql_notes import Notes
from .postgresql_place import CONTROL, Place, locked, locked_or_none, session
from .postgresql_progress import Progress, Reached
from .postgresql_refused import Sieve, refuses
from .postgresql_repairs import Repairs
from .postgresql_stage import Staged
from .postgresql_write import Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WORK_MEM = "64MB"
"""Joins of a batch with its target: the server's default of 4 MB would put them on disk."""


@dataclass(frozen=True)
class _Job:
    """A batch on its way: the connection that has the table, what was reached before, the changes."""

    session: Session
    batch: TableBatch
    reached: Reached
    made: Images
    stage: str


class PostgresTarget:
    """Applies to tables of a PostgreSQL database (14 or newer); see `Target` for what it keeps.

    Args:
        spark: the session that the batches' DataFrames belong to; its tasks connect to the database, too.
        url: `postgresql://user@host:port/database`; `?schema=name` puts all tables into one schema, else they
            go into schemas named as the source's.
        task: under which name the progress stands.
        control: the schema of the progress table and of staging tables; made when it is not there.
        repairs: what is applied is no change of the source: its progress stays, and repairs have their own.
        named: the names of targets that are called otherwise than their tables; it may change.
    """

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        *,
        task: str,
        control: str = CONTROL,
        repairs: bool = False,
        named: Mapping[str, str] | None = None,
    ) -> None:
        self._spark, self._task = spark, task
        self._place = Place.of(url, control, named)
        self._progress = Repairs(self._place, task) if repairs else Progress(self._place, task)
        self._notes = Notes(self._place, task)

    def path(self, table: str) -> str:
        """The target's name in the database, as quoted SQL."""
        return self._place.target(table)

    def exists(self, table: str) -> bool:
        """Whether the database has that table, and this task made it."""
        with session(self._place, self._where(table)) as mine:
            return self._progress.read(mine, table) is not None

    def progress(self, table: str) -> int:
        """The change number reached; -1 when there is none."""
        with session(self._place, self._where(table)) as mine:
            found = self._progress.read(mine, table)
        return found.upto if found else -1

    def columns(self, table: str) -> dict[str, str]:
        """Names and Spark SQL types of the columns there are."""
        with session(self._place, self._where(table)) as mine:
            return {c.name: c.type for c in self._known(mine, table).layout.columns}

    def size(self, table: str) -> Size:
        """Bytes of the table with its indexes; its files are the server's own affair and count as one."""
        with session(self._place, self._where(table)) as mine:
            query = "SELECT pg_total_relation_size(%s::regclass)"
            row = mine.execute(query, (self.path(table),)).fetchone()
        return Size(int(row[0]) if row else 0, 1)

    def alter(self, table: str, before: Relation, after: Relation) -> None:
        """Changes the layout; makes the table when it does not exist.

        Columns are matched with those that the table was given, which its row of progress knows.
        """
        with locked(self._place, self._task, table) as mine:
            found = self._progress.read(mine, table)
            if found is None:
                layout.create(mine, self._place, self._progress, after)
            else:
                layout.alter(mine, self._place, self._progress, found.layout, after)

    def maintain(self, table: str, small_files: int, vacuum_after: float) -> None:
        """Drops staging tables that crashes left behind; files are autovacuum's work."""
        with locked_or_none(self._place, self._task, table) as mine:
            if mine is not None:
                staging.clean(mine, self._place, self._task, table)

    def keys_there(
        self, relation: Relation, keys: DataFrame, *, living: str | None = None, reached: int | None = None
    ) -> DataFrame:
        """The keys among `keys` that have a row: staged, and joined in the database. It has no versions:
        UnsupportedError with `reached`."""
        if reached is not None:
            raise UnsupportedError("a database has no versions", where=self._where(relation.table))
        wanted = relation.with_columns([c for c in relation.columns if c.key])
        name = f"{staging.prefix(self._task, relation.table)}there"
        with locked(self._place, self._task, relation.table) as mine:
            known = self._progress.read(mine, relation.table)
            has = known is not None and living in [c.name for c in known.layout.columns]
            only = f"t.{quoted(living)} IS NULL" if living is not None and has else "true"
            try:
                found = staging.rows_of_keys(self._spark, mine, self._place, name, keys, wanted, only)
                return found.localCheckpoint(eager=True)
            finally:
                staging.drop(mine, self._place.own(name))

    def demands(self, table: str) -> Demands:
        """Whether the database may refuse rows: others changed the table that tailrace made."""
        with session(self._place, self._where(table)) as mine:
            known = self._progress.read(mine, table)
            return Demands(tested=known is not None and refuses(mine, self.path(table), known.layout))

    def refused(self, batch: TableBatch) -> DataFrame | None:
        """Keys whose rows the database refuses, as they are after the batch, and `WHY`; None: none.

        The rows are staged and tried; nothing stays.
        """
        with locked(self._place, self._task, batch.table) as mine:
            reached = self._known(mine, batch.table)
            made = images(batch.changes, batch.relation, batch.counts, after=reached.upto)
            job = _Job(mine, batch, reached, made, f"{staging.prefix(self._task, batch.table)}try")
            bad = self._place.own(f"{job.stage}_bad")
            try:
                sieve = Sieve(mine, self._stage(job), batch.relation, lambda s: self._write(job, s), bad)
                if not sieve.run():
                    return None
                key = [c for c in batch.relation.columns if c.key]
                layout = batch.relation.with_columns([*key, WHY_COLUMN])
                found = staging.rows_of_query(self._spark, self._place, f"SELECT * FROM {bad}", layout)
                return found.localCheckpoint(eager=True)
            finally:
                self._drop(job)

    def apply(self, batch: TableBatch) -> Outcome:
        """Applies one batch in one transaction."""
        return self._applied(batch, None)

    def apply_noted(self, batch: TableBatch, note: str, done: int) -> Outcome:
        """The same, leaving a note in that transaction; see `apply.noted`."""
        return self._applied(batch, (note, done))

    def notes(self) -> list[tuple[str, int, str]]:
        """All notes: table, change number, note; those of a table in order."""
        with session(self._place, self._place.label) as mine:
            return self._notes.read(mine)

    def _applied(self, batch: TableBatch, note: tuple[str, int] | None) -> Outcome:
        began = time.monotonic()
        try:
            with locked(self._place, self._task, batch.table) as mine:
                if note is not None:
                    self._notes.prepare(mine)
                done = self._apply(mine, batch, note)
        except TailraceError:
            raise
        except Exception as error:
            null_key = refused(error, batch.table, batch.relation.key)
            raise null_key or from_spark(error, where=self._where(batch.table)) from error
        return replace(done, seconds=time.monotonic() - began)

    def _apply(self, mine: Session, batch: TableBatch, note: tuple[str, int] | None) -> Outcome:
        reached = self._progress.read(mine, batch.table)
        if reached is None:
            layout.create(mine, self._place, self._progress, batch.relation)
            reached = self._known(mine, batch.table)
        if reached.upto >= batch.upto:
            return Outcome(version=reached.version)
        if not layout.same(reached.layout, batch.relation):
            raise ApplyError(
                "the batch has another layout than the target",
                where=self._where(batch.table),
                hint="call `alter` first; take a new baseline when somebody wrote to tailrace_progress",
            )
        if not batch.rows:
            return Outcome(version=self._progress.advance(mine, batch.table, batch.upto))
        made = images(batch.changes, batch.relation, batch.counts, after=reached.upto)
        stage = f"{staging.prefix(self._task, batch.table)}{batch.upto}"
        job = _Job(mine, batch, reached, made, stage)
        try:
            return self._commit(job, self._stage(job), note)
        finally:
            self._drop(job)

    def _stage(self, job: _Job) -> Staged:
        """Folds the changes and writes them to the staging table."""
        made, relation = job.made, job.batch.relation
        extra: tuple[str, ...]
        if not made.key:
            plain = self._plan(job) == "append"
            df, extra = bag.net(made, plain=plain), () if plain else (NET,)
        else:
            folded = fold(made, job.batch.counts, self._moved(job))
            df, extra = folded.df, (OP, KEPT) if KEPT in folded.df.columns else (OP,)
            if made.replaces:
                df = df.where(col(OP) != "D")
        df = df.select(*map(col, extra), *map(col, made.columns))
        return staging.stage(job.session, self._place, job.stage, df, relation, extra)

    def _moved(self, job: _Job) -> DataFrame | None:
        """The target's rows under old keys: they give what images of key changes lack."""
        batch = job.batch
        if job.made.replaces or not (batch.may("key_changes") and batch.may("absent")):
            return None
        keys = job.made.df.where(col(OPER) == BEFORE).select(*map(col, job.made.key))
        return staging.rows_of_keys(
            self._spark, job.session, self._place, f"{job.stage}_keys", keys, batch.relation
        )

    def _commit(self, job: _Job, staged: Staged, note: tuple[str, int] | None) -> Outcome:
        """The one transaction. It looks at the progress again: behind some connection poolers the lock on
        the table does not hold from one transaction to the next."""
        mine, batch = job.session, job.batch
        with mine.transaction():
            now = self._progress.read(mine, batch.table, lock=True)
            if now != job.reached:
                raise ApplyError(
                    "another process applied to this table meanwhile; nothing of this batch was written",
                    where=self._where(batch.table),
                    hint="run a task once only; a pooler before the target must keep session locks",
                )
            mine.execute(f"SET LOCAL work_mem = '{_WORK_MEM}'".encode())
            done = self._write(job, staged)
            if note is not None:
                self._notes.leave(mine, batch.table, batch.upto, *note)
            return replace(done, version=self._progress.advance(mine, batch.table, batch.upto))

    def _write(self, job: _Job, staged: Staged) -> Outcome:
        batch, plan = job.batch, self._plan(job)
        to = Writer(job.session, self.path(batch.table), batch.relation, staged)
        # As at the source, TRUNCATE locks readers out, and an older snapshot then sees an empty table;
        # a DELETE of every row would honour it, and leave all of them behind for vacuum.
        gone = to.truncate() if job.made.replaces else 0
        if plan == "append":
            return Outcome(inserted=to.append(), plan=plan)
        if not job.made.key:
            taken, missing = to.take_copies()
            return Outcome(to.add_copies(), 0, gone + taken, plan=plan, missing=missing)
        partial = KEPT in staged.extra
        # Deletes first: what others made unique here may pass from an old row to a new one.
        if not job.made.replaces and batch.may("D", "key_changes"):
            gone += to.delete()
        partly = to.update_partly() if partial else 0
        inserted, updated = to.upsert(partial=partial)
        return Outcome(inserted, partly + updated, gone, plan=plan)

    @staticmethod
    def _plan(job: _Job) -> str:
        if job.made.replaces:
            return "replace_all"
        if job.made.key:
            return "upsert"
        return "bag" if job.batch.may("U", "D") else "append"

    def _drop(self, job: _Job) -> None:
        for name in (job.stage, f"{job.stage}_keys", f"{job.stage}_bad"):
            try:
                staging.drop(job.session, self._place.own(name))
            except psycopg.OperationalError:
                return  # the connection is gone: `maintain` drops it

    def _known(self, mine: Session, table: str) -> Reached:
        found = self._progress.read(mine, table)
        if found is None:
            raise ApplyError(
                "the target is not there",
                where=self._where(table),
                hint="somebody dropped it, or its row in tailrace_progress: `tailrace resync` it",
            )
        return found

    def _where(self, table: str) -> str:
        return f"{self._place.label}, {table}"
