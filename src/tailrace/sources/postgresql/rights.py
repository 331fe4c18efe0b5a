"""The missing rights of the role, as one block of SQL for an administrator: the minimum that a task needs.

There are two ways to a publication. An administrator creates it, and the role only needs REPLICATION, USAGE
and SELECT. Or the role creates it, and needs CREATE on the database and membership in the tables' owners.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..base import Finding
from .connect import quoted, quoted_table
from .slot import options, owned, published
from .table_checks import Question, error

_TABLES = """
select t.schema || '.' || t.name, has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT'),
  pg_has_role(c.relowner, 'USAGE'), o.rolname, o.rolsuper,
  c.relrowsecurity and not pg_has_role(c.relowner, 'USAGE') or c.relforcerowsecurity
from unnest(%s::text[], %s::text[]) as t(schema, name)
join pg_namespace n on n.nspname = t.schema
join pg_class c on c.relnamespace = n.oid and c.relname = t.name and c.relkind in ('r', 'p')
join pg_roles o on o.oid = c.relowner
"""


@dataclass(frozen=True)
class _Table:
    name: str
    usable: bool
    readable: bool
    owned: bool
    owner: str
    mighty: bool
    secured: bool


def rights(q: Question) -> Iterator[Finding]:
    """Yields one finding with all missing rights."""
    row = q.session.execute(
        "select current_user, current_database(), rolsuper, rolbypassrls, rolreplication or exists"
        " (select from pg_roles a where a.rolname = 'rds_replication'"
        " and pg_has_role(a.oid, 'MEMBER')) from pg_roles where rolname = current_user"
    ).fetchone()
    user, database, superuser, sees_all, replicates = row or ("", "", False, False, False)
    if superuser:
        return
    parts = [table.partition(".") for table in q.tables]
    rows = q.session.execute(_TABLES, ([p[0] for p in parts], [p[2] for p in parts]))
    tables = [_Table(*r) for r in rows]
    lacks: list[str] = []
    block: list[str] = []
    to = quoted(user)
    if not replicates:
        lacks.append("to replicate")
        block.append(f"ALTER ROLE {to} WITH REPLICATION")
    if schemas := sorted({t.name.partition(".")[0] for t in tables if not t.usable}):
        lacks.append(f"to use {listed('schema', schemas)}")
        block.append(f"GRANT USAGE ON SCHEMA {', '.join(map(quoted, schemas))} TO {to}")
    if unread := [t.name for t in tables if not t.readable]:
        lacks.append(f"to read {listed('table', unread)}")
        block.append(f"GRANT SELECT ON TABLE {', '.join(map(quoted_table, unread))} TO {to}")
    if hidden := [t.name for t in tables if t.secured and not sees_all]:
        lacks.append(f"to read the rows hidden by row-level security of {listed('table', hidden)}")
        block.append(f"ALTER ROLE {to} WITH BYPASSRLS")
    more = _publication(q, tables, lacks, block, to, database)
    if lacks:
        sql = statements(block)
        what = f"role {user} has insufficient rights: {'; '.join(lacks)}"
        yield error(what, q.server, sql + more)


def _publication(
    q: Question, tables: Sequence[_Table], lacks: list[str], block: list[str], to: str, database: str
) -> str:
    """Adds the missing rights to publish the tables; returns the alternative as an SQL comment."""
    there = published(q.session, q.publication)
    lacking = [t for t in tables if t.name not in (there or ())]
    foreign = [t for t in lacking if not t.owned]
    makes = there is None and not q.value("select has_database_privilege(current_database(), 'CREATE')")
    alters = there is not None and bool(lacking) and not owned(q.session, q.publication)
    if not (foreign or makes or alters):
        return ""
    names = ", ".join(f"ONLY {quoted_table(t.name)}" for t in lacking)
    if there is None:
        lacks.append(f"to create the publication {q.publication}")
        block.append(f"CREATE PUBLICATION {quoted(q.publication)} FOR TABLE {names} {options(q.session)}")
    else:
        lacks.append(f"to publish {listed('table', [t.name for t in lacking])}")
        block.append(f"ALTER PUBLICATION {quoted(q.publication)} ADD TABLE {names}")
    if alters or any(t.mighty for t in foreign):
        return ""  # a member of a superuser may do anything
    grants = [f"GRANT CREATE ON DATABASE {quoted(database)} TO {to};"] if makes else []
    grants += [f"GRANT {quoted(owner)} TO {to};" for owner in sorted({t.owner for t in foreign})]
    return f"\n        -- or, instead of the last statement, so that {to} does it: {' '.join(grants)}"


def statements(block: Sequence[str]) -> str:
    """Returns statements as the lines of a finding's cure."""
    return ";\n        ".join(block) + ";"


def listed(kind: str, names: Sequence[str]) -> str:
    """Returns some names and their number.

    >>> listed("table", ["s.a"]), listed("table", list("abcde"))
    ('table s.a', '5 tables (a, b, c, ...)')
    """
    if len(names) == 1:
        return f"{kind} {names[0]}"
    return f"{len(names)} {kind}s ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
