"""`tailrace_progress`: how far each table of each task is, in the database that holds the tables.

A row changes in the transaction that changes its table, so the two cannot disagree. It also keeps the layout
that the table was given: that is what columns are matched with when the layout changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from ...change import Relation
from ...sources.pg_connect import Session, literal, quoted
from .postgresql_place import Place, number_of

TABLE = "tailrace_progress"
_COLUMNS = """
    task text NOT NULL,
    "table" text NOT NULL,
    target text NOT NULL,
    upto bigint NOT NULL,
    version bigint NOT NULL,
    layout text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task, "table"),
    UNIQUE (target)
"""


@dataclass(frozen=True)
class Reached:
    """A table's row: the change number reached (-1: none yet), the transaction that wrote it, the layout."""

    upto: int
    version: int
    layout: Relation


class Progress:
    """The progress of one task's tables in one place."""

    def __init__(self, place: Place, task: str) -> None:
        self._place, self._task = place, task
        self._table = place.own(TABLE)

    def read(self, session: Session, table: str, *, lock: bool = False) -> Reached | None:
        """The table's row; None when it has none, or its target is gone or another one."""
        target = literal(self._place.target(table))
        wanted = f"{self._of(table)} AND target = {target} AND to_regclass({target}) IS NOT NULL"
        query = f"SELECT upto, version, layout FROM {self._table} WHERE {wanted}"
        try:
            row = session.execute((query + (" FOR UPDATE" if lock else "")).encode()).fetchone()
        except psycopg.errors.UndefinedTable:
            return None
        return Reached(int(row[0]), int(row[1]), Relation.from_json(row[2])) if row else None

    def advance(self, session: Session, table: str, upto: int) -> int:
        """Sets the number reached; gives the transaction's number."""
        changed = f"upto = {upto}, version = {TRANSACTION}, applied_at = now()"
        return self._number(session, f"UPDATE {self._table} SET {changed} WHERE {self._of(table)}")

    def begin(self, session: Session, table: str, layout: Relation) -> int:
        """Makes the row of a table that is new or made anew: nothing reached yet."""
        target = literal(self._place.target(table))
        values = f"{literal(self._task)}, {literal(table)}, {target}, -1, {TRANSACTION}"
        return self._number(
            session,
            f'INSERT INTO {self._table} (task, "table", target, upto, version, layout)'
            f" VALUES ({values}, {literal(layout.to_json())})"
            ' ON CONFLICT (task, "table") DO UPDATE SET target = EXCLUDED.target, upto = EXCLUDED.upto,'
            " version = EXCLUDED.version, layout = EXCLUDED.layout, applied_at = now()",
        )

    def lay_out(self, session: Session, table: str, layout: Relation) -> None:
        """Notes a table's new layout; the number reached stays."""
        words = f"layout = {literal(layout.to_json())}"
        session.execute(f"UPDATE {self._table} SET {words} WHERE {self._of(table)}".encode())

    def prepare(self, session: Session) -> None:
        """Makes schema and table when they are not there (needs a transaction: one at a time does it)."""
        found = session.execute("SELECT to_regclass(%s) IS NOT NULL", (self._table,)).fetchone()
        if found and found[0]:
            return
        one_at_a_time(session)
        make_schema(session, self._place.control)
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({_COLUMNS})".encode())
        note = "How far each table is that tailrace keeps here; written by it, in the tables' transactions"
        session.execute(f"COMMENT ON TABLE {self._table} IS {literal(note)}".encode())

    def forget(self, session: Session, table: str) -> None:
        """Takes the table's row away: its target is gone."""
        session.execute(f"DELETE FROM {self._table} WHERE {self._of(table)}".encode())

    def forget_others(self, session: Session, table: str) -> None:
        """Takes away the row that another task left behind for a target that is gone."""
        target = literal(self._place.target(table))
        theirs = f"target = {target} AND NOT ({self._of(table)})"
        session.execute(f"DELETE FROM {self._table} WHERE {theirs}".encode())

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
    found = session.execute("SELECT to_regnamespace(%s) IS NOT NULL", (quoted(name),)).fetchone()
    if not (found and found[0]):
        session.execute(f"CREATE SCHEMA {quoted(name)}".encode())
