"""Layouts of PostgreSQL targets: the types, declared; create; follow the source's layout by `attnum`.

A change of layout is one transaction of ALTER TABLE together with its note in `tailrace_progress`, so it has
happened or not; what others gave to the table (indexes, grants, views) stays where PostgreSQL lets it.
"""

from __future__ import annotations

import re

import pyarrow as pa

from ...change import Column, Relation
from ...errors import ApplyError, UnsupportedError
from ...sources.pg_connect import Session, literal, quoted
from ...wire.pgvalues import convert
from ..shared import refuse_less
from .postgresql_place import Place, check_names
from .postgresql_progress import Progress, make_schema, one_at_a_time
from .postgresql_shared import as_there, refuse
from .retype import refuse_new_key, refuse_retype

TYPES: dict[str, tuple[str, str]] = {
    "boolean": ("boolean", ""),
    "tinyint": ("smallint", "PostgreSQL has no smaller one"),
    "smallint": ("smallint", ""),
    "int": ("integer", ""),
    "bigint": ("bigint", ""),
    "float": ("real", "`NaN`, `Infinity` and `-Infinity` as they are"),
    "double": ("double precision", "`NaN`, `Infinity` and `-Infinity` as they are"),
    "decimal(p,s)": ("numeric(p,s)", ""),
    "string": ("text", "the character U+0000 is refused; arrays, json and the like as their text"),
    "binary": ("bytea", ""),
    "date": ("date", "4713 BC to 5874897 AD; others are refused"),
    "timestamp_ntz": ("timestamp", "microseconds; 4713 BC to 294276 AD; others are refused"),
    "timestamp": ("timestamptz", "microseconds; 4713 BC to 294276 AD; others are refused"),
}
"""Lake type (Spark SQL) -> PostgreSQL type of the target's column, and what to know."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def markdown() -> str:
    """The map of types as the documentation page docs/types-postgresql.md."""
    rows = "".join(f"| `{lake}` | `{sql}` | {note or ' '} |\n" for lake, (sql, note) in TYPES.items())
    return _PAGE + rows.replace("|   |", "| |")


_PAGE = """# Types of PostgreSQL targets

Generated from `tailrace.apply.targets.postgresql_layout`; do not edit.

| lake (Spark SQL) | PostgreSQL target | remark |
| --- | --- | --- |
"""


def sql_type(lake: str) -> str:
    """The PostgreSQL type of a lake type; UnsupportedError when there is none.

    >>> sql_type("decimal(12, 2)"), sql_type("timestamp")
    ('numeric(12,2)', 'timestamptz')
    """
    plain = lake.replace(" ", "").lower()
    if found := _DECIMAL.fullmatch(plain):
        return f"numeric({found[1]},{found[2]})"
    if plain not in TYPES:
        raise UnsupportedError(f"no PostgreSQL type for {lake!r}", hint=f"use one of {', '.join(TYPES)}")
    return TYPES[plain][0]


def create(session: Session, place: Place, progress: Progress, relation: Relation) -> None:
    """Makes an empty target and its row of progress; ApplyError when somebody else's table is there. To a
    target that others feed it comes with a row of progress alone."""
    table = relation.table
    with session.transaction():
        progress.prepare(session)
        one_at_a_time(session)
        if others := progress.others(session, table):
            refuse(progress, relation, others)
        else:
            refuse_foreign(session, place, progress, table)
            make(session, progress, relation)
        progress.begin(session, table, relation)


def make(session: Session, progress: Progress, relation: Relation, *, key: bool = True) -> None:
    """Makes an empty table that is nobody's yet; within a transaction."""
    table = relation.table
    make_schema(session, progress.split(table)[0])
    session.execute(f"CREATE TABLE {progress.target(table)} ({definition(relation, key=key)})".encode())
    progress.forget_others(session, table)


def refuse_foreign(session: Session, place: Place, progress: Progress, table: str) -> None:
    """Raises ApplyError when the target's name is taken: what tailrace did not make, it does not touch."""
    target = progress.target(table)
    found = session.execute("SELECT to_regclass(%s) IS NOT NULL", (target,)).fetchone()
    if found and found[0]:
        raise ApplyError(
            f"a table {target} is there already, and this task did not make it",
            where=place.label,
            hint="drop or rename it, or put the targets into a schema of their own: `?schema=NAME`",
        )


def definition(relation: Relation, *, key: bool = True) -> str:
    """The columns of a target, and its primary key, as in CREATE TABLE."""
    check_names([c.name for c in relation.columns], relation.table)
    lines = [f"{quoted(c.name)} {sql_type(c.type)}" for c in relation.columns]
    if key and relation.key:
        lines.append(primary_key(relation))
    return ", ".join(lines)


