"""Detects columns whose rows got other values or other text without a log record.

`ALTER COLUMN ... TYPE ... USING` and `SET EXPRESSION` give older rows new values, and may keep the type. Then
the table's file and the column's row in pg_attribute change. A default that the statement did not create
again shows that it was not about the column. VACUUM FULL and TRUNCATE change only the file.

Enums and composites are text in targets: a renamed label, or an added or dropped attribute, changes the text
of existing values. The same applies to domains, arrays and ranges of such types, and composites with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..base import ColumnChange
from .connect import Session, oid_of, quoted_table

REWRITTEN = "older rows have other values in the source, which are not logged (USING, or SET EXPRESSION)"
PERHAPS = (
    "older rows may have other values in the source: it was renamed, and its table was rewritten meanwhile"
)
RETEXTED = "older rows have another text in the source (its type has a renamed label, or another attribute)"
_STATES = f"""
with recursive asked as (
  select t.name, c.oid as relid, c.relkind, c.relfilenode from unnest(%s::text[], %s::text[]) as t(name, sql)
    join pg_class c on c.oid = {oid_of("t.sql")}),
tree as (
  select relid as root, relid from asked where relkind = 'p'
  union all select t.root, i.inhrelid from tree t join pg_inherits i on i.inhparent = t.relid),
col as (
  select a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.xmin::text as stamp,
    d.oid::bigint as made
  from asked join pg_attribute a on a.attrelid = relid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum),
part as (
  select atttypid as whole, atttypid as oid from col where atttypid >= 16384
  union select p.whole, x.oid from part p join pg_type t on t.oid = p.oid
    left join pg_range r on t.oid in (r.rngtypid, r.rngmultitypid)
    cross join lateral (
      select t.typbasetype where t.typtype = 'd' union all select t.typelem where t.typcategory = 'A'
      union all select r.rngsubtype where r.rngtypid is not null
      union all select a.atttypid from pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) as x(oid)
  where x.oid >= 16384),
texts as (
  select whole, jsonb_object_agg(item, said) as said from (
    select p.whole, 'label ' || e.oid, e.enumlabel::text from part p join pg_enum e on e.enumtypid = p.oid
    union all
    select p.whole, 'row ' || t.oid, (
      select coalesce(string_agg(a.attnum || ' ' || a.atttypid, ', ' order by a.attnum), '')
      from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped)
    from part p join pg_type t on t.oid = p.oid and t.typtype = 'c') as x(whole, item, said)
  group by whole),
leaves as (
  select t.root, hashtextextended(string_agg(l.oid || ':' || l.relfilenode, ',' order by l.oid), 0) as files
  from tree t join pg_class l on l.oid = t.relid and l.relkind = 'r' group by t.root),
listed as (
  select attrelid, jsonb_object_agg(attnum,
    jsonb_build_array(attname, atttypid::bigint, atttypmod, stamp, made, coalesce(x.said, '{{}}'))) as columns
  from col left join texts x on x.whole = col.atttypid group by attrelid),
state as (
  select name, jsonb_build_object('relid', relid::bigint, 'columns', coalesce(columns, '{{}}'),
    'file', case when relkind = 'p' then coalesce(files, 0) else relfilenode::bigint end) as state
  from asked left join leaves on root = relid left join listed on attrelid = relid)
"""
"""The states of tables. A partitioned table has the files of its leaves."""
_HASHES = f"{_STATES} select name, md5(state::text) from state"
_CHANGED = f"{_STATES} select name, md5(state::text), state from state"
HASH = "hash"
"""Key of a state's hash within the state."""


def look(
    session: Session, tables: Mapping[str, str], known: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Returns the states (JSON) of those tables whose state differs from the known one.

    Args:
        session: any connection.
        tables: the current name by the `schema.table` under which a table is known.
        known: states that earlier calls returned.
    """
    hashes = session.execute(_HASHES, _asked(tables)).fetchall()
    other = {t for t, now in hashes if t not in known or known[t][HASH] != now}
    if not other:
        return {}
    rows = session.execute(_CHANGED, _asked({t: tables[t] for t in other}))
    return {t: {**state, HASH: now} for t, now, state in rows}


def _asked(tables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    return list(tables), [quoted_table(now) for now in tables.values()]


def changed(
    before: Mapping[str, Any], after: Mapping[str, Any], key: Sequence[str]
) -> Iterator[ColumnChange]:
    """Yields the columns of a table whose older rows have other values, or other text, than in an earlier
    state.

    `key` are the columns that identify a row.
    """
    if before["relid"] != after["relid"]:  # another table of that name
        return
    kept = {n: one for n, one in after["columns"].items() if n in before["columns"]}
    retyped = any(before["columns"][n][1:3] != one[1:3] for n, one in kept.items())
    for number, (name, *kind, stamp, made, texts) in kept.items():
        named, *was, stamped, had, said = before["columns"][number]
        if was != kind:
            continue
        if before["file"] != after["file"] and stamped != stamp and (made is None or made != had):
            # Its new name and the other column's new type explain all differences.
            explained = retyped and named != name
            yield ColumnChange(name, PERHAPS if explained else REWRITTEN, stale=not explained)
        if any(said[item] != text for item, text in texts.items() if item in said):
            yield ColumnChange(name, RETEXTED, stale=name in key)
