"""The progress of each table of each task, in the database of the tables (`tailrace_progress`).

A row changes in the transaction that changes its table, so that both always agree. It also has the table's
layout, with which columns are matched when the layout changes.

The key log is not in the database. A batch's key log rows are written to files first, and the batch's
transaction stores a note with the names of the files (`tailrace_notes`). So the rows belong to the key log
only if the batch was applied. After a crash the files are committed from the notes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from ...errors import ApplyError
from ...model.change import Relation
from ...sources.postgresql.connect import Session, literal, quoted
from .. import multi_source as shared
from .connection import Database, exists, holds, number_of

TABLE = "tailrace_progress"
NOTES = "tailrace_notes"
_COLUMNS = """
    task text NOT NULL,
    "table" text NOT NULL,
    target text NOT NULL,
    upto bigint NOT NULL,
    repaired bigint NOT NULL DEFAULT -1,
    version bigint NOT NULL,
    layout text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    part text NOT NULL DEFAULT '',
    adopted boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task, "table"),
    UNIQUE (target, part)
"""
"""`upto`: the last change number that was applied. `repaired`: the number of the last repair. `part`: in a
shared target, the constants that identify this source's rows, as JSON. `adopted`: the target was created
manually; true in one row of a target is valid for all of its rows."""
_NOTE_COLUMNS = """
    task text NOT NULL,
    "table" text NOT NULL,
    upto bigint NOT NULL,
    note text NOT NULL,
    PRIMARY KEY (task, "table", upto)
