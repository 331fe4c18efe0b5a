"""Queries PostgreSQL's catalog: tables by pattern, columns, keys, types, and a table's current layout."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import ConfigError, TableMovedError
from ...model.change import PARTLY, Relation
from ...model.nearest import meant
from ...model.patterns import fits, is_pattern
from ...wire.pgmessages import RelationColumn, RelationMessage
from .column_identity import Bracket, LiveColumn, LiveTable, Look, Moment, Timeline, XidSnapshot
from .connect import Session, oid_of, quoted_table
from .layout import TypeInfo, Types, catalogued, layout, unknown
from .publication import publication_query

logger = logging.getLogger("tailrace.capture")

_TABLES = """
select n.nspname || '.' || c.relname,
  c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p'
    and position('.' in n.nspname) = 0
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f')
  and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
"""
_TEMPORARY = "select 1 from pg_class where relname = %s and relpersistence = 't' and relkind in ('r', 'p')"
_LEAVES = """
with recursive tree as (
  select c.oid as relid
  union all select i.inhrelid from tree t
    join pg_inherits i on i.inhparent = t.relid and not i.inhdetachpending)
"""
"""The tree of a partitioned table; `pg_partition_tree` would wait for a lock of each partition."""
_FILE = f"""
case when c.relkind = 'p' then ({_LEAVES}
  select coalesce(hashtextextended(string_agg(l.oid || ':' || l.relfilenode, ',' order by l.oid), 0), 0)
  from tree p join pg_class l on l.oid = p.relid where l.relkind <> 'p')
else c.relfilenode::bigint end
"""
"""A number that changes with each rewrite of the table or of one of its partitions; 0 if unknown."""
_MISSING = f"""
case when a.atthasmissing then array_to_string(a.attmissingval, '')
when c.relkind = 'p' then ({_LEAVES}
  select case when count(*) = count(l.attmissingval) and count(distinct l.attmissingval::text) = 1
    then min(array_to_string(l.attmissingval, '')) end
  from tree p join pg_class k on k.oid = p.relid and k.relkind <> 'p'
    join pg_attribute l on l.attrelid = p.relid and l.attname = a.attname
    join pg_attribute born on born.attrelid = p.relid and born.attnum = -1
  where not a.attisdropped and l.xmin::text <> born.xmin::text)
end
"""
"""The value of a column in older rows. For a partitioned table, the value in all leaves to which the column
was added.

A leaf that was created with the column, by the transaction that wrote its system columns, has its own values.
"""
_KEY = "(indkey::int2[])[:indnkeyatts - 1]"
"""The columns of an index that identify rows, without included ones (INCLUDE)."""
_PRIMARY = """
from pg_constraint k join pg_index i on i.indexrelid = k.conindid and i.indisvalid
where k.conrelid = c.oid and k.contype = 'p' and not k.condeferrable
"""
"""The primary key of a table. A deferrable one does not identify rows of changes: within a transaction, two
rows may have the same value."""
_SENT = f"""
case when c.relreplident = 'f' and c.relkind = 'p' and exists (
  with recursive tree as (select c.oid as relid
    union all select i.inhrelid from tree t join pg_inherits i on i.inhparent = t.relid)
  select from tree join pg_class l on l.oid = relid and l.relkind = 'r' and l.relreplident <> 'f')
then '{PARTLY}' else c.relreplident::text end
"""
"""The replica identity, see `Relation.identity`."""
_LIVE = f"""
select c.oid::bigint, n.nspname, c.relname, {_SENT},
  (select {_KEY} {_PRIMARY}), (select k.oid::bigint {_PRIMARY}), (select k.xmin::text::bigint {_PRIMARY}),
  (select {_KEY} from pg_index i where i.indrelid = c.oid and i.indisvalid and i.indimmediate
    and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident end),
  exists (select from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
    where r.prrelid = c.oid and p.pubname = %s and to_jsonb(r) ->> 'prattrs' is not null),
  {_FILE}, pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0')::bigint,
  a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, {_MISSING}, a.attgenerated, a.attisdropped,
  a.xmin::text::bigint, concat(a.attlen, case when a.attbyval then 'v' else '' end, a.attalign)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
  left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
"""
"""A single statement, so all values are from one moment; the log's end is read after its snapshot
was taken."""
_LOOKS = f"""
select c.oid::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint, {_FILE},
  array(select a.xmin::text::bigint from pg_attribute a
    where a.attrelid = c.oid and a.attnum > 0 order by a.attnum),
  coalesce((select k.oid::bigint {_PRIMARY}), 0)
