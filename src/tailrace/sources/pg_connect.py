"""Connections to PostgreSQL with the settings that fix its text of values; LSNs and positions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..errors import ConnectionLostError, PositionError, SourceError

Session: TypeAlias = psycopg.Connection[tuple[Any, ...]]

PINNED = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "timezone": "UTC",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "search_path": "pg_catalog",  # names of types and of regclass values then do not depend on the role
    "row_security": "off",  # an error instead of a baseline that silently lacks rows
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""Session settings: the same text of the same value in the stream, in baselines and from the catalog."""

_HINTS = {
    "42704": "the slot or publication is gone: a new one starts at now, so run a new baseline",
    "55006": "another process reads this slot: stop it, or SELECT pg_terminate_backend(active_pid) "
    "FROM pg_replication_slots",
    "55000": "the server gave up the slot's log (max_slot_wal_keep_size, invalidation): drop the slot, "
    "run a new baseline",
    "42501": "grant the role what it lacks; the checks at the start name the statements",
    "53300": "raise max_connections, max_wal_senders or the role's connection limit",
    "53400": "raise max_replication_slots",
}
_GONE = {"42704", "55000"}
_PASSING = ("starting up", "shutting down", "recovery mode", "too many", "reserved for", "not yet accepting")
_LOST = ("08", "57P0")  # connection exceptions; shutdown, crash, not yet up


def address(url: str) -> str:
    """A server's address for messages: without user and password.

    >>> address("postgresql://me:secret@db:5433/shop")
    'postgresql://db:5433/shop'
    """
    given = conninfo_to_dict(url)
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{given.get('host') or 'localhost'}{port}/{given.get('dbname') or ''}"


def connect(url: str, **more: str) -> Session:
    """A connection in autocommit mode with the pinned settings; SourceError when the server is not there."""
    given = conninfo_to_dict(url)
    pinned = " ".join(f"-c {name}={value}" for name, value in PINNED.items())
    options = f"{given.get('options') or ''} {pinned}".strip()
    merged = {"application_name": "tailrace", "connect_timeout": "30", **given, **more, "options": options}
    try:
        return psycopg.connect(**merged, autocommit=True)  # type: ignore[arg-type]
    except psycopg.Error as error:
        said = str(error).strip()
        refusal = "FATAL" in said and not any(word in said for word in _PASSING)
        raise (SourceError if refusal else ConnectionLostError)(
            f"cannot connect: {said}",
            where=address(url),
            hint="check the address, pg_hba.conf (replication connections too) and that the server runs",
        ) from error


def refused(what: str, sqlstate: str | None, where: str) -> SourceError:
    """The error for what the server said: PositionError when the slot or its log is gone."""
    if not sqlstate or sqlstate.startswith(_LOST):
        return ConnectionLostError(what.strip(), where=where, hint="it is tried again; see the server's log")
    kind = PositionError if sqlstate in _GONE else SourceError
    return kind(what.strip(), where=where, hint=_HINTS.get(sqlstate, "see the server's log"))


@contextmanager
def asking(where: str) -> Iterator[None]:
    """Turns psycopg's errors into SourceError."""
    try:
        yield
    except psycopg.Error as error:
        raise refused(str(error), error.sqlstate, where) from error


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


def quoted(name: str) -> str:
    """An SQL identifier, quoted always.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: str) -> str:
    """`schema.table` as quoted SQL.

    >>> quoted_table("shop.orders")
    '"shop"."orders"'
    """
    return ".".join(quoted(part) for part in table.split(".", 1))


def literal(text: str) -> str:
    """An SQL string, for statements that take no parameters.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"
