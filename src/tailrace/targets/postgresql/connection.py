"""The database of a PostgreSQL target: its address, table names, connections and errors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import psycopg

from ...errors import (
    ApplyError,
    ConfigError,
    ConnectionLostError,
    ConstraintError,
    SourceError,
    TargetLostError,
)
from ...lake import guards
from ...model.change import split
from ...sources.postgresql.address import address
from ...sources.postgresql.connect import Session, connect, is_lost, quoted

SCHEMES = ("postgresql", "postgres")
"""URL schemes of PostgreSQL targets."""
CONTROL = "tailrace"
"""Schema of the progress table and of staging tables."""
NAME_BYTES = 63
"""PostgreSQL truncates longer names, so that two names may become the same."""
WORK_MEM = "64MB"
"""Memory for joins of a batch with its target; with the server's default of 4 MB they would use disk."""

_DURABLE = b"""
SELECT set_config('synchronous_commit', 'local', false) WHERE current_setting('synchronous_commit') = 'off'
"""
"""Makes confirmed commits survive a crash of the server, whatever the settings of the database or role are.
The task's recorded progress depends on it."""
_LOCK_WAIT_S = 60
_answered = set[str]()
"""Labels of the databases that have answered this process."""
UNICODE = "use a target database that was created with ENCODING 'UTF8'"
_HINTS = {
    "22P05": f"{UNICODE}, or correct the value at the source and `tailrace resync` the table",
    "25006": "the server takes no writes, as a standby does: use the primary's address",
    "42501": "grant the role CREATE on the database or its schemas, and the ownership of the tables",
    "55P03": "another session has a lock on it: see pg_locks, pg_stat_activity",
    "0A000": "drop the views and foreign keys that depend on the target, then apply again",
    "22001": "the target's column is narrower than the change's; let tailrace create the target's tables",
    "22003": "the target's column is narrower than the change's; let tailrace create the target's tables",
    "22008": "the value is outside the range of PostgreSQL's type; keep the column as string: `types` in "
    "the task file; with `tailrace apply` a mapping, `--tables FILE` (docs/mapping.md)",
    "23502": "a NOT NULL constraint that was added to the target refuses a row; drop it",
    "23503": "a foreign key that was added to the target refuses a row; drop it, or make it "
    "DEFERRABLE INITIALLY DEFERRED if it refers to its own table",
    "23505": "a unique index that was added to the target refuses a row; drop it. Rows may exchange "
    "its values in one batch, unless foreign keys refer to the target with ON DELETE CASCADE or SET",
    "23514": "a CHECK that was added to the target refuses a row; drop it",
    "2BP01": "drop the views and foreign keys that depend on the target, then apply again",
    "42701": "the target already has another column of that name: drop or rename it, then apply again",
    "42703": "a column of the target was dropped or renamed: restore it, or take a new baseline",
    "42P01": "the target was dropped or renamed: restore it, or take a new baseline",
    "42P10": "the primary key that tailrace created is missing in the target; create it again, or take a new "
    "baseline",
    "P0001": "a trigger of the target refuses the result of a batch; drop it, or apply each transaction of "
    "the source separately: `transactional: true`",
    "53100": "free space on the target's disk; nothing was written",
}


_REFUSALS = ("22", "23", "44", "P0")
"""Classes of SQLSTATE: data exceptions, constraints, views with CHECK OPTION, exceptions of triggers."""


@dataclass(frozen=True)
class Database:
    """A PostgreSQL database to write to.

    Attributes:
        url: its address for libpq, which may contain a password.
        schema: the schema of all tables; None: schemas with the names of the source's.
        control: the schema of the progress table and of staging tables.
    """

    url: str = field(repr=False)
    schema: str | None = None
    control: str = CONTROL

    @staticmethod
    def of(url: str) -> Database:
        """Returns the database of an address, in which `?schema=name` is the schema of all tables.

        >>> database = Database.of("postgresql://me@db/shop?schema=lake&sslmode=require")
        >>> database, database.url
        (Database(schema='lake', control='tailrace'), 'postgresql://me@db/shop?sslmode=require')
        """
        plain, _, options = url.partition("?")
        other_options = [one for one in options.split("&") if one and not one.startswith("schema=")]
        given = [one for one in options.split("&") if one.startswith("schema=")]
        schema = unquote(given[-1].removeprefix("schema=")) if given else None
        url = "?".join([plain, "&".join(other_options)]) if other_options else plain
        return Database(url, schema or None)

    @property
    def label(self) -> str:
        """The address for messages: no user, no password."""
        return address(self.url)

    def split(self, table: str) -> tuple[str, str]:
        """Returns schema and name of the target of `schema.name`, or of a name without a schema.

        >>> database = Database.of("postgresql://db/shop?schema=lake")
        >>> database.split("public.orders"), database.split("orders")
        (('lake', 'orders'), ('lake', 'orders'))
        """
        schema, name = split(table)
        return self.schema or schema, name

    def target(self, table: str) -> str:
        """Returns the target of `schema.name` as quoted SQL.

        Raises:
            ConfigError: the schema is missing, or PostgreSQL would truncate the name.
        """
        names = self.split(table)
        if not names[0]:
            raise ConfigError(
                f"{names[1]!r} has no schema",
                where=self.label,
                hint="name the schema: `?schema=NAME` at the end of the target's address",
            )
        check_names(names, table)
        return ".".join(map(quoted, names))

    def control_table(self, name: str) -> str:
        """Returns a table of the control schema as quoted SQL."""
        return f"{quoted(self.control)}.{quoted(name)}"


