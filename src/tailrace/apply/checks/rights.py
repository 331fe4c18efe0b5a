"""The rights that the role of a PostgreSQL target lacks, as one block of SQL for an administrator.

The role works in a schema of tailrace's own and in those of the targets, and owns what it makes there. What
`run` would fail on at once is an error; what DDL, a truncate or a new baseline would, a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ...sources.base import Finding
from ...sources.postgresql.connect import Session, quoted
from ...sources.postgresql.rights import listed, statements
from ...targets.postgresql import progress
from ...targets.postgresql.connection import Database

_ROLE = """
select current_user::text, current_database()::text,
  has_database_privilege(current_database(), 'CREATE'), has_database_privilege(current_database(), 'TEMP')
"""
_SCHEMAS = """
select s.name, n.oid is not null, has_schema_privilege(n.oid, 'USAGE'), has_schema_privilege(n.oid, 'CREATE')
from unnest(%s::text[]) as s(name) left join pg_namespace n on n.nspname = s.name order by 1
"""
_TABLES = """
select t.schema, t.name, pg_has_role(c.relowner, 'USAGE'),
  has_table_privilege(c.oid, 'SELECT') and has_table_privilege(c.oid, 'INSERT')
  and has_table_privilege(c.oid, 'UPDATE') and has_table_privilege(c.oid, 'DELETE')
from unnest(%s::text[], %s::text[]) as t(schema, name)
join pg_namespace n on n.nspname = t.schema
join pg_class c on c.relnamespace = n.oid and c.relname = t.name and c.relkind in ('r', 'p') order by 1, 2
"""
_MAKE = "to make"
_SAID: dict[Literal["error", "warning"], str] = {
    "error": "role {} lacks rights at the target: {}",
    "warning": "role {} lacks rights at the target for DDL, truncates and new baselines: {}",
}


@dataclass(frozen=True)
class _Lack:
    """A right that is lacking: in words, for what kind of thing, its name, the statement that gives it."""

    level: Literal["error", "warning"]
    right: str
    kind: str
    name: str
    cure: str


@dataclass(frozen=True)
class _Table:
    schema: str
    name: str
    owned: bool
    writable: bool


def rights_findings(on: Session, database: Database, targets: Sequence[tuple[str, str]]) -> list[Finding]:
    """What the role of a connection may not do; `targets`: schema and name of each. One finding a level."""
    role, name, creates, temporary = on.execute(_ROLE).fetchone() or ("", "", True, True)
    to, there = quoted(role), _tables(on, database, targets)
    lacks = [*_in_schemas(on, database, targets, there, to, creates), *_on_tables(database, there, to)]
    if not temporary:
        grant = f"GRANT TEMPORARY ON DATABASE {quoted(name)} TO {to}"
        lacks.append(_Lack("error", "to make temporary tables in", "database", name, grant))
    grant = f"GRANT CREATE ON DATABASE {quoted(name)} TO {to};"
    instead = f"\n        -- or, so that {to} makes the schemas: {grant}"
    found = []
    for level, said in _SAID.items():
        if mine := [one for one in lacks if one.level == level]:
            cure = statements([one.cure for one in mine])
            cure += instead if any(one.right == _MAKE for one in mine) else ""
            found.append(Finding(level, said.format(role, _words(mine)), database.label, cure))
    return found


def _words(lacks: Sequence[_Lack]) -> str:
    names: dict[tuple[str, str], list[str]] = {}
    for one in lacks:
        names.setdefault((one.right, one.kind), []).append(one.name)
    return "; ".join(f"{right} {listed(kind, of)}" for (right, kind), of in names.items())


def _in_schemas(
    on: Session,
    database: Database,
    targets: Sequence[tuple[str, str]],
    there: Sequence[_Table],
    to: str,
    creates: bool,
) -> Iterator[_Lack]:
    """What it may not do in the schemas, or make of them."""
    new = {schema for schema, name in targets if (schema, name) not in {(t.schema, t.name) for t in there}}
    names = sorted({database.control, *(schema for schema, _ in targets)})
    for name, exists, usable, fillable in on.execute(_SCHEMAS, (names,)):
        if not exists and not creates:
            yield _Lack("error", _MAKE, "schema", name, f"CREATE SCHEMA {quoted(name)} AUTHORIZATION {to}")
        elif exists and not (usable and fillable):
            at_once = not usable or name in {database.control, *new}
            grant = f"GRANT USAGE, CREATE ON SCHEMA {quoted(name)} TO {to}"
            yield _Lack("error" if at_once else "warning", "to make tables in", "schema", name, grant)


def _on_tables(database: Database, there: Sequence[_Table], to: str) -> Iterator[_Lack]:
    """What it may not do with tables that are there."""
    for one in there:
        table, sql = f"{one.schema}.{one.name}", f"{quoted(one.schema)}.{quoted(one.name)}"
        if one.schema == database.control:
            if not one.writable:  # several roles may share them
                grant = f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE {sql} TO {to}"
                yield _Lack("error", "to write", "table", table, grant)
        elif not one.owned:
            cure = f"ALTER TABLE {sql} OWNER TO {to}"
            yield _Lack("warning" if one.writable else "error", "to own", "table", table, cure)


def _tables(on: Session, database: Database, targets: Sequence[tuple[str, str]]) -> list[_Table]:
    """Those of the targets and of tailrace's own tables that are there."""
    own = [(database.control, name) for name in (progress.TABLE, progress.NOTES)]
    schemas, names = zip(*own, *targets, strict=True)
    return [_Table(*row) for row in on.execute(_TABLES, (list(schemas), list(names)))]
