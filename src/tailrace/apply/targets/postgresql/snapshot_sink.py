"""Baselines into PostgreSQL: workers COPY their parts into a table that becomes the target by a rename.

The rows are written once, the key's index is built when they are all there, and nobody sees the table before.
Every attempt has a table of its own: a worker of an earlier one can do no harm. A part may be read twice (a
task of Spark is repeated if its executor is lost): the rows of who ends first count, as a second table says.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ....lake.delta import AddedFile
from ....lake.failpoints import reach
from ....model.change import Column, Relation
from ....sources.postgresql.connect import Session, quoted
from ....wire import pgbinary
from ....wire.pgsend import SENT
from ...mapping import shared_rows as shared
from . import task_names
from .adopted import adopts, fill, with_rule_columns
from .layout import follow, primary_key
from .place import Place, asking, check_names, locked, number_of, session
from .progress import Progress, Reached, make_schema, one_at_a_time
from .shared import delete_own, refuse
from .stage import pgbinary_rows
from .types import base, column_type, sql_type

_SOON = b"SET LOCAL lock_timeout = '2s'"
"""Capture reads nothing while it waits for who uses a target that is to be removed; it tries again later."""


@dataclass(frozen=True)
class PostgresLanding:
    """The landing of one table (`capture.snapshot_sink`). `name` is the table of this attempt; `at`: where
    the rows of a table that is mapped are; `rule_columns`: columns (name -> type) that rules add; `source`:
    whose task the name is (`task_names`)."""

    place: Place
    task: str
    name: str = ""
    at: shared.TargetPlace | None = None
    rule_columns: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def begin(self, relation: Relation, number: int = 1) -> PostgresLanding:
        """Makes the table that rows are copied to, and drops what an earlier attempt left."""
        table, progress = relation.table, self._progress()
        prefix = f"land_{number_of('land', self.task, table) & (1 << 64) - 1:016x}_"
        mine = replace(self, name=prefix + secrets.token_hex(8))
        check_names([c.name for c in relation.columns], table)
        with session(self.place, self._where(relation)) as on, on.transaction():
            progress.prepare(on)
            task_names.claim(on, self.place, self.task, self.source)
            if progress.read(on, table) is None:
                self._adopts(on, progress, relation)  # before anything is read
            query = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)"
            for (left,) in on.execute(query, (self.place.control, prefix)).fetchall():
                on.execute(f"DROP TABLE {self.place.own(left)}".encode())
            columns = ", ".join(f"{quoted(c.name)} {_landed(c)}" for c in relation.columns)
            on.execute(f"CREATE TABLE {self.place.own(mine.name)} ({columns})".encode())
            on.execute(f"CREATE TABLE {mine._ended} (part text PRIMARY KEY, rows bigint)".encode())
        return mine

    def part(self, relation: Relation, name: str = "") -> CopyPart:
        """A COPY on a connection of its own."""
        return CopyPart(self.place, self.name, relation, (self._ended, name))

    @property
    def address(self) -> Mapping[str, str]:
        """Names the table that parts go to."""
        return {"table": self.name}

    @property
    def _ended(self) -> str:
        """The table of parts that have been read."""
        return self.place.own(f"{self.name}_parts")

    def commit(self, relation: Relation, files: Sequence[AddedFile], after: int) -> int:
        """Renames the table to the target, its key and its progress with it; gives the transaction's
        number. What the target had before, as this task made it, is gone; one that others made is filled."""
        table, progress = relation.table, self._progress()
        target = progress.target(table)
        with locked(self.place, self.task, table) as on:
            known = progress.read(on, table)
            if progress.adopted(on, table) if known else self._adopts(on, progress, relation):
                version = self._fill(on, progress, relation, known, after)
            else:
                version = self._swap(on, progress, relation, after)
            on.execute(f"ANALYZE {target}".encode())
        return version

    def _fill(
        self, on: Session, progress: Progress, relation: Relation, known: Reached | None, after: int
    ) -> int:
        table, landed = relation.table, self.place.own(self.name)
        target = progress.target(table)
        with on.transaction():
            refuse(progress, relation, progress.others(on, table))
            if known is not None:
                on.execute(f"DELETE FROM {target}".encode())
            whole = with_rule_columns(on, target, relation, self.rule_columns)
            if known is not None:
                follow(on, progress, known.layout, whole)
            fill(on, target, relation, landed)
            version = progress.begin(on, table, whole, after)
            progress.adopt(on, table)
            on.execute(f"DROP TABLE {landed}, {self._ended}".encode())
            reach("postgresql.land")
        return version

    def _swap(self, on: Session, progress: Progress, relation: Relation, after: int) -> int:
        table = relation.table
        target, (schema, name) = progress.target(table), progress.split(table)
        if steps := _typed(relation):
            on.execute(f"ALTER TABLE {self.place.own(self.name)} {', '.join(steps)}".encode())
        with on.transaction():
            one_at_a_time(on)
            refuse(progress, relation, progress.others(on, table))
            if progress.read(on, table) is not None:  # again: turning texts into types may take long
                on.execute(f"DROP TABLE {target}".encode())
            make_schema(on, schema)
            on.execute(f"ALTER TABLE {self.place.own(self.name)} SET SCHEMA {quoted(schema)}".encode())
            landed = f"{quoted(schema)}.{quoted(self.name)}"
            on.execute(f"ALTER TABLE {landed} RENAME TO {quoted(name)}".encode())
            if relation.key:
                on.execute(f"ALTER TABLE {target} ADD {primary_key(relation)}".encode())
            progress.forget_all(on, table)
            on.execute(f"DROP TABLE {self._ended}".encode())
            version = progress.begin(on, table, relation, after)
            reach("postgresql.land")
        return version

    def drop(self, table: str) -> None:
        """Drops the target, if this task made it, and its row of progress; of a target that others feed the
        table's own rows."""
        progress = self._progress()
        with locked(self.place, self.task, table) as on, on.transaction():
            if progress.read(on, table) is None:
                return
            one_at_a_time(on)
            on.execute(_SOON)
            if progress.others(on, table) or progress.adopted(on, table):
                delete_own(on, progress, table)
            else:
                on.execute(f"DROP TABLE {progress.target(table)}".encode())
            progress.forget(on, table)

    def _adopts(self, on: Session, progress: Progress, relation: Relation) -> bool:
        return adopts(on, self.place, progress, relation, self.rule_columns)

    def _progress(self) -> Progress:
        return Progress(self.place, self.task, lambda table: self.at or shared.TargetPlace(table))

    def _where(self, relation: Relation) -> str:
        return f"{self.place.label}, {relation.table}"


