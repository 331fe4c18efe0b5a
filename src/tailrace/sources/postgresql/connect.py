"""Connections to PostgreSQL with settings that fix its text output; LSNs and positions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGconn, PGresult

from ...errors import ConnectionLostError, PositionError, SourceError, UnreachableError
from .address import address, parsed, secrets

Session: TypeAlias = psycopg.Connection[tuple[Any, ...]]

PINNED = {
    "datestyle": "ISO,YMD",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "timezone": "UTC",
    "bytea_output": "hex",
    "array_nulls": "on",  # otherwise NULL in an array is the text NULL when a target reads it
    "quote_all_identifiers": "off",  # of regclass values
    "xmlbinary": "base64",
    "xmloption": "content",
    "client_encoding": "UTF8",
    "search_path": "pg_catalog",  # names of types and of regclass values then do not depend on the role
    "standard_conforming_strings": "on",  # otherwise a backslash in one of our literals is an escape
    "row_security": "off",  # an error instead of a baseline that silently lacks rows
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_read_only": "off",
}
"""Session settings: the same text for the same value in the stream, in baselines, from the catalog and in
targets; nothing that a database or a role has for people's sessions ends or hinders ours. Not `lc_monetary`:
it is the currency and the decimals of the database's own `money` values."""
_SINCE = {"idle_session_timeout": 140000, "transaction_timeout": 170000}
"""Timeouts that end a session -> the first server that knows them: others refuse a connection that names
them."""

ANEW = "`tailrace resync TASK --new-stream` creates a new slot and takes new baselines of all tables"
"""The remedy when changes are lost."""
_ODD_TEXT = (
    "find the rows with such text, and correct them (docs/operating.md, Text that is not UTF-8); if a change "
    "has it, not a baseline, `tailrace resync TASK --new-stream` leaves out the log that has it"
)
_HINTS = {
    "22021": _ODD_TEXT,
    "22P05": _ODD_TEXT,
    "42704": ANEW,
    "42710": "another task of this name has just created it: give one of them another name",
    "55006": "another process reads this slot: stop it, or SELECT pg_terminate_backend(active_pid) FROM "
    "pg_replication_slots",
    "25006": "the server takes no writes, as a standby does: use the primary's address",
    "42501": "grant the role the missing rights; `tailrace check` names the statements",
    "53300": "raise max_connections, max_wal_senders or the role's connection limit",
    "53400": "raise max_replication_slots",
}
_GONE = {"42704"}
_NO_LOG, _NO_LOG_HINT = (
    "55000",
    f"the server invalidated the slot (max_slot_wal_keep_size, idle_replication_slot_timeout): {ANEW}",
)
"""The error for a slot whose log is gone, at the command that begins a stream. Other statements have it for
other reasons: a standby has no end of a log of its own."""
_PASSING = ("starting up", "shutting down", "recovery mode", "too many", "reserved for", "not yet accepting",
            "standby connections exceeds")  # fmt: skip
_FULL = ("too many", "reserved for")
FULL_S = 60.0
"""Seconds for which a reader, or the stream, waits for a connection where there are too many."""
_STOPPED = {"57014", "53100", "53200", "58030", "55P03"}
"""Somebody cancelled the statement; the server's disk or memory is full; its disk failed; a lock was not to
be had in time."""
_LOST = ("08", "57P0")  # connection exceptions; shutdown, crash, still starting
_REFUSALS = {
    "unsupported startup parameter|(?i:pgbouncer|odyssey|supavisor)": "the address is a connection pooler's, "
    "which takes neither tailrace's session settings nor a replication connection: use the server's own host "
    "and port",
    "does not support SSL": "turn `ssl` on at the server, or use a weaker `sslmode` than `require`",
    r"certificate|private key|SSL error: (?!unexpected eof)": "check `sslmode`, `sslrootcert` (the authority "
    "that signed the server's certificate), the host's name in it, `sslcert` and `sslkey`",
    "no pg_hba.conf entry": "add the role, the database and this machine to pg_hba.conf (`host`, `hostssl`); "
    "for the stream the role needs a line for its database, not for `replication`",
    "password|fe_sendauth|SCRAM|authentication": "correct the password: `${NAME}` or `?passfile=` in "
    "the address, PGPASSWORD or ~/.pgpass",
    'role ".*" does not exist': "create the role, or correct its name in the address",
    'database ".*" does not exist': "correct the database's name in the address",
}
"""Refusals that a retry does not cure -> what does; the first match applies."""


def connect(url: str, **more: str) -> Session:
    """A connection in autocommit mode with the pinned settings.

    Raises:
        ConfigError: the address cannot be read.
        UnreachableError: nobody answers there.
        ConnectionLostError: the server is just starting or stopping, or has no room.
        SourceError: it refuses, or we refuse it: trying again would not help.
    """
    given = parsed(url)
    pinned = " ".join(f"-c {name}={value}" for name, value in PINNED.items())
    options = f"{given.get('options') or ''} {pinned}".strip()
    merged = {"application_name": "tailrace", "connect_timeout": "30", **given, **more, "options": options}
    try:
        made = psycopg.connect(**merged, autocommit=True)  # type: ignore[arg-type]
        known = [name for name, since in _SINCE.items() if made.info.server_version >= since]
        try:
            if known:
                made.execute("; ".join(f"SET {name} = 0" for name in known).encode())
        except psycopg.Error:
            made.close()
            raise
        return made
    except psycopg.Error as error:
        said = str(error).strip()
        for secret in secrets(url):
            said = said.replace(secret, "***")
    # Not `from error`: its own text may have what was taken out here.
    kind, hint = _why(said)
    raise kind(f"cannot connect: {said}", where=address(url), hint=hint)


