"""Baselines. Workers COPY their parts into a new table; one transaction makes its rows the target's.

The rows are written once, the key's index is built when they all exist, and no reader sees the table before.
A target that was made by hand, or that other sources feed, keeps its table and gets the rows. Every attempt
has its own table, so a worker of an earlier one can do no harm. A part may be read twice (Spark repeats a
task whose executor is lost): a second table records the parts that have ended, and the rows of the first
count."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa

from ...engine.columns import typed
from ...errors import BaselineNeededError
from ...execution import map_tasks, over_rows
from ...lake.delta import AddedFile
from ...lake.failpoints import reach
from ...model.change import Column, Relation
from ...model.types import schema_of
from ...sources.postgresql.connect import Session, quoted
from ...wire import pgbinary
from ...wire.pgsend import SENT
from ..images import col
from ..multi_source import TargetLocation
from ..parts import Parts
from . import task_names
from .connection import (
    WORK_MEM,
    Database,
    check_names,
    explaining_errors,
    is_refusal,
    locked_session,
    number_of,
    open_session,
)
from .existing_tables import can_adopt, key_statement, with_rule_columns
from .layout import follow, primary_key
from .multi_source import delete_partition, refuse
from .progress import ProgressTable, lock_ddl, make_schema
from .staging import copy_data
from .types import TargetTypes, cast_type, column_type, sql_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SOON = b"SET LOCAL lock_timeout = '2s'"
"""Capture reads nothing while it waits for other users of a target that is to be removed; it tries again."""


@dataclass(frozen=True)
class PostgresLanding:
    """The landing of one table (`capture.snapshot_sink`).

    Attributes:
        place, task: the database, and the task's name.
        name: the table of this attempt.
        at: where the rows of a mapped table are; None: in a target of the table's name.
        rule_columns: columns (name -> Spark SQL type) that rules add to the target.
        source: the source of the task, see `task_names`.
    """

    database: Database
    task: str
    name: str = ""
    at: TargetLocation | None = None
    rule_columns: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def begin(self, relation: Relation, number: int = 1) -> PostgresLanding:
        """Creates the table that rows are copied to, and drops what an earlier attempt left."""
        table, progress = relation.table, self._progress()
        prefix = f"land_{number_of('land', self.task, table) & (1 << 64) - 1:016x}_"
        landing = replace(self, name=prefix + secrets.token_hex(8))
        check_names([c.name for c in relation.columns], table)
        with open_session(self.database, f"{self.database.label}, {table}") as session, session.transaction():
            progress.prepare(session)
            task_names.claim(session, self.database, self.task, self.source)
            self._keeps_table(session, progress, relation)  # before anything is read
            query = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)"
            for (left,) in session.execute(query, (self.database.control, prefix)).fetchall():
                session.execute(f"DROP TABLE {self.database.control_table(left)}".encode())
            columns = ", ".join(f"{quoted(c.name)} {landing.landed(c)}" for c in relation.columns)
            session.execute(f"CREATE TABLE {self.database.control_table(landing.name)} ({columns})".encode())
            session.execute(f"CREATE TABLE {landing._ended} (part text PRIMARY KEY, rows bigint)".encode())
        return landing

    def part(self, relation: Relation, name: str = "") -> CopyPart:
        """A COPY on its own connection."""
        return CopyPart(self, relation, name)

    @property
    def address(self) -> Mapping[str, str]:
        """Names the table that parts go to."""
        return {"table": self.name}

    @property
    def _ended(self) -> str:
        """The table of parts that have been read."""
        return self.database.control_table(f"{self.name}_parts")

    def commit(self, relation: Relation, files: Sequence[AddedFile], after: int) -> int:
        """Makes the rows all that the target has of the table, `after` its change number; returns the
        transaction's number.

        Raises:
            BaselineNeededError: the database refuses rows, or other sources have other columns there.
        """
        table, progress = relation.table, self._progress()
        with locked_session(self.database, self.task, table) as session:
            keeps = self._keeps_table(session, progress, relation)
            if not keeps and (steps := self._typed(relation)):
                session.execute(
                    f"ALTER TABLE {self.database.control_table(self.name)} {', '.join(steps)}".encode()
                )
            try:
                with session.transaction():
                    lock_ddl(session)
                    session.execute(f"SET LOCAL work_mem = '{WORK_MEM}'".encode())
                    layout = (
                        self._fill(session, progress, relation)
                        if keeps
                        else self._swap(session, progress, relation)
                    )
                    version = progress.begin(session, table, layout, after)
                    if keeps and not progress.others(session, table):
                        progress.adopt(session, table)
                    session.execute(f"DROP TABLE {self._ended}".encode())
                    reach("postgresql.land")
            except psycopg.Error as error:
                if not is_refusal(error):
                    raise
                raise BaselineNeededError(
                    f"the target refuses rows of the baseline: {str(error).strip()}",
                    where=table,
                    hint="correct the rows, the target or its mapping (may the key be NULL, or come twice?), "
                    "then `tailrace resync` the table",
                ) from error
            session.execute(f"ANALYZE {progress.target(table)}".encode())
        return version

    def _keeps_table(self, session: Session, progress: ProgressTable, relation: Relation) -> bool:
        """Whether the target's table stays: other sources feed it, or it was made by hand.

        Raises:
            ApplyError: there is a table that cannot be used.
        """
        table = relation.table
        if others := progress.others(session, table):
            refuse(progress, relation, others, self.rule_columns)
            return True
        if progress.read(session, table) is not None:
            return progress.adopted(session, table)
        return can_adopt(session, self.database, progress, relation, self.rule_columns)

    def _fill(self, session: Session, progress: ProgressTable, relation: Relation) -> Relation:
        """Replaces the source's rows in a table that stays; returns the target's layout."""
        table, landed = relation.table, self.database.control_table(self.name)
        target, known = progress.target(table), progress.read(session, table)
        delete_partition(session, progress, table)
        if not progress.others(session, table):  # it was made by hand
            relation = with_rule_columns(session, target, relation, self.rule_columns)
            if known is not None:
                follow(session, progress, known.layout, relation)
            if statement := key_statement(session, target, relation):
                session.execute(statement.encode())
        sent = [c for c in relation.columns if c.name not in self.rule_columns]
        into = TargetTypes.of(session, target, sent).casts
        names = ", ".join(quoted(c.name) for c in sent)
        cells = ", ".join(quoted(c.name) + (f"::{into[i]}" if i in into else "") for i, c in enumerate(sent))
        rows = f"INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE SELECT {cells} FROM {landed}"
        session.execute(rows.encode())
        session.execute(f"DROP TABLE {landed}".encode())
        return relation

    def _swap(self, session: Session, progress: ProgressTable, relation: Relation) -> Relation:
        """Makes the table of the attempt the target."""
        table = relation.table
        target, (schema, name) = progress.target(table), progress.split(table)
        if progress.read(session, table) is not None:
            session.execute(f"DROP TABLE {target}".encode())
        make_schema(session, schema)
        session.execute(
            f"ALTER TABLE {self.database.control_table(self.name)} SET SCHEMA {quoted(schema)}".encode()
        )
        landed = f"{quoted(schema)}.{quoted(self.name)}"
        session.execute(f"ALTER TABLE {landed} RENAME TO {quoted(name)}".encode())
        if relation.key:
            session.execute(f"ALTER TABLE {target} ADD {primary_key(relation)}".encode())
        progress.forget_all(session, table)
        return relation

    def drop(self, table: str) -> None:
        """Drops the target, if this task made it, and its row of progress; of a target that others feed or
        that was made by hand, the table's own rows."""
        progress = self._progress()
        with locked_session(self.database, self.task, table) as session, session.transaction():
            if progress.read(session, table) is None:
                return
            lock_ddl(session)
            session.execute(_SOON)
            if progress.others(session, table) or progress.adopted(session, table):
                delete_partition(session, progress, table)
            else:
                session.execute(f"DROP TABLE {progress.target(table)}".encode())
            progress.forget(session, table)

    def _progress(self) -> ProgressTable:
        return ProgressTable(self.database, self.task, lambda table: self.at or TargetLocation(table))

    def is_sent(self, column: Column) -> bool:
        """Whether a column's texts are sent into its type."""
        return self._type(column) != sql_type(column.type) and column.kind in SENT

    def landed(self, column: Column) -> str:
        """The type in which a column lands."""
        return self._type(column) if self.is_sent(column) else sql_type(column.type)

    def _type(self, column: Column) -> str:
        """The type that the column has in the target; with several sources the one that values travel in."""
        return sql_type(column.type) if self.at is not None and self.at.partition else column_type(column)

    def _typed(self, relation: Relation) -> list[str]:
        """Returns the steps of an ALTER TABLE that give columns loaded as text their types at the source."""
        found = [(quoted(c.name), self._type(c)) for c in relation.columns if self._type(c) != self.landed(c)]
        return [f"ALTER COLUMN {name} TYPE {kind} USING {name}::{cast_type(kind)}" for name, kind in found]


