"""Tables that were made by hand for a task to fill, with their own indexes, defaults and constraints.

An empty table is accepted if its columns and types fit. It stays: a new baseline empties and fills it, where
a table that tailrace made is replaced. A table that does not fit is refused with the differences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...errors import ApplyError
from ...model.change import Column, Relation
from ...sources.postgresql.connect import Session, quoted
from ..rule_columns import rule_column
from .connection import Database, exists, holds
from .progress import ProgressTable
from .types import column_type, formatted, sql_type

OTHER_WAYS = "drop, empty or rename it, or put the targets into their own schema: `?schema=NAME`"
_UNIQUE = """
SELECT coalesce(bool_or(indisprimary), false), coalesce(bool_or(
    indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL AND (
        SELECT array_agg(attname::text ORDER BY attname::text) FROM pg_attribute
        WHERE attrelid = indrelid AND attnum = ANY ((indkey::int2[])[:indnkeyatts - 1])) = %s::text[]), false)
FROM pg_index WHERE indrelid = to_regclass(%s)
"""
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, atthasdef OR attidentity <> '',
    attgenerated <> '', attidentity = 'a', coalesce(NOT collisdeterministic, false)
FROM pg_attribute LEFT JOIN pg_collation c ON c.oid = attcollation
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_WIDER = {
    "smallint": ("integer", "bigint"), "integer": ("bigint",), "real": ("double precision",),
    "character varying": ("text",),
}  # fmt: skip
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
_TEXTS = ("text", "character varying")
_LENGTH = re.compile(r"character varying\((\d+)\)")
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")


@dataclass(frozen=True)
class ExistingColumn:
    """A column of a table: its type, as `format_type` names it, and what hinders values."""

    type: str
    not_null: bool
    default: bool
    computed: bool
    always_identity: bool
    """It is GENERATED ALWAYS AS IDENTITY, and takes no updates."""
    nondeterministic: bool
    """Its collation holds texts that differ to be equal."""


def can_adopt(
    session: Session,
    database: Database,
    progress: ProgressTable,
    relation: Relation,
    rule_columns: Mapping[str, str] = {},
) -> bool:
    """Whether a table that was made by hand becomes the target of a table that has none; False: there is no
    such table. `rule_columns`: columns (name -> Spark SQL type) that rules add: it may have them.

    Raises:
        ApplyError: there is one that does not fit, or the table has another target already.
    """
    table, target = relation.table, progress.target(relation.table)
    progress.refuse_two(session, table)
    if not exists(session, target):
        return False
    if taken := why_not_adoptable(session, progress, table):
        raise ApplyError(exists_message(target, taken), where=database.label, hint=OTHER_WAYS)
    found = list(_differences(session, target, relation, rule_columns))
    if not found:
        return True
    what, steps = "; ".join(why for why, _ in found), ", ".join(step for _, step in found if step)
    alter = f"ALTER TABLE {target} {steps}; or " if steps else ""
    raise ApplyError(exists_message(target, f"does not fit: {what}"), where=table, hint=alter + OTHER_WAYS)


def why_not_adoptable(session: Session, progress: ProgressTable, table: str) -> str | None:
    """Why a table cannot become a target, whatever its columns are; None: it can."""
    if progress.fed(session, table):
        return "is another task's target"
    return "has rows" if holds(session, f"SELECT EXISTS (SELECT FROM {progress.target(table)})") else None


def exists_message(target: str, why: str) -> str:
    """The message about a table that cannot become a target."""
    return f"the table {target} exists already, this task did not make it, and it {why}"


def with_rule_columns(
    session: Session, target: str, relation: Relation, rule_columns: Mapping[str, str]
) -> Relation:
    """The layout of an accepted table, with those columns that rules add and that it has already."""
    have, mine = _columns(session, target), {c.name for c in relation.columns}
    added = [rule_column(n, kind) for n, kind in rule_columns.items() if n in have and n not in mine]
    return relation.with_columns([*relation.columns, *added])


def key_statement(session: Session, target: str, relation: Relation) -> str | None:
    """The statement that gives a table its key; None if it has one."""
    if not relation.key or _unique(session, target, relation)[1]:
        return None
    return f"ALTER TABLE {target} ADD PRIMARY KEY ({', '.join(map(quoted, relation.key))})"


def _differences(
    session: Session, target: str, relation: Relation, rule_columns: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yields each difference, and the step of an ALTER TABLE that removes it."""
    have = _columns(session, target)
    added = [rule_column(name, kind) for name, kind in rule_columns.items() if name in have]
    for c in relation.columns:
        if c.name not in have:
            yield f"it has no column {c.name} ({column_type(c)})", f"ADD {quoted(c.name)} {column_type(c)}"
        else:
            yield from _of_column(c, have[c.name], keyed=bool(relation.key))
    for c in added:
        yield from _of_column(c, have[c.name], keyed=True)
    own = {c.name for c in (*relation.columns, *added)}
    for name, one in have.items():
        if name in own - {c.name for c in added}:
            continue
        if one.not_null and (name in own or not (one.default or one.computed)):
            why = "and the source does not have it" if name not in own else "and rules leave it NULL"
            yield f"column {name} is NOT NULL, {why}", f"ALTER {quoted(name)} DROP NOT NULL"
        if name in own and one.default:
            yield (
                f"column {name} has a default, and rules leave it NULL",
                f"ALTER {quoted(name)} DROP DEFAULT",
            )
    primary, unique = _unique(session, target, relation)
    if relation.key and primary and not unique:
        yield f"it has another primary key than ({', '.join(relation.key)}), and no unique index on that", ""


