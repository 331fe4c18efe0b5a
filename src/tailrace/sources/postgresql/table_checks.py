"""Findings about tables: whether each can be published and read, and whether its rows can be identified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..base import FOREIGN_PARTITIONS, NO_COLUMNS, OR_LEAVE_OUT, Finding
from . import catalog, leaf_identities, locks
from .connect import Session, oid_of, quoted, quoted_table
from .unselected import not_a_table, remedy

_TABLES = """
select t.name, c.relkind, c.relpersistence,
  exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary),
  case when c.relispartition then pg_partition_root(c.oid)::regclass::text end,
  (select string_agg(quote_ident(a.attname), ', ' order by a.attnum) from pg_attribute a
   where a.attrelid = c.oid and not a.attisdropped and c.relreplident = 'f'
   and current_setting('server_version_num')::int >= 180000
   and a.attgenerated not in ('', coalesce(
     (select to_jsonb(p) ->> 'pubgencols' from pg_publication p where p.pubname = %s), 's'))),
  exists (select from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
    and not a.attisdropped and a.attgenerated = '')
from unnest(%s::text[], %s::text[], %s::text[]) as t(name, schema, relation)
left join (pg_class c join pg_namespace n on n.oid = c.relnamespace)
  on n.nspname = t.schema and c.relname = t.relation
"""
_ODD_LEAVES = f"""
with recursive tree as (
  select t.name, c.oid as relid from unnest(%s::text[], %s::text[]) as t(name, sql)
    join pg_class c on c.oid = {oid_of("t.sql")} and c.relkind = 'p'
  union all select t.name, i.inhrelid from tree t join pg_inherits i on i.inhparent = t.relid)
select t.name, l.oid::regclass::text, l.relkind = 'f' from tree t
  join pg_class l on l.oid = t.relid and (l.relkind = 'f' or l.relkind = 'r' and l.relpersistence = 'u')
order by 1, 2
"""

_KEYS = f"""
select t.name, string_agg(quote_ident(a.attname), ', ' order by a.attnum),
  bool_and(a.attgenerated <> '' and list.columns is null and not server.old), bool_or(server.old)
from unnest(%s::text[], %s::text[]) as t(name, sql)
  join pg_class c on c.oid = {oid_of("t.sql")} and c.relreplident in ('d', 'i')
  join pg_index i on i.indrelid = c.oid and i.indisvalid
    and case c.relreplident when 'd' then i.indisprimary else i.indisreplident end
  join pg_attribute a on a.attrelid = c.oid and a.attnum = any((i.indkey::int2[])[:i.indnkeyatts - 1])
  cross join lateral (select current_setting('server_version_num')::int < 180000 as old) as server
  left join pg_publication p on p.pubname = %s
  left join lateral (
    select nullif(to_jsonb(r) -> 'prattrs', 'null') as columns from pg_publication_rel r
    where r.prrelid = c.oid and r.prpubid = p.oid) as list on true
where case when a.attgenerated <> '' and (server.old or list.columns is null)
    then server.old or coalesce(to_jsonb(p) ->> 'pubgencols', 's') <> a.attgenerated::text
  else list.columns is not null and not list.columns @> to_jsonb(a.attnum) end
group by t.name
"""
"""Selects key columns of changes that the publication does not send.

A publication that tailrace creates sends stored generated columns from PostgreSQL 18 on.
"""


@dataclass(frozen=True)
class Question:
    """The context of a check.

    Attributes:
        session: a connection.
        server: the server's address for messages.
        slot, publication: their names.
        tables: the tables (`schema.table`).
        after: the LSN up to which changes were read; None for a new task.
        begun: whether the task created a slot before.
        settled: whether the slot is idle: neither read by this task nor about to be created again.
        workers: the number of readers of a baseline.
    """

    session: Session
    server: str
    slot: str
    publication: str
    tables: Sequence[str]
    after: int | None
    begun: bool
    settled: bool = True
    workers: int = 0

    def value(self, sql: str, *args: Any) -> Any:
        """Returns the single value of a query."""
        row = self.session.execute(sql, args).fetchone()
        return row[0] if row else None


def error(what: str, where: str, cure: str, table: str | None = None) -> Finding:
    """Returns a finding that prevents the task's start, or the capture of its table."""
    return Finding("error", what, where, cure, table)


def warning(what: str, where: str, cure: str, table: str | None = None) -> Finding:
    """Returns a finding that does not prevent the task's start."""
    return Finding("warning", what, where, cure, table)


