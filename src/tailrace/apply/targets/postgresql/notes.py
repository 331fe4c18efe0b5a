"""`tailrace_notes`: what belongs to a batch that is in the database, and is not yet where it goes.

The key log is no part of the database. A batch's rows of it are written first, and named in a note that the
batch's transaction leaves; so they belong to the key log if, and only if, the batch was applied. Whoever
finds a note makes them visible.
"""

from __future__ import annotations

import psycopg

from ....sources.postgresql.connect import Session, literal
from .place import Place, exists
from .progress import one_at_a_time

TABLE = "tailrace_notes"
_COLUMNS = """
    task text NOT NULL,
    "table" text NOT NULL,
    upto bigint NOT NULL,
    note text NOT NULL,
    PRIMARY KEY (task, "table", upto)
"""


class Notes:
    """The notes of one task in one place."""

    def __init__(self, place: Place, task: str) -> None:
        self._task, self._table = literal(task), place.own(TABLE)

    def prepare(self, session: Session) -> None:
        """Makes the table when it is not there."""
        if not exists(session, self._table):
            with session.transaction():
                one_at_a_time(session)
                session.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({_COLUMNS})".encode())

    def leave(self, session: Session, table: str, upto: int, note: str, done: int) -> None:
        """Leaves a table's note, and takes those away whose number is not above `done`: they are where they
        go. One of that number is of an earlier task of that name."""
        mine = f'task = {self._task} AND "table" = {literal(table)}'
        session.execute(f"DELETE FROM {self._table} WHERE {mine} AND upto <= {done}".encode())
        values = f"{self._task}, {literal(table)}, {upto}, {literal(note)}"
        newer = 'ON CONFLICT (task, "table", upto) DO UPDATE SET note = EXCLUDED.note'
        session.execute(f"INSERT INTO {self._table} VALUES ({values}) {newer}".encode())

    def read(self, session: Session) -> list[tuple[str, int, str]]:
        """All notes: table, change number, note; those of a table in order."""
        query = f'SELECT "table", upto, note FROM {self._table} WHERE task = {self._task} ORDER BY 1, 2'
        try:
            rows = session.execute(query.encode()).fetchall()
        except psycopg.errors.UndefinedTable:
            return []
        return [(str(r[0]), int(r[1]), str(r[2])) for r in rows]
