"""The column `relid` of `tailrace_progress`, which tables of earlier releases lack.

Tasks go on without it, each with its own role: only the owner of the table can add it, and nobody waits long
for those who use the table meanwhile (a validation reads it for hours).
"""

from __future__ import annotations

import time

import psycopg

from ....sources.postgresql.connect import Session
from .place import holds

COLUMN = "ADD COLUMN IF NOT EXISTS relid oid"
AGAIN_S = 60.0
NOT_OWNED = (
    "{} does not note the targets' numbers yet, and only its owner can add the column: until then it is not "
    "seen when somebody puts another table under a target's name"
)
CURE = "as its owner: ALTER TABLE {} ADD COLUMN relid oid"
_LACKING = """
select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname = %s and c.relname = %s and not pg_has_role(c.relowner, 'USAGE')
  and not exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'relid'))
"""
_tried: dict[tuple[str, str], float] = {}
"""When it was tried last, by database and table."""


def not_owned(session: Session, schema: str, table: str) -> bool:
    """Returns whether a table of progress has no such column, and the role may not add it."""
    return holds(session, _LACKING, (schema, table))


def add(session: Session, where: str, table: str) -> bool:
    """Adds the column, unless that failed a moment ago; returns whether it is there now. Within a
    transaction, which goes on without it."""
    key = (where, table)
    if time.monotonic() - _tried.get(key, -AGAIN_S) < AGAIN_S:
        return False
    _tried[key] = time.monotonic()
    (was,) = session.execute(b"SHOW lock_timeout").fetchone() or ("0",)
    try:
        with session.transaction():
            session.execute(b"SET LOCAL lock_timeout = '500ms'")
            session.execute(f"ALTER TABLE {table} {COLUMN}".encode())
            session.execute(f"SET LOCAL lock_timeout = '{was}'".encode())
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):  # see `not_owned`
        return False
    del _tried[key]
    return True
