"""Partitions of a table that came with rows: the stream has what is written to a partition while it is one,
not what a table had when it was attached.

The catalog tells how a partition came. CREATE TABLE ... PARTITION OF writes the row of pg_inherits in the
transaction that writes the columns, and leaves those as they are; ATTACH writes it later, and writes each
column once more. Rows tell by their xmin whether they are older than that.

What is written to a partition while it is unlogged is in no log either: it counts as filled once it is
logged.
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
"""The leaves with pages of a partition, whether it was made in the transaction in which it became one, and
whether as one: its system columns are written once, when a table is made."""
_OLDER = """
select exists (select from only {leaf} r where r.ctid < '({pages},0)' and (
  not {same} and age(r.xmin) not between 0 and age('{xid}'::xid)
  or r.xmin::text = '{xid}' and r.xmax = 0 and r.cmin::text::bigint < {command}))
"""
"""A row that a later transaction has locked has lost its command, hence xmax."""
_ROOTS = f"""
select t.name, n.nspname || '.' || r.relname
from unnest(%s::text[], %s::text[]) as t(name, sql)
  join pg_class c on c.oid = {oid_of("t.sql")} and c.relispartition
  cross join lateral pg_partition_ancestors(c.oid) a
  join members there on there.oid = a.relid and a.relid <> c.oid
  join pg_class r on r.oid = a.relid join pg_namespace n on n.oid = r.relnamespace
"""
PAGES = 4096
"""Pages of each leaf that are looked at: the oldest rows come first, and capture waits for the answer."""


class _Edge(NamedTuple):
    """How a partition hangs in its tree: which transaction, and which command of it, attached it."""

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
        """Whether it was unlogged: what was written to it then is in no log."""
        return not self.unlogged and self.key_unlogged in known

    def new(self, known: Collection[str]) -> bool:
        return self.key_logged not in known and self.key_unlogged not in known


class _BusyError(Exception):
    """It is locked, or goes at this moment."""


def look(
    session: Session, tables: Mapping[str, str], known: Mapping[str, Collection[str]]
) -> dict[str, Partitions]:
    """The partitions of those tables that are partitioned.

    Args:
        session: any connection.
        tables: `schema.table` under which a table is known -> its current name.
        known: keys of partitions that earlier looks have found. A table that it does not name has none that
            are new.
    """
    sql = [quoted_table(now) for now in tables.values()]
    found: dict[str, list[_Edge]] = {}
    for name, relid, *said in session.execute(_TREE, (list(tables), sql)):
        found.setdefault(name, []).extend([_Edge(relid, *said)] if relid is not None else [])
    return {t: _judged(session, edges, known.get(t)) for t, edges in found.items()}


def attached(session: Session, publication: str, tables: Mapping[str, str]) -> dict[str, str]:
    """Those of the tables (as for `look`) that are partitions of a table which a publication has, and that
    one: it publishes their changes as its own."""
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
    """Whether a partition has rows from before it was attached; None if they may not be read."""
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
    """The rows of a query that does not wait for locks: a partition that is locked is new for the next look,
    too. In one message, so no other thread's statement comes between."""
    cursor = session.execute(f"set local lock_timeout = '{PATIENCE}'; {query}".encode())
    cursor.nextset()
    return cursor.fetchall()
