"""The missing rights of the role of a PostgreSQL target, as one block of SQL for an administrator.

The role works in tailrace's schema and in the schemas of the targets, and owns the tables that it creates. A
missing right that `run` needs is an error; one that only DDL, a truncate or a new baseline needs is a
warning.
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
_CREATE = "to create"
_MESSAGES: dict[Literal["error", "warning"], str] = {
    "error": "role {} has insufficient rights at the target: {}",
    "warning": "role {} has insufficient rights at the target for DDL, truncates and new baselines: {}",
}


@dataclass(frozen=True)
class _MissingRight:
    """A missing right: its label, the kind and the name of the object, and the statement that grants it."""

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
    """Findings about missing rights of a connection's role, one for each level.

    `targets`: schema and name of each target.
    """
    role, name, creates, temporary = on.execute(_ROLE).fetchone() or ("", "", True, True)
    to, existing = quoted(role), _tables(on, database, targets)
    missing = [
        *_in_schemas(on, database, targets, existing, to, creates),
        *_on_tables(database, existing, to),
    ]
    if not temporary:
        grant = f"GRANT TEMPORARY ON DATABASE {quoted(name)} TO {to}"
        missing.append(_MissingRight("error", "to create temporary tables in", "database", name, grant))
    grant = f"GRANT CREATE ON DATABASE {quoted(name)} TO {to};"
    instead = f"\n        -- or, so that {to} creates the schemas: {grant}"
    found = []
    for level, message in _MESSAGES.items():
        if mine := [one for one in missing if one.level == level]:
            cure = statements([one.cure for one in mine])
            cure += instead if any(one.right == _CREATE for one in mine) else ""
            found.append(Finding(level, message.format(role, _labels(mine)), database.label, cure))
    return found


def _labels(missing: Sequence[_MissingRight]) -> str:
    by_right: dict[tuple[str, str], list[str]] = {}
    for one in missing:
        by_right.setdefault((one.right, one.kind), []).append(one.name)
    return "; ".join(f"{right} {listed(kind, names)}" for (right, kind), names in by_right.items())


def _in_schemas(
    on: Session,
    database: Database,
    targets: Sequence[tuple[str, str]],
    existing: Sequence[_Table],
    to: str,
    creates: bool,
) -> Iterator[_MissingRight]:
    """Missing rights to use and create the schemas."""
    new = {schema for schema, name in targets if (schema, name) not in {(t.schema, t.name) for t in existing}}
    names = sorted({database.control, *(schema for schema, _ in targets)})
    for name, exists, usable, fillable in on.execute(_SCHEMAS, (names,)):
        if not exists and not creates:
            yield _MissingRight(
                "error", _CREATE, "schema", name, f"CREATE SCHEMA {quoted(name)} AUTHORIZATION {to}"
            )
        elif exists and not (usable and fillable):
            at_once = not usable or name in {database.control, *new}
            grant = f"GRANT USAGE, CREATE ON SCHEMA {quoted(name)} TO {to}"
            yield _MissingRight(
                "error" if at_once else "warning", "to create tables in", "schema", name, grant
            )


def _on_tables(database: Database, existing: Sequence[_Table], to: str) -> Iterator[_MissingRight]:
    """Missing rights on existing tables."""
    for one in existing:
        table, sql = f"{one.schema}.{one.name}", f"{quoted(one.schema)}.{quoted(one.name)}"
        if one.schema == database.control:
            if not one.writable:  # several roles may share them
                grant = f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE {sql} TO {to}"
                yield _MissingRight("error", "to write", "table", table, grant)
        elif not one.owned:
            cure = f"ALTER TABLE {sql} OWNER TO {to}"
            yield _MissingRight("warning" if one.writable else "error", "to own", "table", table, cure)


def _tables(on: Session, database: Database, targets: Sequence[tuple[str, str]]) -> list[_Table]:
    """The existing tables among the targets and tailrace's own tables."""
    own = [(database.control, name) for name in (progress.TABLE, progress.NOTES)]
    schemas, names = zip(*own, *targets, strict=True)
    return [_Table(*row) for row in on.execute(_TABLES, (list(schemas), list(names)))]