def check_names(names: Iterable[str], where: str) -> None:
    """Raises ConfigError if PostgreSQL would truncate one of these names."""
    for name in names:
        if len(name.encode()) > NAME_BYTES:
            raise ConfigError(
                f"the name {name!r} has more than {NAME_BYTES} bytes: PostgreSQL would truncate it",
                where=where,
                hint="leave the table out with `exclude`, or use a Delta target",
            )


def number_of(*names: str) -> int:
    """Returns the signed 64-bit number of a named lock."""
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def holds(session: Session, query: str, values: Sequence[object] | None = None) -> bool:
    """Whether the single value that a query returns is true."""
    row = session.execute(query.encode(), values).fetchone()
    return bool(row and row[0])


def exists(session: Session, table: str) -> bool:
    """Whether a relation with the name (quoted SQL) exists."""
    return holds(session, "SELECT to_regclass(%s) IS NOT NULL", (table,))


@contextmanager
def explaining_errors(where: str) -> Iterator[None]:
    """Turns errors of the target's server into ApplyError, and a lost connection into TargetLostError."""
    try:
        yield
    except psycopg.Error as error:
        if is_lost(error):
            message = f"the target does not answer: {str(error).strip()}"
            raise TargetLostError(message, where=where, hint="see the target server's log") from error
        kind = ConstraintError if isinstance(error, psycopg.IntegrityError) else ApplyError
        raise kind(str(error).strip(), where=where, hint=hint_of(error)) from error


def is_refusal(error: psycopg.Error) -> bool:
    """Whether a database refuses rows for their values."""
    return (error.sqlstate or "")[:2] in _REFUSALS


def hint_of(error: psycopg.Error) -> str:
    """Returns the hint for an error of the target's server."""
    return _HINTS.get(error.sqlstate or "", "see the target server's log")


@contextmanager
def open_session(database: Database, where: str) -> Iterator[Session]:
    """Opens a connection to the target in autocommit mode; errors are raised as in `explaining_errors`."""
    try:
        session = connect(database.url)
    except SourceError as error:
        kind = TargetLostError if isinstance(error, ConnectionLostError) else ApplyError
        raise kind(
            f"the target does not answer: {error.what}",
            where=database.label,
            hint=f"{error.hint}; it is the target's address (`target.database`, or `--target`)",
        ) from error
    _answered.add(database.label)
    try:
        with explaining_errors(where):
            session.execute(_DURABLE)
            yield session
    finally:
        session.close()


def answered(database: Database) -> bool:
    """Whether this process has had a connection to the database, so that its address is right."""
    return database.label in _answered


@contextmanager
def locked_session(database: Database, task: str, table: str) -> Iterator[Session]:
    """Opens a connection that locks one table of one task, against all processes, until the block ends."""
    where = f"{database.label}, {table}"
    with open_session(database, where) as session:
        number = number_of("table", task, table)
        session.execute(f"SET lock_timeout = '{_LOCK_WAIT_S}s'".encode())
        try:
            session.execute("SELECT pg_advisory_lock(%s)", (number,))
        except psycopg.errors.LockNotAvailable as error:
            raise ApplyError(
                f"another process has applied to {table} for more than {_LOCK_WAIT_S} s",
                where=where,
                hint="stop it, or SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'",
            ) from error
        guards.check()  # a process that takes over waits for this lock, so the guards are checked under it
        session.execute("SET lock_timeout = 0")
        yield session
