"""`tailrace_progress`: how far each table of each task is, in the database that holds the tables.

A row changes in the transaction that changes its table, so the two cannot disagree. It also keeps the layout
that the table was given: that is what columns are matched with when the layout changes. And it keeps the
table's number (OID): one that somebody else puts under that name has another, and is no target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psycopg

from ....model.change import Relation
from ....sources.postgresql.connect import Session, literal, quoted
from ...mapping import shared_rows as shared
from . import relid_column
from .other_table import noted, number_now, other_table, two_places
from .place import Place, holds, number_of

TABLE = "tailrace_progress"
_COLUMNS = """
    task text NOT NULL,
    "table" text NOT NULL,
    target text NOT NULL,
    upto bigint NOT NULL,
    version bigint NOT NULL,
    layout text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    part text NOT NULL DEFAULT '',
    adopted boolean NOT NULL DEFAULT false,
    relid oid,
    PRIMARY KEY (task, "table"),
    UNIQUE (target, part)
"""
"""`part`: of a target that several sources may feed the constants that tell this one's rows, as JSON;
`adopted`: somebody made the target for a task to fill (true in any row of a target holds for all of them);
`relid`: its number, NULL: not noted yet."""
_PARTS = """
    ADD COLUMN part text NOT NULL DEFAULT '', DROP CONSTRAINT IF EXISTS tailrace_progress_target_key,
    ADD UNIQUE (target, part)
"""
"""What a table of progress from before there were parts lacks."""
_ADOPTED = "ADD COLUMN IF NOT EXISTS adopted boolean NOT NULL DEFAULT false"


@dataclass(frozen=True)
class Reached:
    """A table's row: the change number reached (-1: none yet), the transaction that wrote it, the layout;
    `noted`: whether it has the target's number."""

    upto: int
    version: int
    layout: Relation
    noted: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Other:
    """Another source that feeds a target: its name, the constants that tell its rows, what it makes of it."""

    name: str
    own: Mapping[str, str]
    layout: Relation


