"""Renames targets atomically: a folder, or a table in a catalog or database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..errors import ApplyError, NameTakenError
from ..lake import guards
from ..lake.folders import copy_folder, is_folder, remove_folder
from ..lake.objects import Objects, sync
from .task_tables import iceberg_tables

if TYPE_CHECKING:
    from ..config.task import Task
    from ..lake.iceberg.tables import IcebergTables
    from .postgresql.connection import Database


_MOVING = "_tailrace_moving"
"""A file in a folder of an object store that is being copied from another one: the address of that one."""


class Mover(Protocol):
    """Renames targets."""

    def is_taken(self, name: str) -> bool:
        """Whether a target or anything else has the name."""

    def same(self, one: str, other: str) -> bool:
        """Whether two names denote the same target."""

    def move(self, table: str, old: str, new: str) -> None:
        """Renames the target of a table. Does nothing if it has the new name already or does not exist.

        Raises:
            NameTakenError: both names are taken, or the target is shared.
            ApplyError: the target cannot be renamed now.
        """


@dataclass(frozen=True)
class FolderMover:
    """Renames Delta targets; `path` returns the folder for a name."""

    path: Callable[[str], str]

    def is_taken(self, name: str) -> bool:
        """Whether the folder exists."""
        return is_folder(self.path(name))

    def same(self, one: str, other: str) -> bool:
        """Whether both names denote the same folder."""
        return one == other

    def move(self, table: str, old: str, new: str) -> None:
        """Renames the folder. Object stores cannot: there it is copied and removed. The next call completes
        what a killed one has begun."""
        before, after = self.path(old), self.path(new)
        if before == after or not is_folder(before):
            return
        moving = Objects(after)
        if is_folder(after) and moving.read(_MOVING) != before.encode():
            raise NameTakenError(
                f"cannot rename the target of {table}: both {before} and {after} exist",
                where=table,
                hint="one of the two does not belong to this task: remove it, then `tailrace resume`",
            )
        guards.check()
        try:
            if moving.remote:
                moving.write(_MOVING, before.encode())
                copy_folder(before, after)
                remove_folder(before)
                moving.delete(_MOVING)
                return
            Path(before).rename(after)
        except OSError as error:
            raise ApplyError(
                f"the target of {table} cannot be renamed: {error}",
                where=table,
                hint="it will be tried again",
            ) from error
        sync(Path(after).parent)


@dataclass(frozen=True)
class TableMover:
    """Renames Iceberg targets in their catalog; their files stay in their folder."""

    tables: IcebergTables

    def is_taken(self, name: str) -> bool:
        """Whether the catalog has a table of that name."""
        return self.tables.exists(self.tables.name(name))

    def same(self, one: str, other: str) -> bool:
        """Whether both names denote the same table."""
        return self.tables.name(one) == self.tables.name(other)

    def move(self, table: str, old: str, new: str) -> None:
        """Renames the table."""
        before, after = self.tables.name(old), self.tables.name(new)
        if before == after or not self.tables.exists(before):
            return
        if self.tables.exists(after):
            raise NameTakenError(
                f"cannot rename the target of {table}: both {before} and {after} exist",
                where=table,
                hint="one of the two does not belong to this task: remove it, then `tailrace resume`",
            )
        guards.check()
        self.tables.rename(before, after)


@dataclass(frozen=True)
class DatabaseMover:
    """Renames PostgreSQL targets: a table and its progress row, in one transaction."""

    database: Database
    task: str

    def is_taken(self, name: str) -> bool:
        """Whether the database has a relation of that name."""
        from .postgresql.connection import exists, open_session

        with open_session(self.database, self.database.label) as session:
            return exists(session, self.database.target(name))

    def same(self, one: str, other: str) -> bool:
        """Whether both names denote the same table, because all tables may be in one schema."""
        return self.database.target(one) == self.database.target(other)

    def move(self, table: str, old: str, new: str) -> None:
        """Renames the table."""
        from .postgresql.connection import locked_session
        from .postgresql.layout import rename

        with locked_session(self.database, self.task, table) as session, session.transaction():
            rename(session, self.database, self.task, table, old, new)


def mover(task: Task) -> Mover:
    """Returns the mover for a task's targets."""
    if task.target.type == "iceberg":
        return TableMover(iceberg_tables(task))
    if not task.target.database:
        return FolderMover(task.target_path)
    from .postgresql.connection import Database

    return DatabaseMover(Database.of(task.target.database), task.name)
