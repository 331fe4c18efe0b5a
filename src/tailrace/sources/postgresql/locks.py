"""Locks of tables: statements that do not queue for them, and who holds them.

A statement that waits for a lock keeps everybody waiting who comes after it. So what tailrace needs a lock
for is tried for a moment, and again later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from .connect import Session, oid_of, quoted_table

PATIENCE = "200ms"
"""How long a statement waits for a lock."""
READ, PUBLISH, ALTER = "AccessShareLock", "ShareUpdateExclusiveLock", "AccessExclusiveLock"
"""The locks that reading a table, publishing it and altering it take."""
_CONFLICTS = {
    READ: ["AccessExclusiveLock"],
    PUBLISH: ["ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock",
              "AccessExclusiveLock"],
    ALTER: ["AccessShareLock", "RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock",
            "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"],
}  # fmt: skip
_HOLDERS = f"""
with recursive tree as (
  select a.name, {oid_of("a.sql")} as relid from unnest(%s::text[], %s::text[]) as a(name, sql)
  union all select t.name, i.inhrelid from tree t join pg_inherits i on i.inhparent = t.relid),
held as (
  select * from pg_locks where granted and pid is distinct from pg_backend_pid())
select distinct t.name, case when l.pid is null then format('the prepared transaction %L', x.gid)
  else format('process %s%s', l.pid,
    ' (' || nullif(concat_ws(', ', a.usename, nullif(a.application_name, '')), '') || ')') end,
  case when l.pid is null then format('COMMIT PREPARED %1$L, or ROLLBACK PREPARED %1$L', x.gid)
  else format('SELECT pg_terminate_backend(%s)', l.pid) end,
  extract(epoch from clock_timestamp() - coalesce(a.xact_start, x.prepared))
from tree t
  join held l on l.locktype = 'relation' and l.relation = t.relid and l.mode = any(%s)
    and l.database = (select oid from pg_database where datname = current_database())
  left join pg_stat_activity a on a.pid = l.pid
  left join held own on l.pid is null and own.pid is null and own.locktype = 'transactionid'
    and own.virtualtransaction = l.virtualtransaction
  left join pg_prepared_xacts x on x.transaction = own.transactionid
order by 1, 2
"""


class Holder(NamedTuple):
    """Who holds a lock of a table: `who`, the statement that ends it, and for how many seconds its
    transaction has run (None: the role may not see that)."""

    who: str
    end: str
    seconds: float | None


def try_now(session: Session, statement: str) -> None:
    """Runs a statement that waits for a lock only for a moment; psycopg's LockNotAvailable then. In one
    message, so no other thread's statement comes between."""
    session.execute(f"set local lock_timeout = '{PATIENCE}'; {statement}".encode())


def holders(session: Session, tables: list[str], wanted: str) -> dict[str, list[Holder]]:
    """Those of the tables (`schema.table`) of which others hold a lock, on them or their partitions, that
    conflicts with the `wanted` one, and these."""
    asked = (tables, [quoted_table(t) for t in tables], _CONFLICTS[wanted])
    found: dict[str, list[Holder]] = {}
    for table, who, end, seconds in session.execute(_HOLDERS, asked):
        found.setdefault(table, []).append(Holder(who, end, None if seconds is None else float(seconds)))
    return found


def locked_by(session: Session, table: str, wanted: str) -> str:
    """Why a lock of a table cannot be had now, in words."""
    held = holders(session, [table], wanted).get(table, [])
    if not held:
        return "it is locked by another session"
    more = f", and {len(held) - 1} more" if len(held) > 1 else ""
    return f"it is locked by {held[0].who}{more}; it is tried again; `{held[0].end}` ends that"


@contextmanager
def unlocked(session: Session, table: str, wanted: str, waits: dict[str, str]) -> Iterator[None]:
    """Notes in `waits` who keeps the block's statements from a table's lock, instead of an error."""
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        waits[table] = locked_by(session, table, wanted)