def primary_key(relation: Relation) -> str:
    """The key as a table constraint."""
    return f"PRIMARY KEY ({', '.join(map(quoted, relation.key))})"


def same(one: Relation, other: Relation) -> bool:
    """Whether two layouts make the same target."""
    return [(c.attnum, c.name, c.type, c.key) for c in one.columns] == [
        (c.attnum, c.name, c.type, c.key) for c in other.columns
    ]


def alter(session: Session, progress: Progress, have: Relation, want: Relation) -> None:
    """Brings a target from one layout to another; nothing happens when it has that one already."""
    if same(have, want):
        return
    target = progress.target(want.table)
    check_names([c.name for c in want.columns], want.table)
    with session.transaction():
        if progress.own(want.table):
            refuse_less(have, want, target)
            one_at_a_time(session)
            have = as_there(have, want, progress.others(session, want.table))
        for step in steps(have, want):
            session.execute(f"ALTER TABLE {target} {step}".encode())
        if have.key and _key(have) != _key(want):
            _drop_key(session, target, have, want)
        if want.key and _key(have) != _key(want):
            session.execute(f"ALTER TABLE {target} ADD {primary_key(want)}".encode())
        progress.lay_out(session, want.table, want)


def steps(have: Relation, want: Relation) -> list[str]:
    """What ALTER TABLE has to do, in order, keys aside.

    >>> a, b = (Column(n, k, "text", "text", "string") for k, n in enumerate("ab"))
    >>> steps(Relation(1, "s", "t", "f", (a,)), Relation(1, "s", "t", "f", (b,)))
    ['DROP COLUMN "a"', 'ADD COLUMN "b" text']
    """
    old = {c.attnum: c for c in have.columns}
    stays = [c for c in want.columns if c.attnum in old]
    refuse_new_key(have, want)
    for c in stays:
        # Its own casts are the words the source wrote.
        refuse_retype(have.table, old[c.attnum], c, as_text=True)
    kept = {c.attnum for c in stays}
    made = [f"DROP COLUMN {quoted(c.name)}" for c in have.columns if c.attnum not in kept]
    renamed = [c for c in stays if old[c.attnum].name != c.name]
    # By way of names nobody has: two columns may have exchanged theirs.
    made += [f"RENAME {quoted(old[c.attnum].name)} TO {quoted(f'tailrace {c.attnum}')}" for c in renamed]
    made += [f"RENAME {quoted(f'tailrace {c.attnum}')} TO {quoted(c.name)}" for c in renamed]
    for c in stays:
        if sql_type(old[c.attnum].type) != sql_type(c.type):
            name, kind = quoted(c.name), sql_type(c.type)
            made.append(f"ALTER COLUMN {name} TYPE {kind} USING {name}::{kind}")
    for c in want.columns:
        if c.attnum not in old:
            made += _added(c)
    return made


def _added(column: Column) -> list[str]:
    name, kind = quoted(column.name), sql_type(column.type)
    if column.missing is None:
        return [f"ADD COLUMN {name} {kind}"]
    # A default gives the rows that are there their value without writing them; new rows bring their own.
    constant = f"{literal(_constant(column, column.missing))}::{kind}"
    return [f"ADD COLUMN {name} {kind} DEFAULT {constant}", f"ALTER COLUMN {name} DROP DEFAULT"]


def _constant(column: Column, missing: str) -> str:
    """The value that rows older than a column have, as the lake holds it, in PostgreSQL's words."""
    values, bad = convert(column.type, column.kind, pa.array([missing], pa.string()))
    if bad is not None:
        raise ApplyError(
            f"the value {missing!r} that older rows have cannot be held by {column.type}",
            where=column.name,
            hint="give it a wider type (`types`), then `tailrace resync` the table",
        )
    if pa.types.is_binary(values.type):
        return "\\x" + str(values[0].as_py().hex())
    return str(values.cast(pa.string())[0].as_py())


def _key(relation: Relation) -> list[int]:
    return [c.attnum for c in relation.columns if c.key]


def _drop_key(session: Session, target: str, have: Relation, want: Relation) -> None:
    """Takes the primary key off, and the NOT NULL it left behind (it is gone with a column of its own)."""
    row = session.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", (target,)
    ).fetchone()
    if row:
        session.execute(f"ALTER TABLE {target} DROP CONSTRAINT {quoted(row[0])}".encode())
    left = {c.attnum for c in have.columns if c.key}
    for c in want.columns:
        if c.attnum in left and not c.key:
            session.execute(f"ALTER TABLE {target} ALTER COLUMN {quoted(c.name)} DROP NOT NULL".encode())
