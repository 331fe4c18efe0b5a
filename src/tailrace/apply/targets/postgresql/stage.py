"""Staging tables: a batch's rows on their way into PostgreSQL, written by Spark's tasks side by side.

A task sends whole Arrow batches by COPY, in one transaction of its own, and marks its rows with a number
nobody else has. Only rows whose number came back with the task's result count: a task that ran twice, or one
that an earlier process left running, does no harm. Names follow from task, table and change number, so a
batch that comes again begins with an empty table of the same name.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa

from ....engine.columns import ADD, KEPT, OP, OPER, SEQ, TAKE
from ....errors import ApplyError, ValueRangeError
from ....execution import over_rows
from ....model.change import Relation
from ....model.types import schema_of
from ....sources.postgresql.connect import Session, quoted
from ....wire import pgbinary
from ...images import col
from ...tasks import Parts, run
from .place import Place, number_of, session
from .types import casts, sql_type
from .values import batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RESULT = "mark bigint, rows bigint"
CARRIED = "header__carried"
"""Of an image: as many characters as columns, `0` for one that it lacks; NULL: it has all."""
_EXTRA = dict.fromkeys((TAKE, ADD), pa.int64()) | dict.fromkeys((OP, KEPT, SEQ, OPER, CARRIED), pa.string())
EXTRA_SQL = {
    OP: '"char"',
    OPER: '"char"',
    KEPT: "text",
    TAKE: "bigint",
    ADD: "bigint",
    SEQ: "text",
    CARRIED: "text",
}
_DROP_WAIT = "5s"
ANALYZE_ROWS = 1000
"""Smaller tables are planned well enough without statistics."""


@dataclass(frozen=True)
class Staged:
    """Rows that are staged.

    Attributes:
        table: the staging table, as quoted SQL. Its columns: `mark`, extra ones by their own name, then the
            data columns as c0, c1, ... in the relation's order.
        marks: numbers of the rows that count.
        rows: how many they are.
        extra: which extra columns they have.
        columns: how many data columns.
        casts: of data columns that are text here and something else in the target, what.
    """

    table: str
    marks: tuple[int, ...]
    rows: int
    extra: tuple[str, ...] = ()
    columns: int = 0
    casts: Mapping[int, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """FROM item of the rows that count, in the types of the target, alias s."""
        return self.source_as("s")

    def source_as(self, alias: str) -> str:
        """`source` with another alias."""
        return f"(SELECT {self.cells} FROM {self.table} WHERE {self.which}) {alias}"

    @property
    def texts(self) -> str:
        """FROM item of the rows that count as they came, with their places as `id`, alias s."""
        return f"(SELECT ctid AS id, * FROM {self.table} WHERE {self.which}) s"

    @property
    def cells(self) -> str:
        """The columns of `source`."""
        if not self.casts:
            return "*"
        made = [f"c{i}{self.cast(i)} AS c{i}" for i in range(self.columns)]
        return ", ".join(["mark", *map(quoted, self.extra), *made])

    def cast(self, place: int) -> str:
        """What brings a data column into the target's type; empty: it has it."""
        return f"::{self.casts[place]}" if place in self.casts else ""

    @property
    def which(self) -> str:
        """SQL of the condition that they fulfil."""
        marks = ", ".join(map(str, self.marks)) or "NULL"
        return f"mark IN ({marks})"


def prefix(task: str, table: str) -> str:
    """What the names of all staging tables of one table of one task begin with."""
    return f"stage_{number_of('stage', task, table) & (1 << 64) - 1:016x}_"


def stage(
    on: Session,
    place: Place,
    name: str,
    rows: DataFrame | Parts,
    relation: Relation,
    extra: Iterable[str],
    target: str,
) -> Staged:
    """Writes rows to a new staging table.

    Args:
        on: the connection that has the table for itself.
        place: the target's database.
        name: the staging table's name.
        rows: the extra columns, then the relation's.
        relation: the layout of the data columns.
        extra: which of `OP`, `KEPT`, `TAKE`, `ADD`, `SEQ`, `OPER`, `CARRIED` the rows have.
        target: the table they are for, as quoted SQL; it need not be there.
    """
    extra = tuple(extra)
    table = place.own(name)
    columns = ["mark bigint", *(f"{quoted(n)} {EXTRA_SQL[n]}" for n in extra)]
    columns += [f"c{i} {sql_type(c.type)}" for i, c in enumerate(relation.columns)]
    on.execute(f"DROP TABLE IF EXISTS {table}".encode())
    # Not logged: after a crash of the server it is empty, and the batch comes again.
    options = "WITH (autovacuum_enabled = false)"
    on.execute(f"CREATE UNLOGGED TABLE {table} ({', '.join(columns)}) {options}".encode())
    schema = pa.schema([*(pa.field(n, _EXTRA[n]) for n in extra), *schema_of(relation.columns)])
    task = StageTask(place, table, relation.table, schema)
    found = run(rows, task, RESULT)
    marks = tuple(r["mark"] for r in found if r["rows"])
    many, into = sum(r["rows"] for r in found), casts(on, target, relation.columns)
    staged = Staged(table, marks, many, extra, len(relation.columns), into)
    if staged.rows >= ANALYZE_ROWS:
        used = ["mark", *map(quoted, extra), *(f"c{i}" for i, c in enumerate(relation.columns) if c.key)]
        on.execute(f"ANALYZE {table} ({', '.join(used)})".encode())
    return staged


