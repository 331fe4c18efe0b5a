"""Tables that somebody made for tailrace to fill: with types, defaults, indexes and constraints of their own.

An empty table that has the columns is taken as it is, and stays: a new baseline empties and fills it, where a
table that tailrace made is replaced by another one.
"""

from __future__ import annotations

from ....errors import ApplyError
from ....model.change import Relation
from ....sources.postgresql.connect import Session, quoted
from .place import Place
from .progress import Progress
from .types import casts, there

_UNIQUE = """
SELECT coalesce(bool_or(indisprimary), false), coalesce(bool_or(
    indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL AND (
        SELECT array_agg(attname::text ORDER BY attname::text) FROM pg_attribute
        WHERE attrelid = indrelid AND attnum = ANY (indkey::int2[])) = %s::text[]), false)
FROM pg_index WHERE indrelid = to_regclass(%s)
"""


def adopts(on: Session, place: Place, progress: Progress, relation: Relation) -> bool:
    """Whether a table that others made is to become the target of a table that has none yet; False: there is
    no such table.

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
    else:
        return True
    raise ApplyError(
        f"a table {target} is there already, this task did not make it, and it {why}",
        where=place.label,
        hint="drop, empty or rename it, or put the targets into a schema of their own: `?schema=NAME`",
    )


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