from pg_class c where c.oid = any(%s::oid[])
"""
_TYPES = """
with recursive asked as (select distinct oid, typmod from unnest(%s::oid[], %s::int[]) as u(oid, typmod)),
chain as (
  select oid, typmod, oid as base, typmod as basemod from asked
  union all
  select c.oid, c.typmod, t.typbasetype, case when t.typtypmod = -1 then c.basemod else t.typtypmod end
  from chain c join pg_type t on t.oid = c.base where t.typtype = 'd')
select c.oid::bigint, c.typmod, format_type(c.oid, c.typmod), t.typname, n.nspname, t.typtype,
  t.typcategory, c.basemod, concat(t.typlen, case when t.typbyval then 'v' else '' end, t.typalign)
from chain c join pg_type t on t.oid = c.base join pg_namespace n on n.oid = t.typnamespace
where t.typtype <> 'd'
"""
_KINDS = {"e": "enum", "c": "composite", "r": "range", "m": "multirange"}


def tables(session: Session, patterns: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
    """Returns sorted `schema.table` names.

    Args:
        session: any connection.
        patterns: `schema.table`, or with `*` and `?` as in file names. Wildcards select ordinary permanent
            tables and the roots of partitioned ones, except in schemas with a dot in their names. An exact
            name selects any relation with that name.
        exclude: names or patterns to leave out.

    Raises:
        ConfigError: an exact name does not exist; the hint has the nearest names of tables that can be
            captured.
    """
    found: dict[str, bool] = dict(session.execute(_TABLES).fetchall())
    chosen: set[str] = set()
    for pattern in patterns:
        if pattern in found:
            chosen.add(pattern)
        elif is_pattern(pattern):
            chosen |= {name for name, fit in found.items() if fit and fits(name, pattern)}
        else:
            raise _unknown(session, pattern, [name for name, fit in found.items() if fit])
    return sorted(name for name in chosen if not fits(name, *exclude))


def names(session: Session, relids: Sequence[int]) -> dict[int, str]:
    """Returns `schema.table` by oid, for existing tables."""
    rows = session.execute(
        "select c.oid::bigint, n.nspname || '.' || c.relname from pg_class c"
        " join pg_namespace n on n.oid = c.relnamespace where c.oid = any(%s::oid[])",
        (list(relids),),
    )
    return dict(rows.fetchall())


def oids(session: Session, tables: Sequence[str]) -> list[int]:
    """Returns the oids of `schema.table` names, for existing tables."""
    names = [quoted_table(table) for table in tables]
    rows = session.execute(f"select {oid_of('t')}::bigint from unnest(%s::text[]) t", (names,))
    return [oid for (oid,) in rows if oid is not None]


def columns(session: Session, tables: Sequence[str]) -> dict[str, list[str]]:
    """Returns the column names of `schema.table` names, for existing tables; a table may have none."""
    rows = session.execute(
        "select t.name, array_remove(array_agg(a.attname::text order by a.attnum), null)"
        f" from unnest(%s::text[], %s::text[]) as t(name, sql) join pg_class c on c.oid = {oid_of('t.sql')}"
        " left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped"
        " group by t.name",
        (list(tables), [quoted_table(table) for table in tables]),
    )
    return dict(rows.fetchall())


def _unknown(session: Session, name: str, found: Iterable[str]) -> ConfigError:
    if session.execute(_TEMPORARY, (name.rpartition(".")[2],)).fetchone():
        what = f"{name} is a temporary table: its changes are not in the log"
        return ConfigError(what, where="source.tables", hint="capture a permanent one")
    hint = meant(name, found) or "write schema.table; check that the address names the right database"
    return ConfigError(f"there is no table {name}", where="source.tables", hint=hint)


def live_table(session: Session, relid: int, publication: str | None = None) -> LiveTable:
    """Returns the catalog's entry of a table by its oid, and the publication's columns; no columns if it does
    not exist."""
    return _live(
        session.execute(f"{_LIVE} where c.oid = %s order by a.attnum", (publication, relid)).fetchall()
    )


def _live(rows: Sequence[tuple[Any, ...]]) -> LiveTable:
    if not rows:
        return LiveTable(0, "", "", "", ())
    columns = tuple(LiveColumn(*row[12:]) for row in rows if row[12] is not None)
    relid, schema, name, identity, primary, key, stamp, index, listed, file, snapshot, at = rows[0][:12]
    keys = frozenset(primary or ()), frozenset(index or ())
    seen, key = XidSnapshot.parse(snapshot), (key or 0, stamp or 0)
    return LiveTable(relid, schema, name, identity, columns, *keys, listed, file, at, seen, *key)


def looks(session: Session, relids: Sequence[int]) -> dict[int, Look]:
    """Returns the current state of tables by oid, numbers only, for existing tables. Does not query which
    attributes are dropped."""
    rows = session.execute(_LOOKS, (list(relids),))
    return {
        relid: Look(at, file, tuple(stamps), len(stamps), key=key) for relid, at, file, stamps, key in rows
    }


def timeline(session: Callable[[], Session], publication: str) -> Timeline:
    """Returns the catalog over time for the tables of a publication."""
    return Timeline(
        lambda relid: live_table(session(), relid, publication), lambda relids: looks(session(), relids)
    )


def types_of(session: Session, wanted: Iterable[tuple[int, int]]) -> Types:
    """Returns types by (oid, typmod): domains as their base type, and the conversion that parses them."""
    pairs = sorted(set(wanted))
    rows = session.execute(_TYPES, ([oid for oid, _ in pairs], [typmod for _, typmod in pairs]))
    return {
        (oid, typmod): TypeInfo(words, _kind(name, schema, sort, category), basemod, physical)
        for oid, typmod, words, name, schema, sort, category, basemod, physical in rows
    }


def _kind(name: str, schema: str, sort: str, category: str) -> str:
    if sort in _KINDS:
        return _KINDS[sort]
    if category == "A":
        return "array"
    # A type with that name in another schema is a different type; citext is an extension in any schema.
    return name if schema == "pg_catalog" or name == "citext" else f"{schema}.{name}"


def announced(
    session: Session,
    message: RelationMessage,
    moment: Moment,
    bracket: Bracket,
    previous: Relation | None,
    overrides: Mapping[str, str],
) -> Relation:
    """Returns the layout that a Relation message of the stream announces, and warns about unknown columns."""
    types = types_of(session, ((c.type_oid, c.typmod) for c in message.columns))
    made = layout(message, moment, bracket, types, previous, overrides)
    for column in unknown(made, previous):
        logger.warning(
            "%s, column %s: %s; `tailrace resync` repairs it",
            made.table,
            column.name,
            column.note,
            extra={"table": made.table},
        )
    return made


def relation(session: Session, table: str, publication: str | None, overrides: Mapping[str, str]) -> Relation:
    """Returns the current layout of a table, with the columns that the publication sends, or would send.

    Raises:
        TableMovedError: the table does not exist.
    """
    query = f"{_LIVE} where c.oid = {oid_of('%s')} order by a.attnum"
    rows = session.execute(query, (publication, quoted_table(table))).fetchall()
    if not rows:
        raise TableMovedError(f"there is no table {table}", where=table, hint="it was dropped or renamed")
    live = _live(rows)
    sent = published_columns(session, table, publication)
    kinds = ("", _generated_sent(session, publication)) if sent is None else ()
    columns = [
        c
        for c in live.columns
        if not c.dropped and (c.generated in kinds if sent is None else c.name in sent)
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
    return catalogued(message, live, types, overrides)


def _generated_sent(session: Session, publication: str | None) -> str:
    """Returns the kind of generated columns that a publication sends for tables without a column list.

    `s` is stored ones, empty is none. Without the publication, the result is for one that tailrace creates.
    """
    row = session.execute(
        "select case when current_setting('server_version_num')::int < 180000 then '' else coalesce("
        "(select to_jsonb(p) ->> 'pubgencols' from pg_publication p where pubname = %s), 's') end",
        (publication,),
    ).fetchone()
    return row[0] if row and row[0] == "s" else ""


def published_columns(session: Session, table: str, publication: str | None) -> set[str] | None:
    """Returns the names of a table's columns that a publication sends.

    None if it has no column list (PostgreSQL 14 supports none) or does not have the table. Before PostgreSQL
    18, generated columns are listed but never sent.
    """
    if publication is None or session.info.server_version < 150000:
        return None
    query = publication_query(
        session,
        "select array(select attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0"
        " and not a.attisdropped and case when r.prattrs is null"
        " then a.attgenerated in ('', coalesce(to_jsonb(p) ->> 'pubgencols', ''))"
        " else a.attnum = any(r.prattrs::int2[]) end"
        " and (a.attgenerated = '' or current_setting('server_version_num')::int >= 180000))"
        " from members m join pg_class c on c.oid = m.oid cross join pub p"
        " left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid"
        f" where c.oid = {oid_of('%s')}",
    )
    row = session.execute(query, (publication, quoted_table(table))).fetchone()
    return None if row is None else set(row[0])
