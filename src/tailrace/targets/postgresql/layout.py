"""Layouts of PostgreSQL targets: create tables, follow the source's layout by `attnum`, rename tables.

A change of layout is one transaction of ALTER TABLE and the update of `tailrace_progress`, so it happens
completely or not at all. Indexes, grants and views that were added to the table stay if PostgreSQL allows it.
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
from .multi_source import refuse, with_added_columns
from .progress import TABLE, ProgressTable, lock_ddl, make_schema
from .types import column_type, column_types, retype_steps, sql_type


def create(session: Session, database: Database, progress: ProgressTable, relation: Relation) -> None:
    """Creates an empty target and its progress row. A shared target of other sources only gets a progress
    row.

    Raises:
        ApplyError: there is a table that tailrace did not create and that cannot be used.
    """
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
    """Returns the layout of a manually created table that becomes the target; None if there is no such table,
    or if the target is shared. Changes nothing.

    Raises:
        ApplyError, BaselineNeededError: the existing table cannot be used.
    """
    if others := progress.others(session, relation.table):
        refuse(progress, relation, others)
        return None
    data, added = split_rule_columns(relation)
    if not can_adopt(session, database, progress, data, added):
        return None
    return with_rule_columns(session, progress.target(relation.table), data, added)


def create_table(session: Session, progress: ProgressTable, relation: Relation, *, key: bool = True) -> None:
    """Creates an empty table without a progress row; must be called in a transaction."""
    table = relation.table
    make_schema(session, progress.split(table)[0])
    columns = definition(relation, key=key, plain=bool(progress.partition(table)))
    session.execute(f"CREATE TABLE {progress.target(table)} ({columns})".encode())
    progress.forget_all(session, table)


def definition(relation: Relation, *, key: bool = True, plain: bool = False) -> str:
    """Returns the columns of a target and its primary key for CREATE TABLE; `plain`: with the types in which
    values are sent."""
    check_names([c.name for c in relation.columns], relation.table)
    lines = [f"{quoted(c.name)} {sql_type(c.type) if plain else column_type(c)}" for c in relation.columns]
    if key and relation.key:
        lines.append(primary_key(relation))
    return ", ".join(lines)


def primary_key(relation: Relation) -> str:
    """Returns the key as a table constraint."""
    return f"PRIMARY KEY ({', '.join(map(quoted, relation.key))})"


def same(one: Relation, other: Relation) -> bool:
    """Whether two layouts result in the same table."""
    return [(c.attnum, c.name, c.type, c.key, column_type(c)) for c in one.columns] == [
        (c.attnum, c.name, c.type, c.key, column_type(c)) for c in other.columns
    ]


def alter(session: Session, progress: ProgressTable, have: Relation, want: Relation) -> None:
    """Changes a target from one layout to another; does nothing if it has the new layout already.

    Raises:
        BaselineNeededError: values cannot be converted to the new types, because the source converted them by
        its
            own expression.
    """
    if same(have, want):
        return
    target = progress.target(want.table)
    with session.transaction():
        if progress.partition(want.table):
            lock_ddl(session)
        have, steps = alter_steps(session, progress, have, want)
        for step in steps:
            try:
                session.execute(f"ALTER TABLE {target} {step}".encode())
            except psycopg.DataError as error:
                raise BaselineNeededError(
                    f"older values do not fit the new column ({step}): {error.diag.message_primary}",
                    where=want.table,
                    hint="the source converted them by an expression (USING); `tailrace resync` loads them",
                ) from error
        if have.key and _key(have) != _key(want):
            _drop_key(session, target, have, want)
        if want.key and _key(have) != _key(want):
            session.execute(f"ALTER TABLE {target} ADD {primary_key(want)}".encode())
        progress.lay_out(session, want.table, want)


def alter_steps(
    session: Session, progress: ProgressTable, have: Relation, want: Relation
) -> tuple[Relation, list[str]]:
    """Returns the target's layout, including columns that other sources have added, and the steps of ALTER
    TABLE to another layout, except those for keys. Changes nothing.

    Raises:
        ApplyError, BaselineNeededError: the target cannot get the new layout.
    """
    target, shared = progress.target(want.table), bool(progress.partition(want.table))
    check_names([c.name for c in want.columns], want.table)
    if shared:
        refuse_column_loss(have, want, target)
        have = with_added_columns(have, want, progress.others(session, want.table))
    return have, column_steps(have, want, column_types(session, target), plain=shared)


def follow(session: Session, progress: ProgressTable, have: Relation, want: Relation) -> None:
    """Changes the layout of an empty table that was created manually, like `alter`.

    Raises:
        ApplyError: a column needs another type, which has to be changed manually.
    """
    try:
        alter(session, progress, have, want)
    except BaselineNeededError as error:
        raise ApplyError(
            f"{error.what}, and the target was created manually",
            where=want.table,
            hint="drop the target, or alter its column manually, then `tailrace resync`",
        ) from error


def column_steps(
    have: Relation, want: Relation, kinds: Mapping[str, str], *, plain: bool = False
) -> list[str]:
    """Returns the steps of ALTER TABLE from one layout to another, in order, except those for keys.

    Args:
        have: the old layout.
        want: the new layout.
        kinds: the types of the target's columns.
        plain: new columns get the types in which values are sent.

    >>> a, b = (Column(n, k, "text", "text", "string") for k, n in enumerate("ab"))
    >>> column_steps(Relation(1, "s", "t", "f", (a,)), Relation(1, "s", "t", "f", (b,)), {})
    ['DROP COLUMN "a"', 'ADD COLUMN "b" text']
    """
    old = {c.attnum: c for c in have.columns}
    stays = [c for c in want.columns if c.attnum in old]
    refuse_new_key(have, want)
    for c in stays:
        # PostgreSQL's casts give the same texts as the source.
        refuse_retype(have.table, old[c.attnum], c, as_text=True)
    staying = {c.attnum for c in stays}
    steps = [f"DROP COLUMN {quoted(c.name)}" for c in have.columns if c.attnum not in staying]
    renamed = [c for c in stays if old[c.attnum].name != c.name]
    # Two columns may have exchanged their names, so temporary names are used in between.
    steps += [f"RENAME {quoted(old[c.attnum].name)} TO {quoted(f'tailrace {c.attnum}')}" for c in renamed]
    steps += [f"RENAME {quoted(f'tailrace {c.attnum}')} TO {quoted(c.name)}" for c in renamed]
    for c in stays:
        steps += retype_steps(old[c.attnum], c, kinds.get(old[c.attnum].name))
    for c in want.columns:
        if c.attnum not in old:
            steps += _add_column(c, sql_type(c.type) if plain else column_type(c))
    return steps


def _add_column(column: Column, kind: str) -> list[str]:
    name = quoted(column.name)
    if column.missing is None:
        return [f"ADD COLUMN {name} {kind}"]
    # The default is the value of existing rows, without rewriting them; new rows have their own values.
    constant = f"{literal(_constant(column, column.missing))}::{kind}"
    return [f"ADD COLUMN {name} {kind} DEFAULT {constant}", f"ALTER COLUMN {name} DROP DEFAULT"]


def _constant(column: Column, missing: str) -> str:
    """Returns the value of an added column in older rows, as PostgreSQL writes the value of the lake type."""
    return _text(missing_value(column, missing))


def _text(values: pa.Array) -> str:
    """Returns the text of the first value, which is not NULL."""
    if pa.types.is_list(values.type):
        elements = values.flatten()
        return f"{{{','.join(_element(elements.slice(i, 1)) for i in range(len(elements)))}}}"
    if pa.types.is_binary(values.type):
        return "\\x" + str(values[0].as_py().hex())
    return str(values.cast(pa.string())[0].as_py())


def _element(values: pa.Array) -> str:
    """Returns the text of the first element as part of the text of an array."""
    if values.null_count:
        return "NULL"
    escaped = _text(values).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _key(relation: Relation) -> list[int]:
    return [c.attnum for c in relation.columns if c.key]


def _drop_key(session: Session, target: str, have: Relation, want: Relation) -> None:
    """Drops the primary key, and then the NOT NULL of its columns (not needed for dropped columns)."""
    row = session.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", (target,)
    ).fetchone()
    if row:
        session.execute(f"ALTER TABLE {target} DROP CONSTRAINT {quoted(row[0])}".encode())
    old_key = {c.attnum for c in have.columns if c.key}
    for c in want.columns:
        if c.attnum in old_key and not c.key:
            session.execute(f"ALTER TABLE {target} ALTER COLUMN {quoted(c.name)} DROP NOT NULL".encode())


def rename(session: Session, database: Database, task: str, table: str, old: str, new: str) -> None:
    """Renames the target of a table from `old` to `new`. Does nothing if it does not exist or has the new
    name already. Must be called in a transaction.

    Raises:
        NameTakenError: the new name is taken, or the target is shared.
    """
    before, after = database.target(old), database.target(new)
    if before == after or not _has_target(session, database, task, table, old):
        return
    lock_ddl(session)
    rows, own_row = database.control_table(TABLE), f'task = {literal(task)} AND "table" = {literal(table)}'
    others = f"SELECT 1 FROM {rows} WHERE target = {literal(before)} AND NOT ({own_row})"
    if session.execute(others.encode()).fetchone():
        raise NameTakenError(
            f"other sources write to {before}, too: it keeps its name when {table} is renamed",
            where=database.label,
            hint=f"name it in the mapping: `tables: {{{table}: {{target: {old}}}}}`",
        )
    if exists(session, after):
        raise NameTakenError(
            f"cannot rename the target of {table}: both {before} and {after} exist",
            where=database.label,
            hint=f"drop or rename {after}, then `tailrace resume`",
        )
    (old_schema, old_name), (new_schema, new_name) = database.split(old), database.split(new)
    make_schema(session, new_schema)
    # A temporary name that is free in both schemas is used in between.
    between = f"tailrace_rename_{number_of('rename', task, table) & (1 << 64) - 1:016x}"
    steps = [f"{quoted(old_schema)}.{quoted(old_name)} RENAME TO {quoted(between)}"]
    if old_schema != new_schema:
        steps.append(f"{quoted(old_schema)}.{quoted(between)} SET SCHEMA {quoted(new_schema)}")
    steps.append(f"{quoted(new_schema)}.{quoted(between)} RENAME TO {quoted(new_name)}")
    for step in steps:
        session.execute(f"ALTER TABLE {step}".encode())
    new_target = f"target = {literal(after)}"
    session.execute(f"DELETE FROM {rows} WHERE {new_target}".encode())  # of a table that was dropped
    session.execute(f"UPDATE {rows} SET {new_target} WHERE {own_row}".encode())


def _has_target(session: Session, database: Database, task: str, table: str, name: str) -> bool:
    """Whether the task's table has its target under a name."""
    progress = ProgressTable(database, task, lambda _: TargetLocation(name))
    return (
        exists(session, database.control_table(TABLE))
        and progress.read(session, table, lock=True) is not None
    )