class CopyPart:
    """Rows on their way into a landing's table, in one transaction; connects when the first come."""

    def __init__(self, landing: PostgresLanding, relation: Relation, name: str) -> None:
        self._database, self._table = landing.database, landing.database.control_table(landing.name)
        self._part, self._name = (
            (landing.database.control_table(f"{landing.name}_parts"), name),
            relation.table,
        )
        self._where = f"{landing.database.label}, {relation.table}"
        self._sent = {c.name: SENT[c.kind] for c in relation.columns if landing.is_sent(c)}
        self._open, self._copying = ExitStack(), ExitStack()
        self._session: Session | None = None
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends rows."""
        if not batch.num_rows:
            return
        if self._session is None:
            self._session = self._open.enter_context(open_session(self._database, self._where))
            self._session.execute("BEGIN")
            cursor = self._copying.enter_context(self._session.cursor())
            self._copy = self._copying.enter_context(
                cursor.copy(f"COPY {self._table} FROM STDIN (FORMAT binary)".encode())
            )
            self._send(pgbinary.HEADER)
        for data in copy_data(self._ready(batch), self._name):
            self._send(data)
        self.rows += batch.num_rows

    def close(self) -> None:
        """Ends the transaction; there is no file to name. Without effect if the part has ended before."""
        if self._session is None:
            return
        self._send(pgbinary.TRAILER)
        with explaining_errors(self._where), self._open:
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
        with explaining_errors(self._where):
            self._copy.write(data)


def load(landing: PostgresLanding, relation: Relation, rows: DataFrame | Parts, after: int) -> int:
    """Lands rows that tasks read, and makes them all that the target has of a table; see `Target.load`."""
    begun = landing.begin(relation)
    task = LandTask(begun, relation)
    if isinstance(rows, Parts):
        map_tasks(partial(_land, task, rows.read), rows.names, session=rows.session, job=rows.job)
    else:
        over_rows(rows.select(*[col(c.name) for c in relation.columns]), task, "rows bigint").collect()
    return begun.commit(relation, [], after)


def _land(task: LandTask, read: Callable[[str], Iterable[pa.RecordBatch]], name: str) -> int:
    return task.land(read(name), name)


@dataclass(frozen=True)
class LandTask:
    """Lands the rows of a part."""

    landing: PostgresLanding
    relation: Relation

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        name = secrets.token_hex(8) if context is None else str(context.partitionId())
        yield pa.record_batch([pa.array([self.land(batches, name)], pa.int64())], ["rows"])

    def land(self, batches: Iterable[pa.RecordBatch], name: str) -> int:
        """Sends the rows; returns their number."""
        part, schema = self.landing.part(self.relation, name), schema_of(self.relation.columns)
        try:
            for batch in batches:
                part.write(typed(batch, schema))
            part.close()
        except BaseException:
            part.discard()
            raise
        return part.rows
