"""Baselines into PostgreSQL: workers COPY their parts into a table that becomes the target by a rename.

The rows are written once, the key's index is built when they are all there, and nobody sees the table before.
Every attempt has a table of its own: a worker of an earlier one can do no harm.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa

from ...change import Relation
from ...failpoints import reach
from ...lake import AddedFile
from ...sources.pg_connect import Session, quoted
from ...wire import pgbinary
from .. import shared
from .postgresql_layout import definition, primary_key, refuse_foreign
from .postgresql_place import Place, asking, locked, number_of, session
from .postgresql_progress import Progress, make_schema, one_at_a_time
from .postgresql_shared import delete_own, refuse
from .postgresql_stage import pgbinary_rows


@dataclass(frozen=True)
class PostgresLanding:
    """The landing of one table; see `landing.Landing`. `name` is the table of this attempt; `at`: where the
    rows of a table that is mapped are."""

    place: Place
    task: str
    name: str = ""
    at: shared.Place | None = None

    def begin(self, relation: Relation) -> PostgresLanding:
        """Makes the table that rows are copied to, and drops what an earlier attempt left."""
        table, progress = relation.table, self._progress()
        prefix = f"land_{number_of('land', self.task, table) & (1 << 64) - 1:016x}_"
        mine = replace(self, name=prefix + secrets.token_hex(8))
        with session(self.place, self._where(relation)) as on, on.transaction():
            progress.prepare(on)
            if progress.read(on, table) is None:
                refuse_foreign(on, self.place, progress, table)
            query = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)"
            for (left,) in on.execute(query, (self.place.control, prefix)).fetchall():
                on.execute(f"DROP TABLE {self.place.own(left)}".encode())
            columns = definition(relation, key=False)
            on.execute(f"CREATE TABLE {self.place.own(mine.name)} ({columns})".encode())
        return mine

    def part(self, relation: Relation) -> CopyPart:
        """A COPY on a connection of its own."""
        return CopyPart(self.place, self.name, relation)

    def commit(self, relation: Relation, files: Sequence[AddedFile], after: int) -> int:
        """Renames the table to the target, its key and its progress with it; gives the transaction's
        number. What the target had before, as this task made it, is gone."""
        table = relation.table
        progress = self._progress()
        target, (schema, name) = progress.target(table), progress.split(table)
        with locked(self.place, self.task, table) as on:
            with on.transaction():
                one_at_a_time(on)
                refuse(progress, relation, progress.others(on, table))
                if progress.read(on, table) is None:
                    refuse_foreign(on, self.place, progress, table)
                else:
                    on.execute(f"DROP TABLE {target}".encode())
                make_schema(on, schema)
                on.execute(f"ALTER TABLE {self.place.own(self.name)} SET SCHEMA {quoted(schema)}".encode())
                landed = f"{quoted(schema)}.{quoted(self.name)}"
                on.execute(f"ALTER TABLE {landed} RENAME TO {quoted(name)}".encode())
                if relation.key:
                    on.execute(f"ALTER TABLE {target} ADD {primary_key(relation)}".encode())
                progress.forget_others(on, table)
                version = progress.begin(on, table, relation, after)
                reach("postgresql.land")
            on.execute(f"ANALYZE {target}".encode())
        return version

    def drop(self, table: str) -> None:
        """Drops the target, if this task made it, and its row of progress; of a target that others feed the
        table's own rows."""
        progress = self._progress()
        with locked(self.place, self.task, table) as on, on.transaction():
            if progress.read(on, table) is None:
                return
            one_at_a_time(on)
            if progress.others(on, table):
                delete_own(on, progress, table)
            else:
                on.execute(f"DROP TABLE {progress.target(table)}".encode())
            progress.forget(on, table)

    def _progress(self) -> Progress:
        return Progress(self.place, self.task, lambda table: self.at or shared.Place(table))

    def _where(self, relation: Relation) -> str:
        return f"{self.place.label}, {relation.table}"


class CopyPart:
    """Rows on their way into a table, one transaction; connects when the first come."""

    def __init__(self, place: Place, name: str, relation: Relation) -> None:
        self._place, self._table = place, place.own(name)
        self._where = f"{place.label}, {relation.table}"
        self._name = relation.table
        self._open = ExitStack()
        self._session: Session | None = None
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends rows."""
        if not batch.num_rows:
            return
        if self._session is None:
            self._session = self._open.enter_context(session(self._place, self._where))
            cursor = self._open.enter_context(self._session.cursor())
            self._copy = self._open.enter_context(
                cursor.copy(f"COPY {self._table} FROM STDIN (FORMAT binary)".encode())
            )
            self._send(pgbinary.HEADER)
        for data in pgbinary_rows(batch, self._name):
            self._send(data)
        self.rows += batch.num_rows

    def close(self) -> None:
        """Ends the transaction; there is no file to name."""
        if self._session is not None:
            self._send(pgbinary.TRAILER)
        with asking(self._where):
            self._open.close()

    def discard(self) -> None:
        """Ends the connection in the middle: the server forgets the rows."""
        if self._session is not None:
            self._session.close()

    def _send(self, data: bytes | memoryview) -> None:
        with asking(self._where):
            self._copy.write(data)
