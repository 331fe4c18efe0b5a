"""Renames targets: the folder, or the table in a database, atomically."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..errors import ApplyError, NameTakenError
from ..lake import guards
from ..lake.json_files import sync_folder

if TYPE_CHECKING:
    from ..config.task import Task
    from .postgresql.connection import Database


class Mover(Protocol):
    """Renames targets."""

    def there(self, name: str) -> bool:
        """Whether a target or anything else has that name."""

    def same(self, one: str, other: str) -> bool:
        """Whether two names denote the same place."""

    def move(self, table: str, now: str, to: str) -> None:
        """Renames the target of a table to `to`; does nothing if it has that name already, or if there is no
        target.

        Raises:
            NameTakenError: there is something under both names, or others feed the target, too.
            ApplyError: it cannot be done now.
        """


@dataclass(frozen=True)
class FolderMover:
    """Delta targets: `path` gives the folder for a name."""

    path: Callable[[str], str]

    def there(self, name: str) -> bool:
        """Whether there is such a folder."""
        return Path(self.path(name)).exists()

    def same(self, one: str, other: str) -> bool:
        """Whether both names give the same folder."""
        return one == other

    def move(self, table: str, now: str, to: str) -> None:
        """Renames the folder."""
        before, after = Path(self.path(now)), Path(self.path(to))
        if before == after or not before.exists():
            return
        if after.exists():
            raise NameTakenError(
                f"the target of {table} is to be renamed, but both {before} and {after} exist",
                where=table,
                hint="one of the two does not belong to this task: remove it, then `tailrace resume`",
            )
        guards.check()
        try:
            before.rename(after)
        except OSError as error:
            raise ApplyError(
                f"the target of {table} cannot be renamed: {error}",
                where=table,
                hint="it will be tried again",
            ) from error
        sync_folder(after.parent)


@dataclass(frozen=True)
class DatabaseMover:
    """A PostgreSQL target: the table and its row of progress, in one transaction."""

    database: Database
    task: str

    def there(self, name: str) -> bool:
        """Whether the database has a relation of that name."""
        from .postgresql.connection import exists, open_session

        with open_session(self.database, self.database.label) as session:
            return exists(session, self.database.target(name))

    def same(self, one: str, other: str) -> bool:
        """All tables may be in one schema."""
        return self.database.target(one) == self.database.target(other)

    def move(self, table: str, now: str, to: str) -> None:
        """Alters the table."""
        from .postgresql.connection import locked_session
        from .postgresql.layout import rename

        with locked_session(self.database, self.task, table) as session, session.transaction():
            rename(session, self.database, self.task, table, now, to)


def mover(task: Task) -> Mover:
    """The mover for a task's targets."""
    if not task.target.database:
        return FolderMover(task.target_path)
    from .postgresql.connection import Database

    return DatabaseMover(Database.of(task.target.database), task.name)