@dataclass(frozen=True)
class StageTask:
    """What one Spark task does: its batches into the staging table, in one transaction."""

    place: Place
    table: str
    name: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _nonempty(batches)
        first = next(rows, None)
        mark, sent = secrets.randbits(62), 0
        if first is not None:
            with session(self.place, f"{self.place.label}, {self.name}") as mine:
                marked = (_marked(one, mark, self.schema) for one in chain([first], rows))
                sent = copy_rows(mine, self.table, marked, self.name)
        yield pa.record_batch([pa.array([mark], pa.int64()), pa.array([sent], pa.int64())], ["mark", "rows"])


def copy_rows(on: Session, into: str, batches: Iterable[pa.RecordBatch], table: str) -> int:
    """Sends rows to a table (quoted SQL) by COPY; gives how many. `table`: whose they are, for errors."""
    sent, statement = 0, f"COPY {into} FROM STDIN (FORMAT binary)".encode()
    with on.cursor() as cursor, cursor.copy(statement) as out:
        out.write(pgbinary.HEADER)
        for batch in batches:
            sent += batch.num_rows
            for data in pgbinary_rows(batch, table):
                out.write(data)
        out.write(pgbinary.TRAILER)
    return sent


def pgbinary_rows(batch: pa.RecordBatch, table: str) -> Iterator[memoryview]:
    """Rows as COPY takes them; a value that PostgreSQL cannot hold is an ApplyError."""
    try:
        yield from pgbinary.rows(batch)
    except ValueRangeError as error:
        raise ApplyError(error.what, where=table, hint=error.hint) from error


def _nonempty(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (one for one in batches if one.num_rows)


def _marked(batch: pa.RecordBatch, mark: int, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the types of a schema, the mark first."""
    arrays = [a.cast(f.type) for a, f in zip(batch.columns, schema, strict=True)]
    marks = pa.repeat(pa.scalar(mark, pa.int64()), batch.num_rows)
    return pa.record_batch([marks, *arrays], ["mark", *schema.names])


def drop(on: Session, table: str) -> None:
    """Drops a staging table; one that a task still writes to, or whose connection is gone, is left for
    `clean`."""
    with suppress(psycopg.OperationalError):
        on.execute(f"SET lock_timeout = '{_DROP_WAIT}'".encode())
        with suppress(psycopg.errors.LockNotAvailable):
            on.execute(f"DROP TABLE IF EXISTS {table}".encode())
        on.execute("SET lock_timeout = 0")


def drop_all(on: Session, place: Place, name: str) -> None:
    """Drops a batch's staging table and those that go with it."""
    for one in (name, *(f"{name}_{n}" for n in ("keys", "bad", "probe", "moved"))):
        drop(on, place.own(one))


def clean(on: Session, place: Place, task: str, table: str) -> int:
    """Drops what crashes left of a table's staging tables; gives how many. The caller has the lock."""
    query = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)"
    names = [r[0] for r in on.execute(query, (place.control, prefix(task, table))).fetchall()]
    for name in names:
        drop(on, place.own(name))
    return len(names)


@dataclass(frozen=True)
class _ReadTask:
    """Reads rows of the target in a Spark task: what a query gives, by COPY."""

    place: Place
    query: str
    relation: Relation

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if next(_nonempty(batches), None) is None:
            return
        where = f"{self.place.label}, {self.relation.table}"
        statement = f"COPY ({self.query}) TO STDOUT (FORMAT csv)".encode()
        with session(self.place, where) as mine, mine.cursor() as cursor, cursor.copy(statement) as out:
            data = b"".join(out)
        rows = batch(self.relation.columns, data, where)
        yield rows.rename_columns([f"c{i}" for i in range(rows.num_columns)])


def rows_of_query(spark: SparkSession, place: Place, query: str, relation: Relation) -> DataFrame:
    """What a query gives, in a layout's columns, which it has as `cells` asks for them; read by a task when
    somebody asks."""
    ddl = ", ".join(f"c{i} {c.type}" for i, c in enumerate(relation.columns))
    one = spark.range(0, 1, 1, 1)
    return over_rows(one, _ReadTask(place, query, relation), ddl).toDF(*[c.name for c in relation.columns])


def keys(on: Session, place: Place, name: str, keys: DataFrame, relation: Relation, target: str) -> Staged:
    """Stages keys (a DataFrame of the key's columns), each once; what is no value of the key's type finds
    nothing, and is left out."""
    layout = relation.with_columns([c for c in relation.columns if c.key])
    typed = keys.select(*[col(k).try_cast(layout.column(k).type).alias(k) for k in layout.key])
    return stage(on, place, name, typed.distinct(), layout, (), target)
