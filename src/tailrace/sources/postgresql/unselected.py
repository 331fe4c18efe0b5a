"""Relations that wildcards leave out: they have no changes in the log, or could no longer be changed once
published.

PostgreSQL refuses UPDATE and DELETE of a published table without a replica identity. For a partitioned table,
its leaves decide.
"""

from __future__ import annotations

from ..base import LeftOut
from .connect import Session, quoted, quoted_table

_LEFT_OUT = """
with recursive every as (
  select c.oid, n.nspname || '.' || c.relname as name, c.relkind, c.relpersistence, c.relispartition,
    c.relreplident, pg_has_role(c.relowner, 'USAGE') as alters, c.relreplident = 'f' or exists (
      select from pg_index i where i.indrelid = c.oid and i.indisvalid and i.indimmediate
        and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end) as identified
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'),
tree as (
  select oid as root, oid as relid from every where relkind = 'p' and not relispartition
  union all select t.root, i.inhrelid from tree t join pg_inherits i on i.inhparent = t.relid),
leaves as (
  select t.root, count(*) as many, min(l.name) filter (where not l.identified) as leaf,
    min(l.relreplident::text) filter (where not l.identified) as ident
  from tree t join every l on l.oid = t.relid and l.relkind = 'r' group by t.root)
select e.name, e.relkind, e.relpersistence, e.alters, leaf, coalesce(ident, e.relreplident::text)
from every e left join leaves on root = e.oid
where not e.relispartition and (e.relkind not in ('r', 'p') or e.relpersistence <> 'p'
  or case when many > 0 then leaf is not null else not e.identified end)
"""
"""Reads only the catalog: no function in it opens a table or waits for a lock."""
_WHY = {
    "d": "no primary key, or a deferrable one",
    "i": "the index of its replica identity was dropped",
    "n": "REPLICA IDENTITY NOTHING",
}
_FULL = (
    "let tailrace set REPLICA IDENTITY FULL: `tables: {'%s': {identity: full}}` in the task file; "
    "or create a primary key"
)
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
_REMEDIES = {
    "a view": "list the tables under it",
    "a materialized view": "list the tables under it",
    "a foreign table": "capture it at the server that stores it",
    "an unlogged table": "ALTER TABLE %s SET LOGGED",
}


def left_out(session: Session) -> dict[str, LeftOut]:
    """Returns the relations that no wildcard selects by name, with the reason."""
    found = {}
    for name, kind, persistence, alters, leaf, ident in session.execute(_LEFT_OUT):
        if what := not_a_table(kind, persistence):
            found[name] = LeftOut(what, remedy(what, name))
            continue
        whose = f"its partition {leaf}" if leaf else "it"
        why = f"{whose} has no replica identity ({_WHY[ident]}): UPDATE and DELETE would fail at the source"
        sql = f"ALTER TABLE {quoted_table(leaf or name)} REPLICA IDENTITY FULL"
        found[name] = LeftOut(why, _FULL % name, identity=True, by_owner="" if alters else sql)
    return found


def not_a_table(kind: str, persistence: str) -> str | None:
    """Returns the kind of a relation whose changes are not in the log; None for a table that can
    be captured."""
    return _KINDS.get(kind) or ("an unlogged table" if persistence == "u" else None)


def remedy(what: str, name: str) -> str:
    """Returns how to capture a relation of a kind.

    >>> remedy("an unlogged table", "s.a"), remedy("a view", "s.a")
    ('ALTER TABLE "s"."a" SET LOGGED', 'list the tables under it')
    """
    said = _REMEDIES[what]
    return said % quoted_table(name) if "%s" in said else said


_NOT_FULL = """
with recursive tree as (
  select t.name, c.oid as relid from unnest(%s::text[], %s::text[], %s::text[]) as t(name, schema, relation)
    join pg_namespace n on n.nspname = t.schema
    join pg_class c on c.relnamespace = n.oid and c.relname = t.relation
  union all select t.name, i.inhrelid from tree t join pg_inherits i on i.inhparent = t.relid
    join pg_class p on p.oid = t.relid and p.relkind = 'p')
select t.name, n.nspname, c.relname from tree t join pg_class c on c.oid = t.relid
  join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence = 'p' and c.relreplident <> 'f' order by 1, 2, 3
"""


def not_full(session: Session, tables: list[str]) -> dict[str, list[str]]:
    """Returns tables that have no full replica identity, or such partitions, with the quoted names of
    relations to alter."""
    parts = [t.partition(".") for t in tables]
    rows = session.execute(_NOT_FULL, (tables, [p[0] for p in parts], [p[2] for p in parts]))
    found: dict[str, list[str]] = {}
    for table, schema, name in rows:
        found.setdefault(table, []).append(f"{quoted(schema)}.{quoted(name)}")
    return found
