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
    "array_nulls": "on",  # otherwise a target reads NULL in an array as the text NULL
    "quote_all_identifiers": "off",  # of regclass values
    "xmlbinary": "base64",
    "xmloption": "content",
    "client_encoding": "UTF8",
    "search_path": "pg_catalog",  # so that names of types and regclass values do not depend on the role
    "standard_conforming_strings": "on",  # otherwise a backslash in a literal is an escape
    "row_security": "off",  # an error instead of a baseline with silently missing rows
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_read_only": "off",
}
"""Session settings, so that a value has the same text in the stream, in baselines, in the catalog and in
targets.

They also prevent that settings of a database or role for interactive sessions end or block ours.
`lc_monetary` is not set, because it is the currency and the decimals of the database's `money` values.
"""
_SINCE = {"idle_session_timeout": 140000, "transaction_timeout": 170000}
"""Timeouts that end a session, by the first server version that has them; others refuse a connection that
sets them."""

ANEW = "`tailrace resync TASK --new-stream` creates a new slot and loads new baselines of all tables"
"""Hint for lost changes."""
_ODD_TEXT = (
    "find and correct the rows with such text (docs/operating.md, Text that is not UTF-8); if it is in a "
    "change, not in a baseline, `tailrace resync TASK --new-stream` skips that part of the log"
)
_HINTS = {
    "22021": _ODD_TEXT,
    "22P05": _ODD_TEXT,
    "42704": ANEW,
    "42710": "another task with this name has just created it: rename one of them",
    "55006": "another process reads this slot: stop it, or SELECT pg_terminate_backend(active_pid) FROM "
    "pg_replication_slots",
    "25006": "the server accepts no writes, like a standby: use the primary's address",
    "42501": "grant the role the missing rights; `tailrace check` shows the statements",
    "53300": "raise max_connections, max_wal_senders or the role's connection limit",
    "53400": "raise max_replication_slots",
}
_GONE = {"42704"}
_NO_LOG, _NO_LOG_HINT = (
    "55000",
    f"the server invalidated the slot (max_slot_wal_keep_size, idle_replication_slot_timeout): {ANEW}",
)
"""SQL state for a slot whose log was removed, at the command that begins a stream. Other statements return
it for other reasons, e.g. on a standby."""
_PASSING = ("starting up", "shutting down", "recovery mode", "too many", "reserved for", "not yet accepting",
            "standby connections exceeds")  # fmt: skip
