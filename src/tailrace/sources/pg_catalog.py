"""What PostgreSQL's catalog says: tables by pattern, columns, keys, types; a table's layout now."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from ..change import Relation
from ..errors import ConfigError, SourceError
from ..wire.pgmessages import RelationColumn, RelationMessage
from .pg_connect import Session, quoted_table
from .pg_layout import LiveColumn, LiveTable, TypeInfo, Types, layout

_TABLES = """
select n.nspname || '.' || c.relname,
  c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p'
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f')
  and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
"""
_COLUMNS = """
select attnum, attname, atttypid::bigint, atttypmod,
  case when atthasmissing then array_to_string(attmissingval, '') end, attgenerated, attisdropped
from pg_attribute where attrelid = %s and attnum > 0 order by attnum
"""
_TABLE = """
select c.oid::bigint, n.nspname, c.relname, c.relreplident,
  (select indkey::int2[] from pg_index where indrelid = c.oid and indisprimary and indisvalid),
  (select indkey::int2[] from pg_index where indexrelid = pg_get_replica_identity_index(c.oid))
from pg_class c join pg_namespace n on n.oid = c.relnamespace
"""
_TYPES = """
with recursive asked as (select distinct oid, typmod from unnest(%s::oid[], %s::int[]) as u(oid, typmod)),
chain as (
  select oid, typmod, oid as base, typmod as basemod from asked
  union all
  select c.oid, c.typmod, t.typbasetype, case when t.typtypmod = -1 then c.basemod else t.typtypmod end
  from chain c join pg_type t on t.oid = c.base where t.typtype = 'd')
select c.oid::bigint, c.typmod, format_type(c.oid, c.typmod), t.typname, n.nspname, t.typtype,
  t.typcategory, c.basemod
from chain c join pg_type t on t.oid = c.base join pg_namespace n on n.oid = t.typnamespace
where t.typtype <> 'd'
"""
_KINDS = {"e": "enum", "c": "composite", "r": "range", "m": "multirange"}


def tables(session: Session, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
    """`schema.table` names, sorted.

    Args:
        session: any connection.
        patterns: `schema.table`, or with `*` and `?` as in file names. Wildcards select ordinary permanent
            tables and the roots of partitioned ones; an exact name selects whatever has that name.
        exclude: names or patterns to leave out.

    Raises:
        ConfigError: an exact name that is not there, with the nearest names.
    """
    found: dict[str, bool] = dict(session.execute(_TABLES).fetchall())
    chosen: set[str] = set()
    for pattern in patterns:
        if pattern in found:
            chosen.add(pattern)
        elif any(sign in pattern for sign in "*?["):
            chosen |= {name for name, fit in found.items() if fit and fnmatchcase(name, pattern)}
        else:
            raise _unknown(pattern, found)
    return sorted(name for name in chosen if not any(fnmatchcase(name, out) for out in exclude))


def names(session: Session, relids: Sequence[int]) -> dict[int, str]:
    """`schema.table` by oid, of those that are there."""
    rows = session.execute(
        "select c.oid::bigint, n.nspname || '.' || c.relname from pg_class c"
        " join pg_namespace n on n.oid = c.relnamespace where c.oid = any(%s::oid[])",
        (list(relids),),
    )
    return dict(rows.fetchall())


def _unknown(name: str, found: Iterable[str]) -> ConfigError:
    near = difflib.get_close_matches(name, list(found), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "write schema.table; check the role's database"
    return ConfigError(f"there is no table {name}", where="source.tables", hint=hint)


def live_table(session: Session, relid: int) -> LiveTable:
    """What the catalog says of a table by its oid; without columns when it is gone."""
    row = session.execute(_TABLE + "where c.oid = %s", (relid,)).fetchone()
    if row is None:
        return LiveTable(relid, "", "", "", ())
    columns = tuple(LiveColumn(*each) for each in session.execute(_COLUMNS, (relid,)))
    _, schema, name, identity, primary, index = row
    return LiveTable(relid, schema, name, identity, columns, frozenset(primary or ()), frozenset(index or ()))


def types_of(session: Session, wanted: Iterable[tuple[int, int]]) -> Types:
    """Types by (oid, typmod): domains as their base type, and what kind of conversion reads them."""
    pairs = sorted(set(wanted))
    rows = session.execute(_TYPES, ([oid for oid, _ in pairs], [typmod for _, typmod in pairs]))
    return {
        (oid, typmod): TypeInfo(words, _kind(name, schema, sort, category), basemod)
        for oid, typmod, words, name, schema, sort, category, basemod in rows
    }


def _kind(name: str, schema: str, sort: str, category: str) -> str:
    if sort in _KINDS:
        return _KINDS[sort]
    if category == "A":
        return "array"
    # A type of that name in another schema is another type; citext is an extension wherever it was put.
    return name if schema == "pg_catalog" or name == "citext" else f"{schema}.{name}"


def announced(
    session: Session, message: RelationMessage, previous: Relation | None, overrides: Mapping[str, str]
) -> Relation:
    """The layout that a Relation message of the stream announces."""
    types = types_of(session, ((c.type_oid, c.typmod) for c in message.columns))
    return layout(message, live_table(session, message.relid), types, previous, overrides)


def relation(session: Session, table: str, publication: str | None, overrides: Mapping[str, str]) -> Relation:
    """The layout a table has now, with the columns that the publication sends (all but generated ones when
    the publication does not have the table yet). SourceError when there is no such table."""
    row = session.execute(_TABLE + "where c.oid = to_regclass(%s)", (quoted_table(table),)).fetchone()
    if row is None:
        raise SourceError(f"there is no table {table}", where=table, hint="it was dropped or renamed")
    live = live_table(session, row[0])
    sent = published_columns(session, table, publication)
    columns = [
        c for c in live.columns if not c.dropped and (c.name in sent if sent is not None else not c.generated)
    ]
    key = live.identity_key
    message = RelationMessage(
        live.relid,
        live.schema,
        live.name,
        live.identity,
        tuple(RelationColumn(int(c.attnum in key), c.name, c.type_oid, c.typmod) for c in columns),
    )
    types = types_of(session, ((c.type_oid, c.typmod) for c in columns))
    return layout(message, live, types, None, overrides)


def published_columns(session: Session, table: str, publication: str | None) -> set[str] | None:
    """Names of the columns a publication sends of a table; None when it says nothing (PostgreSQL 14 has no
    column lists, or the publication has no such table). Before PostgreSQL 18 generated columns are named but
    never sent."""
    if publication is None or session.info.server_version < 150000:
        return None
    schema, name = table.split(".", 1)
    row = session.execute(
        "select attnames::text[], array(select attname::text from pg_attribute where attgenerated <> ''"
        " and attrelid = to_regclass(%s) and current_setting('server_version_num')::int < 180000)"
        " from pg_publication_tables where pubname = %s and schemaname = %s and tablename = %s",
        (quoted_table(table), publication, schema, name),
    ).fetchone()
    return None if row is None else set(row[0]) - set(row[1])
