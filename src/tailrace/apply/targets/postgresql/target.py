"""PostgreSQL targets: the rows of a batch are staged by COPY, then one transaction brings them in by key,
together with the batch's row of progress.

Data goes from Spark's tasks to the server in bulk and columnar; this process sends statements only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ....engine.rules import Rules
from ....errors import ApplyError, ConcurrentCommitError, UnsupportedError
from ....lake.thinning import Past
from ....model.change import Relation
from ....sources.postgresql.connect import Session, quoted
from ...data_errors import Demands
from ...gone import gone
from ...mapping import shared_rows as shared
from ...plan import TableBatch
from ...rule_columns import RULE
from ...tasks import Parts
from ..capabilities import Capabilities
from ..outcome import ApplyOutcome
from . import layout
from . import lookups as asked
from . import stage as staging
from .batch import PostgresBatch
from .foreign_writes import Looked
from .load import Load
from .merges import Merges, writing
from .notes import Notes
from .place import Place, locked, locked_or_none, session
from .progress import Progress, Reached
from .refused import refuses
from .repairs import Repairs
from .shared import columns
from .values import VALUES, cells

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class PostgresTarget:
    """Applies to tables of a PostgreSQL database (14 or newer); see `Target` for what it keeps.

    Args:
        spark: the session that the batches' DataFrames belong to; its tasks connect to the database, too.
        url: `postgresql://user@host:port/database`; `?schema=name` puts all tables into one schema, else they
            go into schemas named as the source's.
        task: under which name the progress stands.
        memory_bytes: what one audited merge may hold in memory; batches that need more take more jobs.
            None: no limit.
        repairs: what is applied is no change of the source: its progress stays, and repairs have their own.
        places: where a source table's rows are, which may change; None: each in a target of its own name.
    """

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        *,
        task: str,
        memory_bytes: int | None = 1 << 30,
        repairs: bool = False,
        places: Callable[[str], shared.TargetPlace] | None = None,
        at_once: int | None = None,
    ) -> None:
        self._spark, self._task = spark, task
        self._place = Place.of(url)
        kind = Repairs if repairs else Progress
        self._progress = kind(self._place, task, places or shared.TargetPlace)
        self._notes = Notes(self._place, task)
        self._memory = memory_bytes
        self._merges = Merges(
            spark, self._place, self._task, self._progress, self._notes, memory_bytes, at_once
        )

    @property
    def capabilities(self) -> Capabilities:
        """Audited merges, notes, changes that the database refuses, batches that need no session."""
        able, memory = self._merges, self._memory
        return Capabilities(memory_bytes=memory, audits=able, notes=self, tests=self, shares=able)

    def path(self, table: str) -> str:
        """The target's name in the database, as quoted SQL."""
        return self._progress.target(table)

    def exists(self, table: str) -> bool:
        """Whether the database has that table, and this task made it, or others feed it with this one."""
        with session(self._place, self._where(table)) as mine:
            return self._progress.read(mine, table) is not None or self._comes(mine, table)

    def progress(self, table: str) -> int:
        """The change number reached; -1 when there is none."""
        with session(self._place, self._where(table)) as mine:
            found = self._progress.read(mine, table)
        return found.upto if found else -1

    def look(self, relation: Relation, keys: DataFrame) -> int | None:
        """Keeps what the rows under keys are for the batch's transaction; None: there is no key or table."""
        if not relation.key:
            return None
        name = f"{staging.prefix(self._task, relation.table)}look"
        with locked(self._place, self._task, relation.table) as mine:
            if self._progress.read(mine, relation.table) is None:
                return None
            try:
                self._look(relation).take(
                    mine, staging.keys(mine, self._place, name, keys, relation, self.path(relation.table))
                )
            finally:
                staging.drop(mine, self._place.own(name))
        return 0

    def _look(self, relation: Relation) -> Looked:
        name = f"{staging.prefix(self._task, relation.table)}looked"
        return Looked(self._place.own(name), self.path(relation.table), relation)

    def columns(self, table: str) -> dict[str, str]:
        """Names and Spark SQL types of the columns there are."""
        with session(self._place, self._where(table)) as mine:
            known = None if self._comes(mine, table) else self._known(mine, table).layout
            return columns(known, self._progress.others(mine, table))

    def rule_columns(self, table: str) -> set[str]:
        """Those of its columns that rules have added."""
        with session(self._place, self._where(table)) as mine:
            found = self._progress.read(mine, table)
        return {c.name for c in found.layout.columns if c.kind == RULE} if found else set()

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        """Changes the layout; makes the table when it does not exist.

        Columns are matched with those that the table was given, which its row of progress knows.
        """
        if dry_run:
            with session(self._place, self._where(table)) as mine:
                self._plan(mine, table, after)
            return
        with locked(self._place, self._task, table) as mine:
            found = self._progress.read(mine, table)
            if found is None:
                layout.create(mine, self._place, self._progress, after)
            else:
                layout.alter(mine, self._progress, found.layout, after)

    def _plan(self, mine: Session, table: str, after: Relation) -> None:
        found = self._progress.read(mine, table)
        if found is None:
            layout.definition(after)
            layout.takes(mine, self._place, self._progress, after)
        elif not layout.same(found.layout, after):
            layout.planned(mine, self._progress, found.layout, after)

    def load(
        self, relation: Relation, rows: DataFrame | Parts, after: int, rule_columns: Mapping[str, str] = {}
    ) -> int:
        """Makes rows all that the target has of a table, in one transaction."""
        table = relation.table
        stage = f"{staging.prefix(self._task, table)}load"
        with writing(self._place, self._task, table) as mine:
            try:
                return Load(mine, self._place, self._progress, stage, rule_columns).run(relation, rows, after)
            finally:
                staging.drop(mine, self._place.own(stage))

    def maintain(self, table: str, small_files: int, past: Past) -> None:
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
        return self._there(wanted, keys, living)

    def rows_there(self, relation: Relation, keys: DataFrame, *, reached: int | None = None) -> DataFrame:
        """The rows under `keys`; as `keys_there`."""
        if reached is not None:
            raise UnsupportedError("a database has no versions", where=self._where(relation.table))
        if not relation.key:
            have = self.columns(relation.table)
            query = f"SELECT {cells(relation.columns, have)} FROM {self.path(relation.table)} t"
            return staging.rows_of_query(self._spark, self._place, query, relation)
        return self._there(relation, keys, None)

    def _there(self, wanted: Relation, keys: DataFrame, living: str | None) -> DataFrame:
        name = f"{staging.prefix(self._task, wanted.table)}there"
        with locked(self._place, self._task, wanted.table) as mine:
            known = self._progress.read(mine, wanted.table)
            have = columns(known.layout if known else None, self._progress.others(mine, wanted.table))
            only = f"t.{quoted(living)} IS NULL" if living is not None and living in have else "true"
            target = self.path(wanted.table)
            return asked.rows_under(self._spark, mine, self._place, name, keys, wanted, target, have, only)

    def demands(self, table: str) -> Demands:
        """Whether the database may refuse rows: others changed the table that tailrace made."""
        with session(self._place, self._where(table)) as mine:
            known = self._progress.read(mine, table)
            tested = known is not None and refuses(mine, self._place, self.path(table), known.layout)
            return Demands(tested=tested, values=VALUES)

    def refused(self, batch: TableBatch, rules: Rules, letter: str | None = None) -> DataFrame | None:
        """The changes that the database refuses when they are applied one after the other: `SEQ`, `OPER`,
        `WHY`; None: none. They are staged and tried; nothing stays."""
        with locked(self._place, self._task, batch.table) as mine:
            self._known(mine, batch.table)
            name = f"{staging.prefix(self._task, batch.table)}try"
            return asked.refused(self._spark, mine, self._place, self._progress, name, batch, rules, letter)

    def apply(self, batch: TableBatch) -> ApplyOutcome:
        """Applies one batch in one transaction."""
        return self._applied(batch, None)

    def apply_noted(self, batch: TableBatch, note: str, done: int) -> ApplyOutcome:
        """The same, leaving a note in that transaction; see `keylog.outbox`."""
        return self._applied(batch, (note, done))

    def notes(self) -> list[tuple[str, int, str]]:
        """All notes: table, change number, note; those of a table in order."""
        with session(self._place, self._place.label) as mine:
            return self._notes.read(mine)

    def _applied(self, batch: TableBatch, note: tuple[str, int] | None) -> ApplyOutcome:
        began = time.monotonic()
        with writing(self._place, self._task, batch.table) as mine:
            if note is not None:
                self._notes.prepare(mine)
            done = self._apply(mine, batch, note)
        return replace(done, seconds=time.monotonic() - began)

    def _apply(self, mine: Session, batch: TableBatch, note: tuple[str, int] | None) -> ApplyOutcome:
        """Begins anew when somebody else changes the batch's rows; who looked at them has to look anew."""
        for _ in range(9 if batch.looked is None else 0):
            with suppress(ConcurrentCommitError):
                return self._once(mine, batch, note)
        try:
            return self._once(mine, batch, note)
        finally:
            if batch.looked is not None:
                staging.drop(mine, self._look(batch.relation).table)

    def _once(self, mine: Session, batch: TableBatch, note: tuple[str, int] | None) -> ApplyOutcome:
        reached = self._progress.to_go_on(mine, batch.table)
        if reached is None:
            if batch.based:
                raise gone(batch.table)
            layout.create(mine, self._place, self._progress, batch.relation)
            reached = self._known(mine, batch.table)
        if reached.upto >= batch.upto:
            return ApplyOutcome(version=reached.version)
        if not layout.same(reached.layout, batch.relation):
            raise ApplyError(
                "the batch has another layout than the target",
                where=self._where(batch.table),
                hint="call `alter` first; take a new baseline when somebody wrote to tailrace_progress",
            )
        if not batch.rows:
            with mine.transaction():
                if note is not None:  # the key log tells what was skipped
                    self._notes.leave(mine, batch.table, batch.upto, *note)
                return ApplyOutcome(version=self._progress.advance(mine, batch.table, batch.upto))
        job = self._job(mine, batch, reached, str(batch.upto))
        try:
            return job.commit(job.stage(), self._notes, note)
        finally:
            job.drop()

    def _job(self, mine: Session, batch: TableBatch, reached: Reached, name: str) -> PostgresBatch:
        name = f"{staging.prefix(self._task, batch.table)}{name}"
        looks = [] if batch.looked is None else [self._look(batch.relation)]
        return PostgresBatch(
            self._spark, mine, self._place, self._progress, batch, reached, name, self._memory, looks
        )

    def _comes(self, mine: Session, table: str) -> bool:
        """Whether it is yet to come to a target that others feed."""
        found = self._progress.read(mine, table) is None and self._progress.own(table)
        return bool(found and self._progress.others(mine, table))

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
