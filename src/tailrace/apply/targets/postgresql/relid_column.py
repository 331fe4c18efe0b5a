"""The column `relid` of `tailrace_progress`, which tables of earlier releases lack.

Tasks go on without it, each with its own role: only the owner of the table can add it, and nobody waits long
for those who use the table meanwhile (a validation reads it for hours).
"""

from __future__ import annotations

import logging
import time

import psycopg

from ....sources.postgresql.connect import Session

logger = logging.getLogger("tailrace.apply")
COLUMN = "ADD COLUMN IF NOT EXISTS relid oid"
AGAIN_S = 60.0
_NOT_OWNED = (
    "%s does not note the targets' numbers yet, and only its owner can add the column: until then it is not "
    "seen when somebody puts another table under a target's name. As its owner: ALTER TABLE %s ADD COLUMN "
    "relid oid"
)
_tried: dict[tuple[str, str], float] = {}
"""When it was tried last, by database and table."""


def add(session: Session, where: str, table: str) -> bool:
    """Adds the column, unless that failed a moment ago; returns whether it is there now. Within a
    transaction, which goes on without it."""
    key = (where, table)
    if time.monotonic() - _tried.get(key, -AGAIN_S) < AGAIN_S:
        return False
    first = key not in _tried
    _tried[key] = time.monotonic()
    (was,) = session.execute(b"SHOW lock_timeout").fetchone() or ("0",)
    try:
        with session.transaction():
            session.execute(b"SET LOCAL lock_timeout = '500ms'")
            session.execute(f"ALTER TABLE {table} {COLUMN}".encode())
            session.execute(f"SET LOCAL lock_timeout = '{was}'".encode())
    except psycopg.errors.LockNotAvailable:
        return False
    except psycopg.errors.InsufficientPrivilege:
        if first:
            logger.warning(_NOT_OWNED, table, table)
        return False
    del _tried[key]
    return True