def connect_when_free(url: str, **more: str) -> Session:
    """`connect`, again and again for a while where there are too many connections: readers of a baseline
    share those that are allowed."""
    end = time.monotonic() + FULL_S
    while True:
        try:
            return connect(url, **more)
        except ConnectionLostError as error:
            if time.monotonic() > end or not any(words in error.what for words in _FULL):
                raise
        time.sleep(0.2)


def _why(said: str) -> tuple[type[SourceError], str]:
    """The meaning of a connection failure: whether a retry may help, and if not, what to do."""
    if "FATAL" in said and any(word in said for word in _PASSING):
        return ConnectionLostError, "it will be retried; see the server's log"
    for words, hint in _REFUSALS.items():
        if re.search(words, said):
            return SourceError, hint
    if "FATAL" in said:
        return SourceError, "see the server's log, and pg_hba.conf"
    return UnreachableError, "check the address's host and port, and that the server runs"


def is_lost(error: psycopg.Error) -> bool:
    """Whether an error ended the connection: the server went away, or is starting or stopping.

    >>> is_lost(psycopg.errors.AdminShutdown()), is_lost(psycopg.errors.UniqueViolation())
    (True, False)
    """
    if error.sqlstate:
        return error.sqlstate.startswith(_LOST)
    # A message that makes no sense is a plain one; others are psycopg's own: it refused an argument.
    return isinstance(error, psycopg.OperationalError) or type(error) is psycopg.DatabaseError


def failure(pg: PGconn, result: PGresult | None) -> psycopg.Error:
    """The error that a call of libpq's own functions came to; one that the server does not name is a lost
    connection."""
    if result is not None and result.error_field(DiagnosticField.SQLSTATE):
        return psycopg.errors.error_from_result(result)
    return psycopg.OperationalError(pg.get_error_message())


def refused(error: psycopg.Error, where: str, *, begins: bool = False) -> SourceError:
    """What tailrace raises for an error of psycopg: PositionError if the slot is gone or, where a stream
    `begins`, its log, ConnectionLostError if the server is, or stopped what was asked for a reason that
    passes."""
    what, state = str(error).strip(), error.sqlstate or ""
    if is_lost(error) or state in _STOPPED:
        return ConnectionLostError(what, where=where, hint="it will be retried; see the server's log")
    if begins and state == _NO_LOG:
        return PositionError(what, where=where, hint=_NO_LOG_HINT)
    kind = PositionError if state in _GONE else SourceError
    return kind(what, where=where, hint=_HINTS.get(state, "see the server's log"))


def primary(url: str) -> Session:
    """`connect`, for a task that has a stream: after a failover the address may reach a standby that is about
    to be promoted. That is a ConnectionLostError."""
    made = connect(url)
    try:
        row = made.execute("select pg_is_in_recovery()").fetchone()
    except psycopg.Error as error:
        made.close()
        raise refused(error, address(url)) from error
    if not row or row[0]:
        made.close()
        raise ConnectionLostError(
            "the server is a standby, or is not promoted yet: the task's stream is not to be read there",
            where=address(url),
            hint="it is retried until it is promoted; if it is to stay a standby: use the primary's address",
        )
    return made


@contextmanager
def asking(where: str) -> Iterator[None]:
    """Turns psycopg's errors into SourceError."""
    try:
        yield
    except psycopg.Error as error:
        raise refused(error, where) from error


def lsn(text: str) -> int:
    """An LSN as PostgreSQL prints it, as a number.

    >>> lsn("1/A0") == (1 << 32) + 160
    True
    """
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(value: int) -> str:
    """An LSN as PostgreSQL prints it.

    >>> lsn_text((1 << 32) + 160)
    '1/A0'
    """
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"


def position_at(value: int) -> bytes:
    """The position at an LSN: 20 bytes, LSN first.

    >>> position_at(lsn("1/A0")).hex()
    '00000001000000a0000000000000000000000000'
    """
    return value.to_bytes(8, "big") + bytes(12)


def lsn_of(position: bytes) -> int:
    """The LSN of a position or LOGADDR."""
    return int.from_bytes(position[:8], "big")


def oid_of(name: str) -> str:
    """SQL of the oid of the table whose quoted name an expression gives (NULL: there is none), as of the
    statement's snapshot. `to_regclass` is ahead of that, and fails where the role may not use the schema."""
    return (
        f"(select o.oid from parse_ident({name}) n, pg_namespace s, pg_class o"
        " where s.nspname = n[1] and o.relnamespace = s.oid and o.relname = n[2])"
    )


def quoted(name: str) -> str:
    """An SQL identifier, always quoted.

    >>> quoted('a"b')
    '"a""b"'
    """
    return sql.Identifier(name).as_string()


def quoted_table(table: str) -> str:
    """`schema.table` as quoted SQL.

    >>> quoted_table("shop.orders")
    '"shop"."orders"'
    """
    return ".".join(quoted(part) for part in table.split(".", 1))


def literal(text: str) -> str:
    """An SQL string, for statements that take no parameters, whatever `standard_conforming_strings` is.

    >>> literal("it's")
    "'it''s'"
    """
    return sql.Literal(text).as_string().lstrip()
