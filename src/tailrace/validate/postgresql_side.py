"""The PostgreSQL side of a validation: the target's rows as of one moment, and what had been applied then.

A database keeps no past versions. So the target is held in an exported snapshot *before* the source is: what
it lacks of the source's state are changes that are stored, and those are laid over it, as over a version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..apply.mapping.table_map import place_of, task_map
from ..apply.target_owner import source_of
from ..apply.targets.postgresql import task_names
from ..apply.targets.postgresql.place import Place, session
from ..apply.targets.postgresql.progress import TABLE, Progress
from ..capture.part_readers import Loaded, PartLoad, PartReaders
from ..config.task import Task
from ..errors import ConfigError, TailraceError
from ..model.change import Relation
from ..sources.base import BaselinePart, Snapshot
from ..sources.postgresql.baseline import PgPartReader, parts
from ..state.orders import of_task, target_names
from .versions import missing

_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"


@dataclass(frozen=True)
class HeldTable:
    """One table of a held target: its layout, the change number it has reached, the parts to read; `only`:
    SQL condition for its own rows."""

    layout: Relation
    upto: int
    parts: list[BaselinePart]
    only: str


@dataclass(frozen=True)
class HeldTarget:
    """A target as of one moment; `wrong`: why tables cannot be compared."""

    place: Place
    snapshot: Snapshot
    tables: dict[str, HeldTable]
    wrong: dict[str, TailraceError] = field(default_factory=dict)

    def table(self, name: str) -> HeldTable:
        """One of its tables.

        Raises:
            ConfigError: the target does not have it, or lacks some of its columns.
        """
        if name in self.wrong:
            raise self.wrong[name]
        if name not in self.tables:
            raise missing(name, self.place.label)
        return self.tables[name]

    def load(self, table: str, folder: str, readers: PartReaders) -> list[Future[Loaded]]:
        """Has a table's rows read into parquet files of a folder.

        The results raise TableMovedError if the target was truncated or rewritten since it is held; hold it
        again.
        """
        held = self.table(table)
        reader = PgPartReader(self.place.url, held.only, numbered=False)
        load = PartLoad(reader, self.snapshot, held.layout, folder, keep_bad=False)
        return [readers.load(load, part) for part in held.parts]


@contextmanager
def hold(task: Task, tables: Sequence[str]) -> Iterator[HeldTarget | None]:
    """The task's target as it is now, until the block ends, with those of the tables that it has; None for a
    Delta target."""
    if not task.target.database:
        yield None
        return
    place, names = Place.of(task.target.database), target_names(of_task(task.orders_path, {}))
    progress = Progress(place, task.name, lambda table: place_of(task_map(task, table), names))
    with session(place, place.label) as on:
        if (refusal := task_names.refused(on, place, task.name, source_of(task))) is not None:
            raise refusal
        on.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        name = on.execute("SELECT pg_export_snapshot()").fetchone()
        held: dict[str, HeldTable] = {}
        wrong: dict[str, TailraceError] = {}
        # A statement about a table that is not there would end the transaction.
        noted = on.execute("SELECT to_regclass(%s) IS NOT NULL", (place.own(TABLE),)).fetchone()
        for table in tables if noted == (True,) else ():
            found = progress.read(on, table)
            oid = on.execute("SELECT to_regclass(%s)::oid::bigint", (progress.target(table),)).fetchone()
            if found is None or oid is None or oid[0] is None:
                continue
            names_there = {r[0] for r in on.execute(_COLUMNS, (oid[0],)).fetchall()}
            if gone := [c.name for c in found.layout.columns if c.name not in names_there]:
                wrong[table] = _lacks(table, gone, place)
                continue
            there = Relation(oid[0], *progress.split(table), found.layout.identity, found.layout.columns)
            rows = parts(on, there, task.baseline.rows_per_part)
            held[table] = HeldTable(there, found.upto, rows, progress.own_rows(table))
        yield HeldTarget(place, Snapshot(str(name[0] if name else ""), b""), held, wrong)


def _lacks(table: str, columns: Sequence[str], place: Place) -> ConfigError:
    return ConfigError(
        f"the target of {table} lacks columns: {', '.join(columns)}",
        where=place.label,
        hint="somebody dropped or renamed them: `tailrace resync` the table",
    )
