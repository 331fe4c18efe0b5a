"""Locks of tables: statements with short lock timeouts, and lock holders.

A statement that waits for a lock blocks all later ones, and its own process. So statements that need a lock
are tried for a moment, and again later. Queries of the catalog need none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .connect import Session, oid_of

PATIENCE = "200ms"
"""Lock timeout of a statement."""
PUBLISH_PATIENCE = "1200ms"
"""Lock timeout of a statement that publishes a table: longer than `deadlock_timeout`, after which an
autovacuum is cancelled.

It does not block readers and writers of the table.
"""
READ_PATIENCE = "5s"
"""Lock timeout of a reader of rows, which has a separate connection."""
READ, PUBLISH, ALTER = "AccessShareLock", "ShareUpdateExclusiveLock", "AccessExclusiveLock"
"""The locks for reading, publishing and altering a table."""
_MODES = ("AccessExclusiveLock", "ExclusiveLock", "ShareRowExclusiveLock", "ShareLock",
          "ShareUpdateExclusiveLock", "RowExclusiveLock", "RowShareLock", "AccessShareLock")  # fmt: skip
_CONFLICTS = {READ: _MODES[:1], PUBLISH: _MODES[:5], ALTER: _MODES}
_HOLDERS = f"""
with recursive tree as (
  select a.name, {oid_of("a.sql")} as relid from unnest(%s::text[], %s::text[]) as a(name, sql)
  union all select t.name, i.inhrelid from tree t join pg_inherits i on i.inhparent = t.relid),
held as materialized (select * from pg_locks where granted and pid is distinct from pg_backend_pid())
select distinct t.name, case when l.pid is null then format('the prepared transaction %%L', x.gid)
  else concat('process ', l.pid,
    ' (' || nullif(concat_ws(', ', a.usename, nullif(a.application_name, '')), '') || ')') end,
  case when l.pid is null then format('COMMIT PREPARED %%1$L, or ROLLBACK PREPARED %%1$L', x.gid)
  else format('SELECT pg_terminate_backend(%%s)', l.pid) end,
  a.backend_type is not distinct from 'autovacuum worker',
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
    """A holder of a table's lock.

    Attributes:
        who: the process or prepared transaction.
        end: the statement that ends it.
        vacuums: whether it is an autovacuum.
        seconds: the duration of its transaction; None if the role may not see it.
    """

    who: str
    end: str
    vacuums: bool
    seconds: float | None


def holders(session: Session, tables: Mapping[str, str], wanted: str) -> dict[str, list[Holder]]:
    """Returns the tables (name -> quoted name) with conflicting locks on them or their partitions, and the
    holders."""
    asked = (list(tables), list(tables.values()), list(_CONFLICTS[wanted]))
    found: dict[str, list[Holder]] = {}
    for table, who, end, vacuums, seconds in session.execute(_HOLDERS, asked):
        one = Holder(who, end, vacuums, None if seconds is None else float(seconds))
        found.setdefault(table, []).append(one)
    return found


def said(held: list[Holder]) -> str:
    """Returns that a table is locked and by whom, as text.

    >>> said([Holder("process 7", "SELECT pg_terminate_backend(7)", False, 1.0)])
    'is locked by process 7 (`SELECT pg_terminate_backend(7)` ends that)'
    """
    if not held:
        return "is locked by another session"
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return f"is locked by {held[0].who}{more} (`{held[0].end}` ends that)"


def locked_by(session: Session, sql: str, wanted: str) -> str:
    """Returns that a table (quoted name) is locked and by whom, after its lock was not available."""
    return said(holders(session, {"": sql}, wanted).get("", []))
