"""The progress of each table of each task, in the database that holds the tables (`tailrace_progress`).

A row changes in the transaction that changes its table, so the two cannot disagree. It also keeps the layout
that the table was given: columns are matched with that one when the layout changes.

The key log is no part of the database. A batch's rows of it are written first and named in a note
(`tailrace_notes`) that the batch's transaction leaves. So they belong to the key log only if the batch was
applied; after a crash the notes make them visible.
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
"""`upto`: the last change number applied; `repaired`: the number of the last repair. `part`: in a target that
several sources may feed, the constants that identify this source's rows, as JSON. `adopted`: the target was
made by hand (true in any row of a target holds for all of them)."""
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
    """A table's row: the change number reached (-1: none yet), the transaction that wrote it, the layout."""

    number: int
    version: int
    layout: Relation


@dataclass(frozen=True)
class OtherSource:
    """Another source that feeds a target: its name, the constants that identify its rows, its layout."""

    name: str
    partition: Mapping[str, str]
    layout: Relation


class ProgressTable:
    """The progress of one task's tables in one database.

    Args:
        place: the database.
        task: the task's name.
        places: where each table's rows are.
        repairs: the number is that of the last repair; the progress of the source's changes stays.
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
        """Where the table's rows are."""
        return self._locations(table)

    def target(self, table: str) -> str:
        """The name of the table's target, as quoted SQL."""
        return self._database.target(self._locations(table).target)

    def split(self, table: str) -> tuple[str, str]:
        """Schema and name of the table's target."""
        return self._database.split(self._locations(table).target)

    def partition(self, table: str) -> Mapping[str, str]:
        """The constants that distinguish the table's rows from those of other sources; empty: the target has
        no other source."""
        return self._locations(table).partition

    def partition_condition(self, table: str) -> str:
        """SQL of the condition that the table's rows fulfil."""
        return " AND ".join(f"{quoted(n)} = {literal(v)}" for n, v in self.partition(table).items()) or "true"

    def read(self, session: Session, table: str, *, lock: bool = False) -> ProgressRow | None:
        """The table's row; None if it has none, or if its target is gone or has another name."""
        target, number = literal(self.target(table)), "repaired" if self.repairs else "upto"
        query = (
            f"SELECT {number}, version, layout FROM {self._table} WHERE {self._of(table)}"
            f" AND target = {target} AND to_regclass({target}) IS NOT NULL"
        )
        rows = _rows(session, query + (" FOR UPDATE" if lock else ""))
        return ProgressRow(rows[0][0], rows[0][1], Relation.from_json(rows[0][2])) if rows else None

    def advance(self, session: Session, table: str, upto: int) -> int:
        """Sets the number reached; returns the transaction's number."""
        changed = f"upto = {upto}, version = {_TRANSACTION}, applied_at = now()"
        changed = f"repaired = {upto}" if self.repairs else changed
        return self._number(session, f"UPDATE {self._table} SET {changed} WHERE {self._of(table)}")

    def others(self, session: Session, table: str) -> list[OtherSource]:
        """The other sources, of any task, that feed the table's target."""
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
        """Raises ApplyError if the table has another target under this task's name, and that still exists:
        another task may have that name, and its progress would be lost."""
        wanted = self.target(table)
        mine = f"{self._of(table)} AND target <> {literal(wanted)}"
        query = f"SELECT target FROM {self._table} WHERE {mine} AND to_regclass(target) IS NOT NULL"
        for (other,) in _rows(session, query):
            raise ApplyError(
                f"the target of {table} under the name {self._task} is {other}, and not {wanted}: two "
                "targets cannot share a row of progress",
                where=f"{self._database.label}, {table}",
                hint="give each task of this database its own name (`name`, `--name`). If the table has "
                f"moved, give up {other}, which stays as it is: DELETE FROM {self._table} WHERE "
                f"{self._of(table)}",
            )

    def begin(self, session: Session, table: str, layout: Relation, upto: int = -1) -> int:
        """Writes the row of a new target, or of one with a new baseline: `upto` is reached. Whether the
        target was made by hand is taken over from the other rows that it has.

        Raises:
            ApplyError: the task's name has another target of the table.
        """
        self.refuse_two(session, table)
        own, key = self.partition(table), {"task": literal(self._task), "table": literal(table)}
        rest = {
            "target": literal(self.target(table)),
            "upto": str(upto),
            "version": _TRANSACTION,
            "layout": literal(layout.to_json()),
            "part": literal(json.dumps(dict(own), sort_keys=True) if own else ""),
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
        """Records a table's new layout; the number reached stays."""
        changed = f"layout = {literal(layout.to_json())}"
        session.execute(f"UPDATE {self._table} SET {changed} WHERE {self._of(table)}".encode())

    def prepare(self, session: Session) -> None:
        """Creates the tables of progress and notes if they do not exist; needs a transaction."""
        if exists(session, self._table) and exists(session, self._notes):
            return
        one_at_a_time(session)
        make_schema(session, self._database.control)
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({_COLUMNS})".encode())
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._notes} ({_NOTE_COLUMNS})".encode())
        comment = "Progress of tailrace's tables here; written by it, in the transactions of these tables"
        session.execute(f"COMMENT ON TABLE {self._table} IS {literal(comment)}".encode())

    def forget(self, session: Session, table: str) -> None:
        """Removes the table's row: the target is gone, or has none of its rows any more."""
        if self.adopted(session, table):
            self.adopt(session, table)  # no other row may say so
        session.execute(f"DELETE FROM {self._table} WHERE {self._of(table)}".encode())

    def forget_all(self, session: Session, table: str) -> None:
        """Removes the rows of a target that is gone, of all its sources."""
        session.execute(f"DELETE FROM {self._table} WHERE target = {literal(self.target(table))}".encode())

    def adopted(self, session: Session, table: str) -> bool:
        """Whether the table's target was made by hand, for this source or another one."""
        return exists(session, self._table) and holds(session, self._adopted(table))

    def adopt(self, session: Session, table: str) -> None:
        """Records that the table's target was made by hand."""
        target = literal(self.target(table))
        session.execute(f"UPDATE {self._table} SET adopted = true WHERE target = {target}".encode())

    def leave(self, session: Session, table: str, upto: int, note: str, done: int) -> None:
        """Leaves a table's note, and removes those up to the change number `done`, which are not needed any
        more. One with the same number is of an earlier task of that name."""
        session.execute(f"DELETE FROM {self._notes} WHERE {self._of(table)} AND upto <= {done}".encode())
        values = f"{literal(self._task)}, {literal(table)}, {upto}, {literal(note)}"
        newer = 'ON CONFLICT (task, "table", upto) DO UPDATE SET note = EXCLUDED.note'
        session.execute(f"INSERT INTO {self._notes} VALUES ({values}) {newer}".encode())

    def notes(self, session: Session) -> list[tuple[str, int, str]]:
        """All notes: table, change number, note; those of a table in order."""
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
            raise psycopg.errors.NoDataFound(f"the table's row in {TABLE} is gone")
        return int(row[0])


def _rows(session: Session, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query about tailrace's own tables; none if these do not exist yet."""
    try:
        return session.execute(query.encode()).fetchall()
    except psycopg.errors.UndefinedTable:
        return []


def one_at_a_time(session: Session) -> None:
    """Lets no other transaction create schemas or tables until this one ends: IF NOT EXISTS alone fails in a
    race."""
    session.execute("SELECT pg_advisory_xact_lock(%s)", (number_of("set up"),))


def make_schema(session: Session, name: str) -> None:
    """Creates a schema; asks first, as IF NOT EXISTS wants the privilege even when there is nothing to do."""
    if not holds(session, "SELECT to_regnamespace(%s) IS NOT NULL", (quoted(name),)):
        session.execute(f"CREATE SCHEMA {quoted(name)}".encode())