def _of_column(column: Column, have: ExistingColumn, *, keyed: bool) -> Iterator[tuple[str, str]]:
    name, alter = column.name, f"ALTER {quoted(column.name)}"
    if have.computed:
        yield f"column {name} is computed", f"{alter} DROP EXPRESSION"
    elif not fits(have.type, column):
        yield (
            f"column {name} is {have.type}, not {column_type(column)}",
            f"{alter} TYPE {column_type(column)}",
        )
    elif have.always_identity and keyed and not column.key:
        yield f"column {name} is GENERATED ALWAYS, and takes no updates", f"{alter} SET GENERATED BY DEFAULT"
    elif have.nondeterministic and column.key:
        yield f"column {name} is in the key, and its collation holds texts that differ to be equal", ""


def fits(have: str, column: Column) -> bool:
    """Whether a type, as `format_type` names it, holds every value of a column: it is the type that tailrace
    makes, that of the source, or a wider one.

    >>> n = Column("n", 1, "integer", "int4", "int")
    >>> v = Column("v", 2, "character varying(9)", "varchar", "string")
    >>> fits("bigint", n), fits("numeric(12,2)", n), fits("smallint", n), fits("text", n)
    (True, True, False, False)
    >>> fits("text", v), fits("character varying(10)", v), fits("character varying(8)", v), fits("integer", v)
    (True, True, False, False)
    """
    made, plain = formatted(column_type(column)), formatted(sql_type(column.type))
    if have in (made, plain, column.source_type) or have in _WIDER.get(made, ()):
        return True
    if column.type == "string":
        same_name = have.rpartition(".")[2] == column.source_type.rpartition(".")[2]
        wanted, found = _LENGTH.fullmatch(made), _LENGTH.fullmatch(have)
        return have in _TEXTS or same_name or bool(wanted and found and int(found[1]) >= int(wanted[1]))
    return _has_room(have, made)


def _has_room(have: str, made: str) -> bool:
    """Whether a numeric has room for a whole number or another numeric."""
    wanted, found = _NUMERIC.fullmatch(made), _NUMERIC.fullmatch(have)
    if made not in _DIGITS and not wanted:
        return False
    if not found:
        return have == "numeric"
    digits, scale = (int(wanted[1]), int(wanted[2])) if wanted else (_DIGITS[made], 0)
    return int(found[2]) >= scale and int(found[1]) - int(found[2]) >= digits - scale


def _columns(session: Session, target: str) -> dict[str, ExistingColumn]:
    return {name: ExistingColumn(*rest) for name, *rest in session.execute(_COLUMNS, (target,)).fetchall()}


def _unique(session: Session, target: str, relation: Relation) -> tuple[bool, bool]:
    """Whether a table has a primary key, and a unique index on the relation's key."""
    row = session.execute(_UNIQUE, (sorted(relation.key), target)).fetchone()
    return (bool(row[0]), bool(row[1])) if row else (False, False)
