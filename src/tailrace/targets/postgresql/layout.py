"""Layouts of PostgreSQL targets: they are created, follow the source's layout by `attnum`, and are renamed.

A change of layout is one transaction of ALTER TABLE together with its note in `tailrace_progress`, so it has
happened or not; what others gave to the table (indexes, grants, views) stays where PostgreSQL lets it.
"""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
import pyarrow as pa

from ...errors import ApplyError, BaselineNeededError, NameTakenError
from ...model.change import Column, Relation
from ...sources.postgresql.connect import Session, literal, quoted
from ..layout_changes import missing_value, refuse_new_key, refuse_retype
from ..multi_source import TargetLocation, refuse_column_loss
from ..rule_columns import split_rule_columns
from .connection import Database, check_names, exists, number_of
from .existing_tables import can_adopt, key_statement, with_rule_columns
from .multi_source import refuse, with_target_types
from .progress import TABLE, ProgressTable, lock_ddl, make_schema
from .types import column_type, column_types, retype_steps, sql_type


def create(session: Session, database: Database, progress: ProgressTable, relation: Relation) -> None:
    """Makes an empty target and its row of progress; ApplyError when somebody else's table is there. To a
    target that others feed it comes with a row of progress alone."""
    table = relation.table
    with session.transaction():
        progress.prepare(session)
        lock_ddl(session)
        taken = adopted_layout(session, database, progress, relation)
        if taken is not None:
            if statement := key_statement(session, progress.target(table), relation):
                session.execute(statement.encode())
        elif not progress.others(session, table):
            create_table(session, progress, relation)
        progress.begin(session, table, taken or relation)
        if taken is not None:
            progress.adopt(session, table)
            alter(session, progress, taken, relation)


def adopted_layout(
    session: Session, database: Database, progress: ProgressTable, relation: Relation
) -> Relation | None:
    """The layout in which a target that somebody made is to be taken; None when there is none, or others feed
    it. Nothing is changed.

    Raises:
        ApplyError, BaselineNeededError: the table that is there cannot be used.
    """
    if others := progress.others(session, relation.table):
        refuse(progress, relation, others)
        return None
    own, added = split_rule_columns(relation)
    if not can_adopt(session, database, progress, own, added):
        return None
    return with_rule_columns(session, progress.target(relation.table), own, added)


def create_table(session: Session, progress: ProgressTable, relation: Relation, *, key: bool = True) -> None:
    """Makes an empty table that is nobody's yet; within a transaction."""
    table = relation.table
    make_schema(session, progress.split(table)[0])
    columns = definition(relation, key=key, plain=bool(progress.partition(table)))
    session.execute(f"CREATE TABLE {progress.target(table)} ({columns})".encode())
    progress.forget_all(session, table)


def definition(relation: Relation, *, key: bool = True, plain: bool = False) -> str:
    """The columns of a target, and its primary key, as in CREATE TABLE; `plain`: in the types that values
    travel in."""
    check_names([c.name for c in relation.columns], relation.table)
    lines = [f"{quoted(c.name)} {sql_type(c.type) if plain else column_type(c)}" for c in relation.columns]
    if key and relation.key:
        lines.append(primary_key(relation))
    return ", ".join(lines)


def primary_key(relation: Relation) -> str:
    """The key as a table constraint."""
    return f"PRIMARY KEY ({', '.join(map(quoted, relation.key))})"


def same(one: Relation, other: Relation) -> bool:
    """Whether two layouts make the same target."""
    return [(c.attnum, c.name, c.type, c.key, column_type(c)) for c in one.columns] == [
        (c.attnum, c.name, c.type, c.key, column_type(c)) for c in other.columns
    ]


def alter(session: Session, progress: ProgressTable, have: Relation, want: Relation) -> None:
    """Brings a target from one layout to another; nothing happens when it has that one already.

    Raises:
        BaselineNeededError: its values do not fit the new types: the source changed them in a way of its own.
    """
    if same(have, want):
        return
    target = progress.target(want.table)
    with session.transaction():
        if progress.partition(want.table):
            lock_ddl(session)
        have, made = alter_steps(session, progress, have, want)
        for step in made:
            try:
                session.execute(f"ALTER TABLE {target} {step}".encode())
            except psycopg.DataError as error:
                raise BaselineNeededError(
                    f"older values do not fit the column as it is now ({step}): {error.diag.message_primary}",
                    where=want.table,
                    hint="the source changed them in a way of its own (USING); `tailrace resync` brings them",
                ) from error
        if have.key and _key(have) != _key(want):
            _drop_key(session, target, have, want)
        if want.key and _key(have) != _key(want):
            session.execute(f"ALTER TABLE {target} ADD {primary_key(want)}".encode())
        progress.lay_out(session, want.table, want)


def alter_steps(
    session: Session, progress: ProgressTable, have: Relation, want: Relation
) -> tuple[Relation, list[str]]:
    """The layout that a target has, with the columns that others brought to it, and what ALTER TABLE has to
    do for another one, except keys. Nothing is changed.

    Raises:
        ApplyError, BaselineNeededError: the target cannot be given that layout.
    """
    target, own = progress.target(want.table), bool(progress.partition(want.table))
    check_names([c.name for c in want.columns], want.table)
    if own:
        refuse_column_loss(have, want, target)
        have = with_target_types(have, want, progress.others(session, want.table))
    return have, steps(have, want, column_types(session, target), plain=own)


