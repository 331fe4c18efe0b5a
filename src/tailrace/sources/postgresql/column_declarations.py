"""Declarations of columns in PostgreSQL's catalog besides their types: NOT NULL, defaults, enum labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .connect import Session


@dataclass(frozen=True)
class Declared:
    """Declarations of a column.

    Attributes:
        attnum: the column's number, which a rename keeps.
        not_null: whether it refuses NULL.
        default: the expression with schema-qualified names; None without one, or for identity and generated
            columns.
        enum: schema and name of its type, if that is an enum.
        labels: the labels of that type, in order.
    """

    attnum: int
    not_null: bool
    default: str | None = None
    enum: tuple[str, str] | None = None
    labels: tuple[str, ...] = ()


_DECLARED = """
select a.attrelid::bigint, a.attnum, a.attnotnull or t.typnotnull,
  case when a.attgenerated = '' and a.attidentity = '' then pg_get_expr(d.adbin, d.adrelid) end,
  case when t.typtype = 'e' then tn.nspname end, t.typname,
  array(select e.enumlabel::text from pg_enum e where e.enumtypid = t.oid order by e.enumsortorder)
from pg_attribute a join pg_type t on t.oid = a.atttypid join pg_namespace tn on tn.oid = t.typnamespace
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
order by 1, 2
"""


def declared(session: Session, relids: Sequence[int]) -> dict[int, list[Declared]]:
    """Returns the declarations of columns by table oid, for existing tables."""
    found: dict[int, list[Declared]] = {}
    rows = session.execute(_DECLARED, (list(relids),))
    for relid, attnum, not_null, default, schema, kind, labels in rows:
        enum = (schema, kind) if schema is not None else None
        found.setdefault(relid, []).append(Declared(attnum, not_null, default, enum, tuple(labels)))
    return found
