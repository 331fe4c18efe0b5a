"""Findings about tables: can each of them be published, read, and its rows be told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .base import Finding
from .pg_connect import Session, quoted, quoted_table
from .pg_slot import published

_TABLES = """
select t.name, c.relkind, c.relpersistence, c.relreplident,
  exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary),
  has_table_privilege(c.oid, 'SELECT'), pg_has_role(c.relowner, 'USAGE'),
  case when c.relispartition then pg_partition_root(c.oid)::regclass::text end,
  c.relrowsecurity and not pg_has_role(c.relowner, 'USAGE') or c.relforcerowsecurity,
  (select r.rolbypassrls or r.rolsuper from pg_roles r where r.rolname = current_user)
from unnest(%s::text[], %s::text[]) as t(name, quoted) left join pg_class c on c.oid = to_regclass(t.quoted)
"""


@dataclass(frozen=True)
class Question:
    """What is looked at: a connection, the server's address for messages, names of slot and publication,
    tables (`schema.table`), the LSN the log has (None: a new task)."""

    session: Session
    server: str
    slot: str
    publication: str
    tables: Sequence[str]
    after: int | None

    def value(self, sql: str, *args: Any) -> Any:
        """The one value a query gives."""
        row = self.session.execute(sql, args).fetchone()
        return row[0] if row else None


def error(what: str, where: str, cure: str) -> Finding:
    """A finding that keeps the task from starting."""
    return Finding("error", what, where, cure)


def warning(what: str, where: str, cure: str) -> Finding:
    """A finding that does not."""
    return Finding("warning", what, where, cure)


def tables(q: Question) -> Iterator[Finding]:
    """What keeps each table from being captured right."""
    user = q.value("select current_user")
    there = published(q.session, q.publication) or set()
    rows = q.session.execute(_TABLES, (list(q.tables), [quoted_table(table) for table in q.tables]))
    for name, kind, persistence, ident, keyed, readable, owned, root, secured, bypasses in rows.fetchall():
        where, sql = f"{q.server}, {name}", quoted_table(name)
        if kind is None:
            yield error("there is no such table", where, "take it out of the task, or write its name right")
            continue
        if what := _not_a_table(kind, persistence):
            yield error(
                f"{what} cannot be captured: its changes are not in the log", where, _REMEDY[what](sql)
            )
            continue
        if root is not None:
            yield error(
                f"it is a partition of {root}: its changes come under the root's name",
                where,
                f"list {root} in the task instead of {name}",
            )
            continue
        if not readable:
            yield error(f"role {user} may not read it", where, f"GRANT SELECT ON {sql} TO {quoted(user)}")
        if not owned and name not in there:
            yield error(
                f"only its owner can add it to the publication, and {user} is not",
                where,
                f"ALTER TABLE {sql} OWNER TO {quoted(user)}; or as its owner: ALTER PUBLICATION "
                f"{q.publication} ADD TABLE ONLY {sql}",
            )
        if secured and not bypasses:
            yield error(
                "row-level security hides rows from the baseline",
                where,
                f"ALTER ROLE {quoted(user)} BYPASSRLS",
            )
        if ident == "n" or (ident == "d" and not keyed):
            yield warning(
                f"{name} has no replica identity: once published, UPDATE and DELETE on it FAIL at the source",
                where,
                f"ALTER TABLE {sql} REPLICA IDENTITY {'DEFAULT' if keyed else 'FULL'}",
            )


_REMEDY: dict[str, Callable[[str], str]] = {
    "an unlogged table": lambda sql: f"ALTER TABLE {sql} SET LOGGED",
    "a temporary table": lambda sql: "take it out of the task",
    "a foreign table": lambda sql: "capture it at the server where it lives",
    "a view": lambda sql: "list the tables under it",
}


def _not_a_table(kind: str, persistence: str) -> str | None:
    if kind in ("v", "m"):
        return "a view"
    if kind == "f":
        return "a foreign table"
    return {"u": "an unlogged table", "t": "a temporary table"}.get(persistence)