def tables(q: Question) -> Iterator[Finding]:
    """Yields the problems that prevent correct capture of each table."""
    parts = [table.partition(".") for table in q.tables]
    given = (q.publication, list(q.tables), [p[0] for p in parts], [p[2] for p in parts])
    rows = q.session.execute(_TABLES, given)
    for name, kind, persistence, keyed, root, unsent, plain in rows.fetchall():
        where, sql = f"{q.server}, {name}", quoted_table(name)
        if kind is None:
            cure = "remove it from the task, or correct its name"
            if name.count(".") > 1:
                cure += " (schema.table; tables of a schema that has a dot in its name cannot be captured)"
            yield error("there is no such table", where, cure, name)
            continue
        if what := not_a_table(kind, persistence):
            said = f"{what} cannot be captured: its changes are not in the log"
            yield error(said, where, remedy(what, name), name)
            continue
        if root is not None:
            yield error(
                f"it is a partition of {root}: its changes are published under the root's name",
                where,
                f"list {root} in the task instead of {name}",
                name,
            )
            continue
        if not plain and not catalog.relation(q.session, name, q.publication, {}).columns:
            yield error(NO_COLUMNS, where, f"add a column, {OR_LEAVE_OUT % name}", name)
            continue
        if unsent:
            yield warning(
                f"{name} has REPLICA IDENTITY FULL and generated columns that are not published ({unsent}): "
                "once published, UPDATE and DELETE on it FAIL at the source",
                where,
                f"ALTER TABLE {sql} REPLICA IDENTITY DEFAULT"
                if keyed
                else "drop the columns, or give the table a key and REPLICA IDENTITY DEFAULT",
                name,
            )
    yield from _locked(q)
    yield from _odd_leaves(q)
    yield from leaf_identities.findings(q.session, q.server, q.tables, begun=q.begun)
    yield from _keys_sent_in_part(q)


def _locked(q: Question) -> Iterator[Finding]:
    held = locks.holders(q.session, {t: quoted_table(t) for t in q.tables}, locks.READ)
    for table, by in held.items():
        what = f"{table} {locks.said(by)}: until then it can be neither published nor read for a baseline"
        yield warning(what, f"{q.server}, {table}", by[0].end, table)


def _odd_leaves(q: Question) -> Iterator[Finding]:
    """Yields findings for partitions that are unlogged or foreign tables, whose changes are not
    in the log."""
    rows = q.session.execute(_ODD_LEAVES, (list(q.tables), [quoted_table(table) for table in q.tables]))
    far: dict[str, list[str]] = {}
    for name, leaf, foreign in rows.fetchall():
        if foreign:
            far.setdefault(name, []).append(leaf)
            continue
        yield warning(
            f"{leaf} is an unlogged partition of {name}: its changes are not in the log; {name} needs a new "
            "baseline once it is logged",
            f"{q.server}, {name}",
            f"ALTER TABLE {leaf} SET LOGGED",
            name,
        )
    for name, leaves in far.items():
        what = FOREIGN_PARTITIONS.format(", ".join(leaves))
        yield warning(what, f"{q.server}, {name}", "capture them at the server that stores them", name)


def _keys_sent_in_part(q: Question) -> Iterator[Finding]:
    names = [quoted_table(table) for table in q.tables]
    for name, columns, generated, old in q.session.execute(_KEYS, (list(q.tables), names, q.publication)):
        publication = quoted(q.publication)
        cure = f"ALTER PUBLICATION {publication} SET (publish_generated_columns = stored)"
        if old:
            cure = f"ALTER TABLE {quoted_table(name)} REPLICA IDENTITY FULL: then all values identify a row"
        elif not generated:
            cure = f"make the publication {publication} send all columns of the table"
        yield error(
            f"its key is not published completely ({columns} is not sent): rows that differ only there would "
            "replace each other",
            f"{q.server}, {name}",
            f"{cure}; {OR_LEAVE_OUT % name}",
            name,
        )


_NAMED = 5
_WITHOUT = f"""
select t.name, l.oid::regclass::text
from unnest(%s::text[], %s::text[]) as t(name, sql)
  join pg_class c on c.oid = {oid_of("t.sql")} and c.relkind in ('r', 'p')
  join pg_class l on l.relkind = 'r' and l.relreplident in ('d', 'i')
    and (l.oid = c.oid or c.relkind = 'p' and c.oid = any(array(select pg_partition_ancestors(l.oid))))
order by 1, 2
"""
"""Selects tables, and the relations that store them, whose old rows are sent by key only."""


def offers(session: Session, server: str, tables: Sequence[str]) -> list[Finding]:
    """Returns a note on the tables whose updates and deletes have no before image; empty if all have one."""
    given = (list(tables), [quoted_table(one) for one in tables])
    rows = session.execute(_WITHOUT, given).fetchall()
    without = sorted({name for name, _ in rows})
    if not without:
        return []
    more = f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
    what = (
        f"updates and deletes of {', '.join(without[:_NAMED])}{more} are sent without the old row: "
        "queries read it from the baseline and from earlier changes, as long as those are kept"
    )
    costs = "each update and delete then also writes the whole old row to the server's log"
    statements = [f"ALTER TABLE {name} REPLICA IDENTITY FULL" for _, name in rows[:_NAMED]]
    cure = f"{'; '.join(statements)}{'; ...' if len(rows) > _NAMED else ''} ({costs})"
    return [Finding("note", what, server, cure)]
