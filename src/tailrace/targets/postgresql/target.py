"""PostgreSQL targets. The rows of a batch are staged by COPY; one transaction merges them by key, together
with the batch's progress.

Data goes from the tasks that read it to the server in bulk and columnar; this process sends statements only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import ApplyError, TailraceError
from ...lake.thinning import Past
from ...model.change import Relation
from ...model.positions import ChangeNumber
from ...sources.postgresql.connect import Session
from .. import multi_source as shared
from ..base import Constraints
from ..capabilities import Capabilities
from ..change_batch import ChangeBatch
from ..merge_result import MergeResult
from ..parts import Parts
from ..rule_columns import RULE
from . import layout
from .connection import Database, locked_session, open_session
from .load import PostgresLanding, load
from .merge import MergeTask, merge
from .multi_source import columns
from .progress import ProgressRow, ProgressTable
from .values import rows_of_query, select_cells

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class PostgresTarget:
    """Applies to tables of a PostgreSQL database (14 or newer); see `Target` for its promises.

    Args:
        spark: the session that the batches' DataFrames belong to; its tasks connect to the database, too.
        url: `postgresql://user@host:port/database`; `?schema=name` puts all tables into one schema, else they
            go into schemas named as the source's.
        task: the name that progress is kept under.
        memory_bytes: memory that one merge may use; larger batches are merged in chunks. None: no limit.
        repairs: what is applied is no change of the source: its progress stays, and repairs have their own.
        places: where a source table's rows are, which may change; None: each in a target of its own name.
        at_once: the number of tables that are merged at the same time.
    """

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        *,
        task: str,
        memory_bytes: int | None = 1 << 30,
        repairs: bool = False,
        locations: Callable[[str], shared.TargetLocation] | None = None,
        at_once: int | None = None,
    ) -> None:
        self._spark, self._task, self._memory = spark, task, memory_bytes
        self._database = Database.of(url)
        self._progress = ProgressTable(
            self._database, task, locations or shared.TargetLocation, repairs=repairs
        )
        self._at_once = at_once

    @property
    def capabilities(self) -> Capabilities:
        """Jobs of many tables; notes."""
        return Capabilities(memory_bytes=self._memory, ordered=True, notes=self)

    def path(self, table: str) -> str:
        """The target's name in the database, as quoted SQL."""
        return self._progress.target(table)

    def exists(self, table: str) -> bool:
        """Whether the database has that table, and this task made it, or other sources feed it too."""
        with open_session(self._database, self._where(table)) as session:
            return self._progress.read(session, table) is not None or self._joins(session, table)

    def progress(self, table: str) -> ChangeNumber | None:
        """The last change number that was applied; None: nothing was."""
        with open_session(self._database, self._where(table)) as session:
            found = self._progress.read(session, table)
        return ChangeNumber(found.number) if found and found.number >= 0 else None

    def columns(self, table: str) -> dict[str, str]:
        """Names and Spark SQL types of the columns of the target."""
        with open_session(self._database, self._where(table)) as session:
            known = None if self._joins(session, table) else self._known(session, table).layout
            return columns(known, self._progress.others(session, table))

    def rule_columns(self, table: str) -> set[str]:
        """Those of its columns that rules have added."""
        with open_session(self._database, self._where(table)) as session:
            found = self._progress.read(session, table)
        return {c.name for c in found.layout.columns if c.kind == RULE} if found else set()

    def alter(self, table: str, before: Relation, after: Relation, *, dry_run: bool = False) -> None:
        """Changes the layout; makes the table if it does not exist.

        Columns are matched with those that the table was given, which its row of progress has.
        """
        if dry_run:
            with open_session(self._database, self._where(table)) as session:
                self._plan(session, table, after)
            return
        with locked_session(self._database, self._task, table) as session:
            found = self._progress.read(session, table)
            if found is None:
                layout.create(session, self._database, self._progress, after)
            else:
                layout.alter(session, self._progress, found.layout, after)

    def _plan(self, session: Session, table: str, after: Relation) -> None:
        found = self._progress.read(session, table)
        if found is None:
            layout.definition(after)
            layout.adopted_layout(session, self._database, self._progress, after)
        elif not layout.same(found.layout, after):
            layout.alter_steps(session, self._progress, found.layout, after)

    def load(
        self, relation: Relation, rows: DataFrame | Parts, after: int, rule_columns: Mapping[str, str] = {}
    ) -> int:
        """Makes rows all that the target has of a table, in one transaction."""
        at = self._progress.location(relation.table)
        return load(
            PostgresLanding(self._database, self._task, at=at, rule_columns=rule_columns),
            relation,
            rows,
            after,
        )

    def maintain(self, table: str, small_files: int, past: Past) -> None:
        """Nothing: files are autovacuum's work."""

    def rows_with_keys(self, relation: Relation, keys: DataFrame) -> DataFrame:
        """All rows of the table, in the relation's columns and types."""
        have = self.columns(relation.table)
        query = f"SELECT {select_cells(relation.columns, have)} FROM {self.path(relation.table)} t"
        return rows_of_query(self._spark, self._database, query, relation)

    def constraints(self, table: str) -> Constraints:
        """None: the transaction of a batch finds what the database refuses."""
        return Constraints()

    def merge(self, batches: Sequence[ChangeBatch]) -> list[MergeResult | TailraceError | None]:
        """Merges batches, each in one transaction, tables side by side."""
        task = MergeTask(self._database, self._task, self._progress.repairs, self._memory)
        return merge(self._spark, batches, task, self._progress.location, self._at_once)

    def loads_parts(self, table: str) -> bool:
        """True: COPY takes them."""
        return True

    def version_at(self, table: str, number: int) -> int | None:
        """The transaction that has set the progress of the table, if it is that number."""
        with open_session(self._database, self._where(table)) as session:
            found = self._progress.read(session, table)
        return found.version if found is not None and found.number == number else None

    def notes(self) -> list[tuple[str, int, str]]:
        """All notes: table, change number, note; those of a table in order."""
        with open_session(self._database, self._database.label) as session:
            return self._progress.notes(session)

    def _joins(self, session: Session, table: str) -> bool:
        """Whether it is yet to join other sources in their target."""
        found = self._progress.read(session, table) is None and self._progress.partition(table)
        return bool(found and self._progress.others(session, table))

    def _known(self, session: Session, table: str) -> ProgressRow:
        found = self._progress.read(session, table)
        if found is None:
            raise ApplyError(
                "the target does not exist",
                where=self._where(table),
                hint="it was dropped, or its row in tailrace_progress was: `tailrace resync` it",
            )
        return found

    def _where(self, table: str) -> str:
        return f"{self._database.label}, {table}"
