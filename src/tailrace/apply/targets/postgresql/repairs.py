"""How far the repairs of a PostgreSQL target are: apart from the progress of the source's changes, which they
leave where it is.
"""

from __future__ import annotations

from dataclasses import replace

from ....sources.postgresql.connect import Session, literal
from .place import exists
from .progress import TRANSACTION, Progress, Reached, make_schema, one_at_a_time

TABLE = "tailrace_repairs"
_COLUMNS = """
    task text NOT NULL,
    "table" text NOT NULL,
    upto bigint NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (task, "table")
"""


class Repairs(Progress):
    """A progress whose number is that of the last repair; all else is as the table's own progress has it.

    A row changes in the transaction that changes its table.
    """

    def read(self, session: Session, table: str, *, lock: bool = False) -> Reached | None:
        """The number of the table's last repair (-1: it had none), and its layout."""
        found = super().read(session, table, lock=lock)
        if found is None or not exists(session, self._own):
            return found and replace(found, upto=-1)
        query = f"SELECT upto FROM {self._own} WHERE {self._of(table)}"
        row = session.execute(query.encode()).fetchone()
        return replace(found, upto=int(row[0]) if row else -1)

    def advance(self, session: Session, table: str, upto: int) -> int:
        """Sets the number of the last repair; gives the transaction's number."""
        one_at_a_time(session)
        make_schema(session, self._place.control)
        session.execute(f"CREATE TABLE IF NOT EXISTS {self._own} ({_COLUMNS})".encode())
        values = f"{literal(self._task)}, {literal(table)}, {upto}"
        session.execute(
            f'INSERT INTO {self._own} (task, "table", upto) VALUES ({values})'
            ' ON CONFLICT (task, "table") DO UPDATE SET upto = EXCLUDED.upto, applied_at = now()'.encode()
        )
        row = session.execute(f"SELECT {TRANSACTION}".encode()).fetchone()
        return int(row[0]) if row else -1

    @property
    def _own(self) -> str:
        return self._place.own(TABLE)