class Progress:
    """The progress of one task's tables in one place; `places`: where each table's rows are."""

    def __init__(
        self, place: Place, task: str, places: Callable[[str], shared.TargetPlace] = shared.TargetPlace
    ) -> None:
        self._place, self._task, self._places = place, task, places
        self._table = place.own(TABLE)

    def at(self, table: str) -> shared.TargetPlace:
        """Where the table's rows are."""
        return self._places(table)

    def target(self, table: str) -> str:
        """The name of the table's target, as quoted SQL."""
        return self._place.target(self._places(table).target)

    def split(self, table: str) -> tuple[str, str]:
        """Schema and name of the table's target."""
        return self._place.split(self._places(table).target)

    def own(self, table: str) -> Mapping[str, str]:
        """The constants that tell the table's rows from those of others; empty: the target is its own."""
        return self._places(table).partition

    def own_rows(self, table: str) -> str:
        """SQL of the condition that the table's rows fulfil."""
        return " AND ".join(f"{quoted(n)} = {literal(v)}" for n, v in self.own(table).items()) or "true"

    def read(self, session: Session, table: str, *, lock: bool = False) -> Reached | None:
        """The table's row; None when it has none, or its target is gone, or has another name.

        Raises:
            OtherTableError: another table has the target's name.
        """
        wanted = f"{self._of(table)} AND target = {literal(self.target(table))}"
        numbers = f"{noted('p')}, {number_now(self.target(table))}"
        query = f"SELECT upto, version, layout, {numbers} FROM {self._table} p WHERE {wanted}"
        try:
            row = session.execute((query + (" FOR UPDATE" if lock else "")).encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            return None
        if row is None or row[4] is None:
            return None
        self._refuse_other(table, row[3], row[4])
        return Reached(int(row[0]), int(row[1]), Relation.from_json(row[2]), row[3] is not None)

    def to_go_on(self, session: Session, table: str) -> Reached | None:
        """As `read`, for who is about to write: a target whose number is not noted yet gets its note."""
        found = self.read(session, table)
        if found is not None and not found.noted:
            self._note(session, table)
        return found

    def _note(self, session: Session, table: str) -> None:
        """Notes the number of a target that an earlier release has made, or that was declared to be the one
        (NULL)."""
        with session.transaction():
            has = self._has(session, "relid")
            if has or relid_column.add(session, self._place.label, self._table):
                mine = f"{self._of(table)} AND target = {literal(self.target(table))} AND relid IS NULL"
                number = number_now(self.target(table))
                session.execute(f"UPDATE {self._table} SET relid = {number} WHERE {mine}".encode())

    def _refuse_other(self, table: str, number: int | None, now: int) -> None:
        if number is not None and number != now:
            where = f"{self._place.label}, {table}"
            raise other_table(self._table, self.target(table), number, now, where)

    def advance(self, session: Session, table: str, upto: int) -> int:
        """Sets the number reached; gives the transaction's number."""
        changed = f"upto = {upto}, version = {TRANSACTION}, applied_at = now()"
        return self._number(session, f"UPDATE {self._table} SET {changed} WHERE {self._of(table)}")

    def others(self, session: Session, table: str) -> list[Other]:
        """The other sources, of any task, that feed the table's target.

        Raises:
            OtherTableError: another table has the name of what they feed.
        """
        part = "to_jsonb(p) ->> 'part'"  # without the column, an error would abort the caller's transaction
        wanted = f"target = {literal(self.target(table))} AND {part} <> '' AND NOT ({self._of(table)})"
        numbers = f"{noted('p')}, {number_now(self.target(table))}"
        query = f'SELECT task, "table", {part}, layout, {numbers} FROM {self._table} p WHERE {wanted}'
        try:
            found = session.execute(f"{query} ORDER BY 1, 2".encode()).fetchall()
        except psycopg.errors.UndefinedTable:
            return []
        rows = [r for r in found if r[5] is not None]
        for row in rows:
            self._refuse_other(table, row[4], row[5])
        return [Other(f"{r[1]} of the task {r[0]}", json.loads(r[2]), Relation.from_json(r[3])) for r in rows]

    def refuse_two(self, session: Session, table: str) -> None:
        """Raises ApplyError if the table has another target under this task's name, and that is still there:
        another task may have that name, and its progress would be lost."""
        wanted = self.target(table)
        number = "to_regclass(target)::oid::bigint"
        mine = f"{self._of(table)} AND target <> {literal(wanted)}"
        query = (
            f"SELECT target FROM {self._table} p WHERE {mine} AND {number} = coalesce({noted('p')}, {number})"
        )
        try:
            row = session.execute(query.encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            return
        if row is not None:
            where = f"{self._place.label}, {table}"
            raise two_places(self._table, self._task, table, (row[0], wanted), where)

    def begin(self, session: Session, table: str, layout: Relation, upto: int = -1) -> int:
        """Makes the row of a table that is new or made anew: nothing reached yet, or `upto`. That somebody
        made the target is handed on by the rows that it has.

        Raises:
            ApplyError: the task's name has another target of the table.
        """
        self.refuse_two(session, table)
        own, key = self.own(table), {"task": literal(self._task), "table": literal(table)}
        rest = {
            "target": literal(self.target(table)),
            "upto": str(upto),
            "version": TRANSACTION,
            "layout": literal(layout.to_json()),
            "part": literal(json.dumps(dict(own), sort_keys=True) if own else ""),
            "adopted": f"({self._adopted(table)})",
            "applied_at": "now()",
        }
        if self._has(session, "relid"):
            rest["relid"] = number_now(self.target(table))
        values = {**key, **rest}
        names, changed = ", ".join(map(quoted, values)), ", ".join(f"{n} = EXCLUDED.{n}" for n in rest)
        return self._number(
            session,
            f"INSERT INTO {self._table} ({names}) VALUES ({', '.join(values.values())})"
            f" ON CONFLICT ({', '.join(map(quoted, key))}) DO UPDATE SET {changed}",
        )

    def lay_out(self, session: Session, table: str, layout: Relation) -> None:
        """Notes a table's new layout; the number reached stays."""
        words = f"layout = {literal(layout.to_json())}"
        session.execute(f"UPDATE {self._table} SET {words} WHERE {self._of(table)}".encode())

    def prepare(self, session: Session) -> None:
        """Makes schema and table when they are not there (needs a transaction: one at a time does it); brings
        one of an earlier release up to date, for the numbers of targets as far as that can be done now."""
        lacks = [name for name in ("relid", "adopted", "part") if not self._has(session, name)]
        if not lacks:
            return
        one_at_a_time(session)
        if lacks == ["relid"]:
            relid_column.add(session, self._place.label, self._table)
            return
        make_schema(session, self._place.control)
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({_COLUMNS})".encode())
        if not self._has(session, "part"):
            session.execute(f"ALTER TABLE {self._table} {_PARTS}".encode())
        session.execute(f"ALTER TABLE {self._table} {_ADOPTED}, {relid_column.COLUMN}".encode())
        note = "How far each table is that tailrace keeps here; written by it, in the tables' transactions"
        session.execute(f"COMMENT ON TABLE {self._table} IS {literal(note)}".encode())

    def forget(self, session: Session, table: str) -> None:
        """Takes the table's row away: the target is gone, or has none of its rows any more."""
        if self.adopted(session, table):
            self.adopt(session, table)  # no other row may say so
        session.execute(f"DELETE FROM {self._table} WHERE {self._of(table)}".encode())

    def adopted(self, session: Session, table: str) -> bool:
        """Whether somebody made the table's target, for any of those that feed it to fill."""
        return self._has(session, "adopted") and holds(session, self._adopted(table))

    def _adopted(self, table: str) -> str:
        where = f"target = {literal(self.target(table))}"
        return f"SELECT coalesce(bool_or(adopted), false) FROM {self._table} WHERE {where}"

    def adopt(self, session: Session, table: str) -> None:
        """Notes that somebody made the table's target."""
        where = f"target = {literal(self.target(table))}"
        session.execute(f"UPDATE {self._table} SET adopted = true WHERE {where}".encode())

    def fed(self, session: Session, table: str) -> bool:
        """Whether another table, of any task, has the same target."""
        target = literal(self.target(table))
        query = f"SELECT FROM {self._table} WHERE target = {target} AND NOT ({self._of(table)})"
        try:
            return session.execute(query.encode()).fetchone() is not None
        except psycopg.errors.UndefinedTable:
            return False

    def _has(self, session: Session, column: str) -> bool:
        query = "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s)"
        return holds(session, query, (self._table, column))

    def forget_all(self, session: Session, table: str) -> None:
        """Takes away the rows of a target that is gone, whoever left them behind."""
        session.execute(f"DELETE FROM {self._table} WHERE target = {literal(self.target(table))}".encode())

    def _of(self, table: str) -> str:
        return f'task = {literal(self._task)} AND "table" = {literal(table)}'

    def _number(self, session: Session, statement: str) -> int:
        row = session.execute(f"{statement} RETURNING version".encode()).fetchone()
        if row is None:
            raise psycopg.errors.NoDataFound("the table's row in tailrace_progress is gone")
        return int(row[0])


TRANSACTION = "pg_current_xact_id()::text::bigint"


def one_at_a_time(session: Session) -> None:
    """Until the transaction ends, no other makes schemas or tables: IF NOT EXISTS alone fails in a race."""
    session.execute("SELECT pg_advisory_xact_lock(%s)", (number_of("set up"),))


def make_schema(session: Session, name: str) -> None:
    """Makes a schema; asks first: IF NOT EXISTS wants the privilege even when there is nothing to do."""
    if not holds(session, "SELECT to_regnamespace(%s) IS NOT NULL", (quoted(name),)):
        session.execute(f"CREATE SCHEMA {quoted(name)}".encode())
