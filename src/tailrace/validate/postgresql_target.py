"""The PostgreSQL side of a validation: the target's rows in one snapshot, and its progress at that time.

A database keeps no past versions. So the target's snapshot is exported before the source's. Stored changes
that it does not have yet are applied on top, as with an older version of a Delta table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..apply.mapping.table_map import place_of, task_map
from ..apply.target_owner import source_of
from ..capture.part_readers import Loaded, PartLoad, PartReaders
from ..config.task import Task
from ..errors import ConfigError, TailraceError
from ..model.change import Relation
from ..sources.base import BaselinePart, Snapshot
from ..sources.postgresql.baseline import PgPartReader, parts
from ..state import lifecycle
from ..targets.postgresql import task_names
from ..targets.postgresql.connection import Database, open_session
from ..targets.postgresql.progress import TABLE, ProgressTable
from .target_versions import missing_target

_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"


@dataclass(frozen=True)
class TableSnapshot:
    """A table in the target's snapshot: layout, progress, and parts to read; `only` is an SQL condition for
    its own rows."""

    layout: Relation
    upto: int
    parts: list[BaselinePart]
    only: str


@dataclass(frozen=True)
class TargetSnapshot:
    """A snapshot of a target; `wrong` has the errors of tables that cannot be compared."""

    database: Database
    snapshot: Snapshot
    tables: dict[str, TableSnapshot]
    wrong: dict[str, TailraceError] = field(default_factory=dict)

    def table(self, name: str) -> TableSnapshot:
        """Returns one of its tables.

        Raises:
            ConfigError: the target does not have the table, or not all of its columns.
        """
        if name in self.wrong:
            raise self.wrong[name]
        if name not in self.tables:
            raise missing_target(name, self.database.label)
        return self.tables[name]

    def load(self, table: str, folder: str, readers: PartReaders) -> list[Future[Loaded]]:
        """Starts reading a table's rows into Parquet files of a folder.

        The results raise TableMovedError if the target was truncated or rewritten since; then take a new
        snapshot.
        """
        held = self.table(table)
        reader = PgPartReader(self.database.url, held.only, numbered=False)
        load = PartLoad(reader, self.snapshot, held.layout, folder, keep_bad=False)
        return [readers.load(load, part) for part in held.parts]


@contextmanager
def hold_target(task: Task, tables: Sequence[str]) -> Iterator[TargetSnapshot | None]:
    """Exports a snapshot of the task's target that is kept until the block ends; None for a Delta target."""
    if not task.target.database:
        yield None
        return
    database, names = Database.of(task.target.database), lifecycle.read(task).target_names
    progress = ProgressTable(database, task.name, lambda table: place_of(task_map(task, table), names))
    with open_session(database, database.label) as on:
        if (refusal := task_names.refused(on, database, task.name, source_of(task))) is not None:
            raise refusal
        on.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        name = on.execute("SELECT pg_export_snapshot()").fetchone()
        held: dict[str, TableSnapshot] = {}
        wrong: dict[str, TailraceError] = {}
        # A statement about a missing table would abort the transaction.
        noted = on.execute("SELECT to_regclass(%s) IS NOT NULL", (database.control_table(TABLE),)).fetchone()
        for table in tables if noted == (True,) else ():
            found = progress.read(on, table)
            oid = on.execute("SELECT to_regclass(%s)::oid::bigint", (progress.target(table),)).fetchone()
            if found is None or oid is None or oid[0] is None:
                continue
            names_there = {r[0] for r in on.execute(_COLUMNS, (oid[0],)).fetchall()}
            if gone := [c.name for c in found.layout.columns if c.name not in names_there]:
                wrong[table] = _missing_columns(table, gone, database)
                continue
            there = Relation(oid[0], *progress.split(table), found.layout.identity, found.layout.columns)
            rows = parts(on, there, task.baseline.rows_per_part)
            held[table] = TableSnapshot(there, found.number, rows, progress.partition_condition(table))
        yield TargetSnapshot(database, Snapshot(str(name[0] if name else ""), b""), held, wrong)


def _missing_columns(table: str, columns: Sequence[str], database: Database) -> ConfigError:
    return ConfigError(
        f"the target of {table} has no columns {', '.join(columns)}",
        where=database.label,
        hint="they were dropped or renamed in the target: run `tailrace resync` for the table",
    )