_FULL = ("too many", "reserved for")
FULL_S = 60.0
"""Seconds for which a reader, or the stream, waits for a connection if there are too many."""
_STOPPED = {"57014", "53100", "53200", "58030", "55P03"}
"""SQL states of temporary failures: the statement was cancelled; disk or memory is full; the disk failed; a
lock was not available in time."""
_LOST = ("08", "57P0")  # connection exceptions; shutdown, crash, still starting
_REFUSALS = {
    "unsupported startup parameter|(?i:pgbouncer|odyssey|supavisor)": "the address is that of a connection "
    "pooler, which supports neither tailrace's session settings nor replication: use the server's host and "
    "port",
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
"""Hints for refusals that a retry does not solve, by pattern; the first match applies."""


def connect(url: str, **more: str) -> Session:
    """Returns a connection in autocommit mode with the pinned settings.

    Raises:
        ConfigError: the address cannot be parsed.
        UnreachableError: no server answers at the address.
        ConnectionLostError: the server is starting or stopping, or has too many connections.
        SourceError: the connection was refused; a retry would not help.
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
    # Not `from error`, whose text may contain the removed secrets.
    kind, hint = _why(said)
    raise kind(f"cannot connect: {said}", where=address(url), hint=hint)


def connect_when_free(url: str, **more: str) -> Session:
    """Returns `connect`, retried for a while if there are too many connections; readers of a baseline share
    them."""
    end = time.monotonic() + FULL_S
    while True:
        try:
            return connect(url, **more)
        except ConnectionLostError as error:
            if time.monotonic() > end or not any(words in error.what for words in _FULL):
                raise
        time.sleep(0.2)


def _why(said: str) -> tuple[type[SourceError], str]:
    """Returns the error class for a failed connection (whether a retry may help), and a hint."""
    if "FATAL" in said and any(word in said for word in _PASSING):
        return ConnectionLostError, "the connection will be retried; see the server's log"
    for words, hint in _REFUSALS.items():
        if re.search(words, said):
            return SourceError, hint
    if "FATAL" in said:
        return SourceError, "see the server's log, and pg_hba.conf"
    return UnreachableError, "check the host and port of the address, and that the server is running"


def is_lost(error: psycopg.Error) -> bool:
    """Returns whether an error ended the connection: the server was lost, or is starting or stopping.

    >>> is_lost(psycopg.errors.AdminShutdown()), is_lost(psycopg.errors.UniqueViolation())
    (True, False)
    """
    if error.sqlstate:
        return error.sqlstate.startswith(_LOST)
    # A malformed message is a plain DatabaseError; subclasses without a state mean a refused argument.
    return isinstance(error, psycopg.OperationalError) or type(error) is psycopg.DatabaseError


def failure(pg: PGconn, result: PGresult | None) -> psycopg.Error:
    """Returns the error of a call of libpq's functions; without an SQL state, it is a lost connection."""
    if result is not None and result.error_field(DiagnosticField.SQLSTATE):
        return psycopg.errors.error_from_result(result)
    return psycopg.OperationalError(pg.get_error_message())


def refused(error: psycopg.Error, where: str, *, begins: bool = False) -> SourceError:
    """Returns tailrace's error for an error of psycopg.

    PositionError if the slot does not exist or, where a stream `begins`, its log. ConnectionLostError if the
    server was lost, or stopped the statement for a temporary reason.
    """
    what, state = str(error).strip(), error.sqlstate or ""
    if is_lost(error) or state in _STOPPED:
        return ConnectionLostError(what, where=where, hint="it will be retried; see the server's log")
    if begins and state == _NO_LOG:
        return PositionError(what, where=where, hint=_NO_LOG_HINT)
    kind = PositionError if state in _GONE else SourceError
    return kind(what, where=where, hint=_HINTS.get(state, "see the server's log"))


def primary(url: str) -> Session:
    """Returns `connect` for a task that has a stream.

    Raises:
        ConnectionLostError: the server is a standby, which may be about to be promoted after a failover.
    """
    made = connect(url)
    try:
        row = made.execute("select pg_is_in_recovery()").fetchone()
    except psycopg.Error as error:
        made.close()
        raise refused(error, address(url)) from error
    if not row or row[0]:
        made.close()
        raise ConnectionLostError(
            "the server is a standby, or is not promoted yet: the task's stream cannot be read there",
            where=address(url),
            hint="it is retried until it is promoted; if it stays a standby, use the primary's address",
        )
    return made


@contextmanager
def asking(where: str) -> Iterator[None]:
    """Converts psycopg's errors to SourceError."""
    try:
        yield
    except psycopg.Error as error:
        raise refused(error, where) from error


def lsn(text: str) -> int:
    """Returns an LSN in PostgreSQL's notation as a number.

    >>> lsn("1/A0") == (1 << 32) + 160
    True
    """
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(value: int) -> str:
    """Returns an LSN in PostgreSQL's notation.

    >>> lsn_text((1 << 32) + 160)
    '1/A0'
    """
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"


def position_at(value: int) -> bytes:
    """Returns the position at an LSN: 20 bytes, LSN first.

    >>> position_at(lsn("1/A0")).hex()
    '00000001000000a0000000000000000000000000'
    """
    return value.to_bytes(8, "big") + bytes(12)


def lsn_of(position: bytes) -> int:
    """Returns the LSN of a position or LOGADDR."""
    return int.from_bytes(position[:8], "big")


def oid_of(name: str) -> str:
    """Returns SQL for the oid of a table by its quoted name (NULL if it does not exist), in the statement's
    snapshot.

    `to_regclass` may see later changes, and fails if the role may not use the schema.
    """
    return (
        f"(select o.oid from parse_ident({name}) n, pg_namespace s, pg_class o"
        " where s.nspname = n[1] and o.relnamespace = s.oid and o.relname = n[2])"
    )


def quoted(name: str) -> str:
    """Returns an SQL identifier, always quoted.

    >>> quoted('a"b')
    '"a""b"'
    """
    return sql.Identifier(name).as_string()


def quoted_table(table: str) -> str:
    """Returns `schema.table` as quoted SQL.

    >>> quoted_table("shop.orders")
    '"shop"."orders"'
    """
    return ".".join(quoted(part) for part in table.split(".", 1))


def literal(text: str) -> str:
    """Returns an SQL string for statements without parameters, independent of `standard_conforming_strings`.

    >>> literal("it's")
    "'it''s'"
    """
    return sql.Literal(text).as_string().lstrip()