def follow(session: Session, progress: ProgressTable, have: Relation, want: Relation) -> None:
    """Brings an empty target that somebody made to a layout, as `alter` does.

    Raises:
        ApplyError: a column becomes another type that only whoever made it can give it.
    """
    try:
        alter(session, progress, have, want)
    except BaselineNeededError as error:
        raise ApplyError(
            f"{error.what}, and somebody made the target",
            where=want.table,
            hint="drop the target, or alter the column there by hand, then `tailrace resync`",
        ) from error


def steps(have: Relation, want: Relation, kinds: Mapping[str, str], *, plain: bool = False) -> list[str]:
    """What ALTER TABLE has to do, in order, keys aside; `kinds`: the types that the columns have; `plain`:
    new ones get those that values travel in.

    >>> a, b = (Column(n, k, "text", "text", "string") for k, n in enumerate("ab"))
    >>> steps(Relation(1, "s", "t", "f", (a,)), Relation(1, "s", "t", "f", (b,)), {})
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
        made += retype_steps(old[c.attnum], c, kinds.get(old[c.attnum].name))
    for c in want.columns:
        if c.attnum not in old:
            made += _add_column(c, sql_type(c.type) if plain else column_type(c))
    return made


def _add_column(column: Column, kind: str) -> list[str]:
    name = quoted(column.name)
    if column.missing is None:
        return [f"ADD COLUMN {name} {kind}"]
    # A default gives the rows that are there their value without writing them; new rows bring their own.
    constant = f"{literal(_constant(column, column.missing))}::{kind}"
    return [f"ADD COLUMN {name} {kind} DEFAULT {constant}", f"ALTER COLUMN {name} DROP DEFAULT"]


def _constant(column: Column, missing: str) -> str:
    """The value that rows older than a column have, as the lake holds it, in PostgreSQL's words."""
    return _text(missing_value(column, missing))


def _text(values: pa.Array) -> str:
    """The first of some values, none of which is NULL but in arrays."""
    if pa.types.is_list(values.type):
        elements = values.flatten()
        return f"{{{','.join(_element(elements.slice(i, 1)) for i in range(len(elements)))}}}"
    if pa.types.is_binary(values.type):
        return "\\x" + str(values[0].as_py().hex())
    return str(values.cast(pa.string())[0].as_py())


def _element(values: pa.Array) -> str:
    """The first of some elements, as the text of an array has it."""
    if values.null_count:
        return "NULL"
    escaped = _text(values).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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


def rename(session: Session, database: Database, task: str, table: str, now: str, to: str) -> None:
    """Renames the target of a table from `now` to `to`; nothing happens when it is not there, or has that
    name already. Needs a transaction.

    Raises:
        NameTakenError: something else has that name, or others feed the target, too.
    """
    before, after = database.target(now), database.target(to)
    if before == after or not _has_target(session, database, task, table, now):
        return
    lock_ddl(session)
    rows, mine = database.control_table(TABLE), f'task = {literal(task)} AND "table" = {literal(table)}'
    others = f"SELECT 1 FROM {rows} WHERE target = {literal(before)} AND NOT ({mine})"
    if session.execute(others.encode()).fetchone():
        raise NameTakenError(
            f"others feed {before}, too: it keeps its name when {table} gets another one",
            where=database.label,
            hint=f"name it in the mapping: `tables: {{{table}: {{target: {now}}}}}`",
        )
    if exists(session, after):
        raise NameTakenError(
            f"the target of {table} is to be renamed, and there are both {before} and {after}",
            where=database.label,
            hint=f"drop or rename {after}, then `tailrace resume`",
        )
    (old, name), (schema, wanted) = database.split(now), database.split(to)
    make_schema(session, schema)
    # By way of a name that is free in both schemas.
    between = f"tailrace_rename_{number_of('rename', task, table) & (1 << 64) - 1:016x}"
    steps = [f"{quoted(old)}.{quoted(name)} RENAME TO {quoted(between)}"]
    if old != schema:
        steps.append(f"{quoted(old)}.{quoted(between)} SET SCHEMA {quoted(schema)}")
    steps.append(f"{quoted(schema)}.{quoted(between)} RENAME TO {quoted(wanted)}")
    for step in steps:
        session.execute(f"ALTER TABLE {step}".encode())
    words = f"target = {literal(after)}"
    session.execute(f"DELETE FROM {rows} WHERE {words}".encode())  # of one that is gone
    session.execute(f"UPDATE {rows} SET {words} WHERE {mine}".encode())


def _has_target(session: Session, database: Database, task: str, table: str, name: str) -> bool:
    """Whether the task's table has its target under a name."""
    progress = ProgressTable(database, task, lambda _: TargetLocation(name))
    return (
        exists(session, database.control_table(TABLE))
        and progress.read(session, table, lock=True) is not None
    )
