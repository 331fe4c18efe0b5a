"""Tables that somebody made for tailrace to fill: with types, defaults, indexes and constraints of their own.

An empty table that has the columns is taken as it is, and stays: a new baseline empties and fills it, where a
table that tailrace made is replaced by another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....errors import ApplyError
from ....model.change import Column, Relation
from ....sources.postgresql.connect import Session, quoted
from ...rule_columns import rule_column
from .place import Place
from .progress import Progress
from .types import casts, column_type, takes, there

_UNIQUE = """
SELECT coalesce(bool_or(indisprimary), false), coalesce(bool_or(
    indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL AND (
        SELECT array_agg(attname::text ORDER BY attname::text) FROM pg_attribute
        WHERE attrelid = indrelid AND attnum = ANY (indkey::int2[])) = %s::text[]), false)
FROM pg_index WHERE indrelid = to_regclass(%s)
"""


_COMPUTED = """
SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attgenerated <> ''
    AND NOT attisdropped AND attname = ANY (%s::text[]) ORDER BY attnum
"""
_COLUMN = """
SELECT format_type(atttypid, atttypmod), attnotnull, atthasdef OR attidentity <> '' FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attname = %s AND attnum > 0 AND NOT attisdropped
"""


def adopts(
    on: Session,
    place: Place,
    progress: Progress,
    relation: Relation,
    rule_columns: Mapping[str, str] = {},
) -> bool:
    """Whether a table that others made is to become the target of a table that has none yet; False: there is
    no such table. `rule_columns`: columns (name -> Spark SQL type) that rules add: it may have them.

    Raises:
        ApplyError: there is one that cannot be taken.
    """
    table = relation.table
    target = progress.target(table)
    kinds = there(on, target)
    found = on.execute("SELECT to_regclass(%s) IS NOT NULL", (target,)).fetchone()
    if not (found and found[0]):
        return False
    lacking = [c.name for c in relation.columns if c.name not in kinds]
    if lacking:
        why = f"lacks the columns {', '.join(lacking)}"
    elif progress.fed(on, table):
        why = "is another task's target"
    elif _has_rows(on, target):
        why = "has rows"
    elif relation.key and not _may_have_key(on, target, relation):
        why = f"has another primary key, and no unique index on {', '.join(relation.key)}"
    elif computed := _computed(on, target, relation):
        one = quoted(computed[0])
        raise ApplyError(
            f"the target {target} computes columns that the source sends: {', '.join(computed)}",
            where=table,
            hint=f"leave them out (`tables: {{{table}: {{drop: [{computed[0]}]}}}}`), or have them take "
            f"values: ALTER TABLE {target} ALTER COLUMN {one} DROP EXPRESSION",
        )
    else:
        with_rule_columns(on, target, relation, rule_columns)
        return True
    raise ApplyError(
        f"a table {target} is there already, this task did not make it, and it {why}",
        where=place.label,
        hint="drop, empty or rename it, or put the targets into a schema of their own: `?schema=NAME`",
    )


def _computed(on: Session, target: str, relation: Relation) -> list[str]:
    """The columns of a layout that a target computes by itself (GENERATED ALWAYS AS)."""
    names = [c.name for c in relation.columns]
    return [name for (name,) in on.execute(_COMPUTED, (target, names)).fetchall()]


def with_rule_columns(
    on: Session, target: str, relation: Relation, rule_columns: Mapping[str, str]
) -> Relation:
    """The layout of a table that somebody made, with those columns that rules add and that it has already.

    Raises:
        ApplyError: it has one that cannot be used.
    """
    mine = {c.name for c in relation.columns}
    added = [rule_column(n, kind) for n, kind in rule_columns.items() if n not in mine]
    return relation.with_columns([*relation.columns, *there_already(on, target, relation.table, added)])


def there_already(on: Session, target: str, table: str, added: Sequence[Column]) -> list[Column]:
    """Those columns that are to be added to a target and that somebody has made there: they are used.

    Raises:
        ApplyError: one is not as it would be if it was added.
    """
    found = [(c, why) for c in added if (why := _unlike(on, target, c)) is not None]
    if wrong := [(c, why) for c, why in found if why]:
        column, why = wrong[0]
        kind = column_type(column)
        raise ApplyError(
            f"the target {target} has a column {column.name!r} already, and it {why}",
            where=table,
            hint=f"ALTER it there to {kind} without NOT NULL, default and values, or drop or rename it; the "
            "mark of deleted rows may have another name, too: `soft_delete: COLUMN`",
        )
    return [c for c, _ in found]


def _unlike(on: Session, target: str, column: Column) -> str | None:
    """Why a target's column cannot be used for one that is to be added (empty: it can); None: there is
    none."""
    row = on.execute(_COLUMN, (target, column.name)).fetchone()
    if row is None:
        return None
    kind, not_null, default = row
    if not takes(kind, column):
        return f"is {kind}, not {column_type(column)}"
    if not_null or default:
        return "is NOT NULL" if not_null else "has a default"
    if column.missing is not None:
        return "is a new one at the source, where older rows have a value in it"
    values = f"SELECT EXISTS (SELECT FROM {target} WHERE {quoted(column.name)} IS NOT NULL)"
    return "has values" if on.execute(values.encode()).fetchone() == (True,) else ""


def key_of(on: Session, target: str, relation: Relation) -> str | None:
    """The statement that gives a table its key; None: it has one."""
    if not relation.key or _unique(on, target, relation)[1]:
        return None
    return f"ALTER TABLE {target} ADD PRIMARY KEY ({', '.join(map(quoted, relation.key))})"


def fill(on: Session, target: str, relation: Relation, landed: str) -> None:
    """Makes the rows of a landing (quoted SQL) all that the target has; within a transaction."""
    into = casts(on, target, relation.columns)
    names = ", ".join(quoted(c.name) for c in relation.columns)
    cells = ", ".join(
        quoted(c.name) + (f"::{into[i]}" if i in into else "") for i, c in enumerate(relation.columns)
    )
    on.execute(f"DELETE FROM {target}".encode())  # others may refer to it: TRUNCATE would be refused
    if statement := key_of(on, target, relation):
        on.execute(statement.encode())
    rows = f"INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE SELECT {cells} FROM {landed}"
    on.execute(rows.encode())


def _has_rows(on: Session, target: str) -> bool:
    row = on.execute(f"SELECT EXISTS (SELECT FROM {target})".encode()).fetchone()
    return bool(row and row[0])


def _may_have_key(on: Session, target: str, relation: Relation) -> bool:
    primary, unique = _unique(on, target, relation)
    return unique or not primary


def _unique(on: Session, target: str, relation: Relation) -> tuple[bool, bool]:
    """Whether a table has a primary key, and a unique index on the relation's key."""
    row = on.execute(_UNIQUE, (sorted(relation.key), target)).fetchone()
    return (bool(row[0]), bool(row[1])) if row else (False, False)
