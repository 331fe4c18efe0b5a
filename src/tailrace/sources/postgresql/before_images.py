"""Finds tables that send no before images, and the statements that enable them."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Finding
from .connect import Session, oid_of, quoted_table

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
