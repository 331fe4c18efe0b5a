"""Detects partitions that were attached with rows: the stream has only rows that were written after that.

The catalog shows how a partition was created. CREATE TABLE ... PARTITION OF writes the row of pg_inherits in
the transaction that writes the columns, and leaves those unchanged. ATTACH writes it later, and writes each
column again. The xmin of rows shows whether they are older than that.

Rows written to an unlogged partition are not in the log either: it counts as filled once it is logged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from ..base import Partitions
from .connect import Session, oid_of, quoted_table
from .locks import PATIENCE
from .publication import publication_query

_TREE = f"""
with recursive tree as (
  select a.name, i.inhrelid as relid, i.xmin as xid, i.cmin as command
  from unnest(%s::text[], %s::text[]) as a(name, sql)
    join pg_class c on c.oid = {oid_of("a.sql")} and c.relkind = 'p'
    left join pg_inherits i on i.inhparent = c.oid and not i.inhdetachpending
  union all
  select t.name, i.inhrelid, i.xmin, i.cmin
  from tree t join pg_inherits i on i.inhparent = t.relid and not i.inhdetachpending)
select t.name, t.relid::bigint, n.nspname || '.' || c.relname, t.xid::text, t.command::text,
  c.relkind = 'r' and c.relpersistence = 'u', c.relkind = 'f'
from tree t left join pg_class c on c.oid = t.relid left join pg_namespace n on n.oid = c.relnamespace
"""
"""A table without partitions has one row of nulls."""
_LEAVES = """
select l.relid::regclass::text, b.xmin::text = '{xid}',
  b.xmin::text = '{xid}' and exists (select from pg_attribute a
    where a.attrelid = b.attrelid and a.attnum > 0 and a.xmin = b.xmin and a.cmin::text = b.cmin::text)
from pg_attribute b cross join pg_partition_tree(b.attrelid::regclass) l
  join pg_class c on c.oid = l.relid and c.relkind = 'r'
where b.attrelid = {relid}::bigint::oid and b.attnum = -1 and l.isleaf
  and pg_relation_size(l.relid) > 0
"""
"""Selects the non-empty leaves of a partition, whether it was created in the transaction that attached it,
and whether as a partition.

Its system columns are written once, when the table is created.
"""
_OLDER = """
select exists (select from only {leaf} r where r.ctid < '({pages},0)' and (
  not {same} and age(r.xmin) not between 0 and age('{xid}'::xid)
  or r.xmin::text = '{xid}' and r.xmax = 0 and r.cmin::text::bigint < {command}))
"""
"""A row that a later transaction has locked has lost its command id; hence the condition on xmax."""
_ROOTS = f"""
select t.name, n.nspname || '.' || r.relname
from unnest(%s::text[], %s::text[]) as t(name, sql)
  join pg_class c on c.oid = {oid_of("t.sql")} and c.relispartition
  cross join lateral pg_partition_ancestors(c.oid) a
  join members there on there.oid = a.relid and a.relid <> c.oid
  join pg_class r on r.oid = a.relid join pg_namespace n on n.oid = r.relnamespace
"""
PAGES = 4096
"""The number of pages of each leaf that are read: the oldest rows are first, and capture waits for the
result."""


class _Edge(NamedTuple):
    """The attachment of a partition to its parent: the transaction, and its command, that attached it."""

    relid: int
    name: str
    xid: str
    command: str
    unlogged: bool
    foreign: bool

    @property
    def key(self) -> str:
        return self.key_unlogged if self.unlogged else self.key_logged

    @property
    def key_logged(self) -> str:
        return f"{self.relid} {self.xid}"

    @property
    def key_unlogged(self) -> str:
        return f"{self.key_logged} unlogged"

    def logged_since(self, known: Collection[str]) -> bool:
        """Returns whether it was unlogged before; rows written then are not in the log."""
        return not self.unlogged and self.key_unlogged in known

    def new(self, known: Collection[str]) -> bool:
        return self.key_logged not in known and self.key_unlogged not in known


class _BusyError(Exception):
    """The partition is locked, or is being dropped."""


def look(
    session: Session, tables: Mapping[str, str], known: Mapping[str, Collection[str]]
) -> dict[str, Partitions]:
    """Returns the partitions of those tables that are partitioned.

    Args:
        session: any connection.
        tables: the current name by the `schema.table` under which a table is known.
        known: keys of partitions that earlier calls returned. A table that is not in it has no new ones.
    """
    sql = [quoted_table(now) for now in tables.values()]
    found: dict[str, list[_Edge]] = {}
    for name, relid, *said in session.execute(_TREE, (list(tables), sql)):
        found.setdefault(name, []).extend([_Edge(relid, *said)] if relid is not None else [])
    return {t: _judged(session, edges, known.get(t)) for t, edges in found.items()}


def attached(session: Session, publication: str, tables: Mapping[str, str]) -> dict[str, str]:
    """Returns the tables (as in `look`) that are partitions of a published table, with that table, under
    whose name their changes are published."""
    given = (publication, list(tables), [quoted_table(now) for now in tables.values()])
    return dict(session.execute(publication_query(session, _ROOTS), given).fetchall())


def _judged(session: Session, edges: Sequence[_Edge], known: Collection[str] | None) -> Partitions:
    there: dict[str, str] = {}
    filled, unsure = list[str](), list[str]()
    for one in edges:
        if known is not None and one.logged_since(known):
            filled.append(one.name)
        elif known is not None and one.new(known):
            try:
                older = _has_older_rows(session, one)
            except _BusyError:
                continue
            if older is not False:
                (filled if older else unsure).append(one.name)
        there[one.key] = one.name
    return Partitions(there, filled, unsure, foreign=[one.name for one in edges if one.foreign])


def _has_older_rows(session: Session, one: _Edge) -> bool | None:
    """Returns whether a partition has rows from before it was attached; None if the role may not
    read them."""
    given = one._asdict()
    try:
        for leaf, same, made in _rows(session, _LEAVES.format(**given)):
            query = _OLDER.format(leaf=leaf, pages=PAGES, same=same, **given)
            if not made and _rows(session, query)[0][0]:
                return True
    except psycopg.errors.InsufficientPrivilege:
        return None
    except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable) as error:
        raise _BusyError from error
    return False


def _rows(session: Session, query: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a query that does not wait for locks; a locked partition counts as new in the next
    call.

    It is sent as one message, so that no other thread's statement is executed in between.
    """
    cursor = session.execute(f"set local lock_timeout = '{PATIENCE}'; {query}".encode())
    cursor.nextset()
    return cursor.fetchall()
