"""Replica identities of partitions.

Changes of a partition are published under its root's name. The stream describes their old values by the
root's identity, but they have those of the partition's identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from ..base import Finding
from .connect import Session, oid_of, quoted_table

OTHER, PART = "other", "part"
"""Kinds of partitions: changes do not identify a row of the root; old rows are incomplete, although the root
is REPLICA IDENTITY FULL.

Those without identity are not published (`left_out`).
"""
_INDEX = """
array(select a.attname::text from pg_index i join pg_attribute a on a.attrelid = i.indrelid
    and a.attnum = any((i.indkey::int2[])[:i.indnkeyatts - 1])
  where i.indrelid = {0}.oid and i.indisvalid and case {0}.relreplident
    when 'i' then i.indisreplident else i.indisprimary and i.indimmediate end)
"""
_LEAVES = f"""
with recursive tree as (
  select a.name, c.oid as root, c.oid as relid
  from unnest(%s::text[], %s::text[]) as a(name, sql) join pg_class c on c.oid = {oid_of("a.sql")}
    and c.relkind = 'p'
  union all
  select t.name, t.root, i.inhrelid
  from tree t join pg_inherits i on i.inhparent = t.relid and not i.inhdetachpending),
leaf as (
  select t.name, n.nspname || '.' || l.relname as leaf, c.relreplident = 'f' as whole,
    l.relreplident = 'f' as every, {_INDEX.format("c")} as key,
    case when l.relreplident = 'n' then '{{}}' else {_INDEX.format("l")} end as has
  from tree t join pg_class c on c.oid = t.root join pg_class l on l.oid = t.relid and l.relkind = 'r'
    join pg_namespace n on n.oid = l.relnamespace)
select name, leaf, whole, key, what from leaf cross join lateral (select case
  when every then case when key = '{{}}' and not whole then '{OTHER}' end
  when has = '{{}}' then null
  when key <> '{{}}' and has @> key then case when whole then '{PART}' end
  else '{OTHER}' end as what) as found
where what is not null order by name, leaf
"""
"""Without `pg_partition_tree`, which waits for locks of each partition."""
_NEW = "new partitions start with DEFAULT, so repeat this for each"
_WHAT = {
    OTHER: "changes in partitions ({}) do not identify their row: the replica identity does not include {}",
    PART: "changes in partitions ({}) have only the key of the old row, although the root has REPLICA "
    "IDENTITY FULL: before images are incomplete",
}
_NAMED = 3
"""The maximum number of partitions in a message."""


class Leaf(NamedTuple):
    """A partition whose identity is narrower than its root's.

    Attributes:
        table: the table it belongs to.
        name: its name.
        whole: whether the root is REPLICA IDENTITY FULL.
        key: the root's key.
        what: `OTHER` or `PART`.
    """

    table: str
    name: str
    whole: bool
    key: Sequence[str]
    what: str


def narrower(session: Session, tables: Mapping[str, str]) -> list[Leaf]:
    """Returns the partitions with a narrower identity of those tables that are partitioned.

    Args:
        session: any connection.
        tables: the current name by the `schema.table` under which a table is known.
    """
    rows = session.execute(_LEAVES, (list(tables), [quoted_table(now) for now in tables.values()]))
    return [Leaf(*row) for row in rows]


def unidentified(session: Session, tables: Mapping[str, str]) -> dict[str, str]:
    """Returns the tables (as in `narrower`) with partitions whose changes do not identify their row, with a
    message."""
    leaves = [one for one in narrower(session, tables) if one.what == OTHER] if tables else []
    return {t: _named([one for one in leaves if one.table == t]) for t in {one.table for one in leaves}}


def _named(leaves: Sequence[Leaf]) -> str:
    """Returns the message about narrower identities of one table and kind."""
    first, more = leaves[0], len(leaves) - _NAMED
    names = ", ".join(one.name for one in leaves[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    lacks = f"its key ({', '.join(first.key)})" if first.key else "the whole row, and the table has no key"
    return _WHAT[first.what].format(names, lacks)


def findings(session: Session, server: str, tables: Sequence[str], *, begun: bool) -> Iterator[Finding]:
    """Yields findings about narrower identities per table.

    A task that has begun suspends tables whose changes do not identify their row; a new task does not start
    with them.
    """
    kinds: dict[tuple[str, str], list[Leaf]] = {}
    for leaf in narrower(session, {t: t for t in tables}):
        kinds.setdefault((leaf.table, leaf.what), []).append(leaf)
    for (table, what), leaves in kinds.items():
        names = [one.name for one in leaves]
        if not leaves[0].key and not leaves[0].whole:
            names = [table, *names]
        cure = "; ".join(f"ALTER TABLE {quoted_table(name)} REPLICA IDENTITY FULL" for name in names)
        level: Literal["error", "warning"] = "error" if what == OTHER and not begun else "warning"
        yield Finding(level, _named(leaves), f"{server}, {table}", f"{cure} ({_NEW})", table)