"""
_TRANSACTION = "pg_current_xact_id()::text::bigint"


@dataclass(frozen=True)
class ProgressRow:
    """A table's row of progress.

    Attributes:
        number: the last change number that was applied; -1 if nothing was applied.
        version: the number of the transaction that wrote the row.
        layout: the table's layout.
    """

    number: int
    version: int
    layout: Relation


@dataclass(frozen=True)
class OtherSource:
    """Another source of a shared target: its name, the constants that identify its rows, its layout."""

    name: str
    partition: Mapping[str, str]
    layout: Relation


class ProgressTable:
    """The progress of one task's tables in one database.

    Args:
        database: the database.
        task: the task's name.
        locations: returns the location of a table's rows.
        repairs: use the numbers of repairs; the progress of the source's changes stays.
    """

    def __init__(
        self,
        database: Database,
        task: str,
        locations: Callable[[str], shared.TargetLocation] = shared.TargetLocation,
        *,
        repairs: bool = False,
    ) -> None:
        self._database, self._task, self._locations = database, task, locations
        self._table, self._notes = database.control_table(TABLE), database.control_table(NOTES)
        self.repairs = repairs

    def location(self, table: str) -> shared.TargetLocation:
        """Returns the location of the table's rows."""
        return self._locations(table)

    def target(self, table: str) -> str:
        """Returns the name of the table's target as quoted SQL."""
        return self._database.target(self._locations(table).target)

    def split(self, table: str) -> tuple[str, str]:
        """Returns schema and name of the table's target."""
        return self._database.split(self._locations(table).target)

    def partition(self, table: str) -> Mapping[str, str]:
        """Returns the constants that identify the table's rows in a shared target; empty if it is not
        shared."""
        return self._locations(table).partition

    def partition_condition(self, table: str) -> str:
        """Returns the SQL condition that identifies the table's rows."""
        return " AND ".join(f"{quoted(n)} = {literal(v)}" for n, v in self.partition(table).items()) or "true"

    def read(self, session: Session, table: str, *, lock: bool = False) -> ProgressRow | None:
        """Returns the table's row; None if it has no row, or if its target does not exist or has another
        name."""
        target, number = literal(self.target(table)), "repaired" if self.repairs else "upto"
        query = (
            f"SELECT {number}, version, layout FROM {self._table} WHERE {self._of(table)}"
            f" AND target = {target} AND to_regclass({target}) IS NOT NULL"
        )
        rows = _rows(session, query + (" FOR UPDATE" if lock else ""))
        return ProgressRow(rows[0][0], rows[0][1], Relation.from_json(rows[0][2])) if rows else None

    def advance(self, session: Session, table: str, number: int) -> int:
        """Sets the last applied change number; returns the transaction's number."""
        changed = f"upto = {number}, version = {_TRANSACTION}, applied_at = now()"
        changed = f"repaired = {number}" if self.repairs else changed
        return self._number(session, f"UPDATE {self._table} SET {changed} WHERE {self._of(table)}")

    def others(self, session: Session, table: str) -> list[OtherSource]:
        """Returns the other sources of the table's target, of any task."""
        target = literal(self.target(table))
        rows = _rows(
            session,
            f"SELECT task, \"table\", part, layout FROM {self._table} WHERE target = {target} AND part <> ''"
            f" AND NOT ({self._of(table)}) AND to_regclass({target}) IS NOT NULL ORDER BY 1, 2",
        )
        return [
            OtherSource(f"{r[1]} of the task {r[0]}", json.loads(r[2]), Relation.from_json(r[3]))
            for r in rows
        ]

    def fed(self, session: Session, table: str) -> bool:
        """Whether another table, of any task, has the same target."""
        target = literal(self.target(table))
        return bool(
            _rows(session, f"SELECT FROM {self._table} WHERE target = {target} AND NOT ({self._of(table)})")
        )

    def refuse_two(self, session: Session, table: str) -> None:
        """Raises ApplyError if the table has another existing target under this task's name: another task may
        have the same name, and its progress would be lost."""
        wanted = self.target(table)
        condition = f"{self._of(table)} AND target <> {literal(wanted)}"
        query = f"SELECT target FROM {self._table} WHERE {condition} AND to_regclass(target) IS NOT NULL"
        for (other,) in _rows(session, query):
            raise ApplyError(
                f"the target of {table} under the name {self._task} is {other}, not {wanted}: two targets "
                "cannot share a progress row",
                where=f"{self._database.label}, {table}",
                hint="give each task of this database its own name (`name`, `--name`). If the table has "
                f"moved, release {other}, which stays as it is: DELETE FROM {self._table} WHERE "
                f"{self._of(table)}",
            )

    def begin(self, session: Session, table: str, layout: Relation, number: int = -1) -> int:
        """Writes the row of a new target, or after a new baseline; `number`: the last applied change number.
        Returns the transaction's number. `adopted` is copied from other rows of the target.

        Raises:
            ApplyError: the table has another target under the task's name.
        """
        self.refuse_two(session, table)
        partition, key = self.partition(table), {"task": literal(self._task), "table": literal(table)}
        rest = {
            "target": literal(self.target(table)),
            "upto": str(number),
            "version": _TRANSACTION,
            "layout": literal(layout.to_json()),
            "part": literal(json.dumps(dict(partition), sort_keys=True) if partition else ""),
            "adopted": f"({self._adopted(table)})",
            "applied_at": "now()",
        }
        values = {**key, **rest}
        names, changed = ", ".join(map(quoted, values)), ", ".join(f"{n} = EXCLUDED.{n}" for n in rest)
        return self._number(
            session,
            f"INSERT INTO {self._table} ({names}) VALUES ({', '.join(values.values())})"
            f" ON CONFLICT ({', '.join(map(quoted, key))}) DO UPDATE SET {changed}",
        )

    def lay_out(self, session: Session, table: str, layout: Relation) -> None:
        """Records a table's new layout; the progress stays."""
        changed = f"layout = {literal(layout.to_json())}"
        session.execute(f"UPDATE {self._table} SET {changed} WHERE {self._of(table)}".encode())

    def prepare(self, session: Session) -> None:
        """Creates the tables of progress and notes if they do not exist; must be called in a transaction."""
        if exists(session, self._table) and exists(session, self._notes):
            return
        lock_ddl(session)
        make_schema(session, self._database.control)
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({_COLUMNS})".encode())
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._notes} ({_NOTE_COLUMNS})".encode())
        comment = (
            "Progress of tailrace's tables in this database; written in the transactions of these tables"
        )
        session.execute(f"COMMENT ON TABLE {self._table} IS {literal(comment)}".encode())

    def forget(self, session: Session, table: str) -> None:
        """Removes the table's row, because the target does not exist any more or has none of its rows."""
        if self.adopted(session, table):
            self.adopt(session, table)  # no other row may have recorded it
        session.execute(f"DELETE FROM {self._table} WHERE {self._of(table)}".encode())

    def forget_all(self, session: Session, table: str) -> None:
        """Removes the rows of all sources of a target that does not exist any more."""
        session.execute(f"DELETE FROM {self._table} WHERE target = {literal(self.target(table))}".encode())

    def adopted(self, session: Session, table: str) -> bool:
        """Whether the table's target was created manually, for this source or another one."""
        return exists(session, self._table) and holds(session, self._adopted(table))

    def adopt(self, session: Session, table: str) -> None:
        """Records that the table's target was created manually."""
        target = literal(self.target(table))
        session.execute(f"UPDATE {self._table} SET adopted = true WHERE target = {target}".encode())

    def add_note(self, session: Session, table: str, number: int, note: str, done: int) -> None:
        """Stores a table's note, and removes its notes up to the change number `done`. It replaces a note
        with the same number, which belongs to an earlier task of the same name."""
        session.execute(f"DELETE FROM {self._notes} WHERE {self._of(table)} AND upto <= {done}".encode())
        values = f"{literal(self._task)}, {literal(table)}, {number}, {literal(note)}"
        newer = 'ON CONFLICT (task, "table", upto) DO UPDATE SET note = EXCLUDED.note'
        session.execute(f"INSERT INTO {self._notes} VALUES ({values}) {newer}".encode())

    def notes(self, session: Session) -> list[tuple[str, int, str]]:
        """Returns all notes as (table, change number, note), those of a table in order."""
        query = (
            f'SELECT "table", upto, note FROM {self._notes} WHERE task = {literal(self._task)} ORDER BY 1, 2'
        )
        return [(str(r[0]), int(r[1]), str(r[2])) for r in _rows(session, query)]

    def _adopted(self, table: str) -> str:
        where = f"target = {literal(self.target(table))}"
        return f"SELECT coalesce(bool_or(adopted), false) FROM {self._table} WHERE {where}"

    def _of(self, table: str) -> str:
        return f'task = {literal(self._task)} AND "table" = {literal(table)}'

    def _number(self, session: Session, statement: str) -> int:
        row = session.execute(f"{statement} RETURNING {_TRANSACTION}".encode()).fetchone()
        if row is None:
            raise psycopg.errors.NoDataFound(f"the table's row in {TABLE} was deleted")
        return int(row[0])


def _rows(session: Session, query: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a query about tailrace's own tables; empty if these do not exist yet."""
    try:
        return session.execute(query.encode()).fetchall()
    except psycopg.errors.UndefinedTable:
        return []


def lock_ddl(session: Session) -> None:
    """Prevents that another tailrace transaction creates schemas or tables until this one ends, because IF
    NOT EXISTS can fail in a race."""
    session.execute("SELECT pg_advisory_xact_lock(%s)", (number_of("set up"),))


def make_schema(session: Session, name: str) -> None:
    """Creates a schema if it does not exist. It checks first, because IF NOT EXISTS always needs the
    privilege."""
    if not holds(session, "SELECT to_regnamespace(%s) IS NOT NULL", (quoted(name),)):
        session.execute(f"CREATE SCHEMA {quoted(name)}".encode())