def _sent(column: Column) -> bool:
    """Whether a column's texts are sent into its type."""
    return column_type(column) != sql_type(column.type) and column.kind in SENT


def _landed(column: Column) -> str:
    """The type in which a column lands."""
    return column_type(column) if _sent(column) else sql_type(column.type)


def _typed(relation: Relation) -> list[str]:
    """What gives columns, whose values landed as text, the types that they have at the source."""
    found = [(quoted(c.name), column_type(c)) for c in relation.columns if column_type(c) != _landed(c)]
    return [f"ALTER COLUMN {name} TYPE {kind} USING {name}::{base(kind)}" for name, kind in found]


class CopyPart:
    """Rows on their way into a table, one transaction; connects when the first come. `part`: the table of
    parts that have ended, and this one's name."""

    def __init__(self, place: Place, name: str, relation: Relation, part: tuple[str, str]) -> None:
        self._place, self._table, self._part = place, place.own(name), part
        self._where = f"{place.label}, {relation.table}"
        self._name = relation.table
        self._sent = {c.name: SENT[c.kind] for c in relation.columns if _sent(c)}
        self._open, self._copying = ExitStack(), ExitStack()
        self._session: Session | None = None
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends rows."""
        if not batch.num_rows:
            return
        if self._session is None:
            self._session = self._open.enter_context(session(self._place, self._where))
            self._session.execute("BEGIN")
            cursor = self._copying.enter_context(self._session.cursor())
            self._copy = self._copying.enter_context(
                cursor.copy(f"COPY {self._table} FROM STDIN (FORMAT binary)".encode())
            )
            self._send(pgbinary.HEADER)
        for data in pgbinary_rows(self._ready(batch), self._name):
            self._send(data)
        self.rows += batch.num_rows

    def close(self) -> None:
        """Ends the transaction; there is no file to name. Without effect if the part has ended before."""
        if self._session is None:
            return
        self._send(pgbinary.TRAILER)
        with asking(self._where), self._open:
            self._copying.close()
            table, name = self._part
            note = f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT DO NOTHING".encode()
            first = self._session.execute(note, (name, self.rows)).rowcount
            self._session.execute("COMMIT" if first else "ROLLBACK")

    def discard(self) -> None:
        """Ends the connection in the middle: the server forgets the rows."""
        if self._session is not None:
            self._session.close()

    def _ready(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with texts as they go into columns of other types."""
        if not self._sent:
            return batch
        names = batch.schema.names
        columns = [self._sent[n](batch[n]) if n in self._sent else batch[n] for n in names]
        return pa.record_batch(columns, names)

    def _send(self, data: bytes | memoryview) -> None:
        with asking(self._where):
            self._copy.write(data)
