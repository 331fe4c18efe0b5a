"""A PostgreSQL target gets another name, in the transaction that notes it in `tailrace_progress`."""

from __future__ import annotations

from ....errors import NameTakenError
from ....sources.postgresql.connect import Session, literal, quoted
from ...mapping.shared_rows import TargetPlace
from .place import Place, exists, number_of
from .progress import TABLE, Progress, make_schema, one_at_a_time


def rename(session: Session, place: Place, task: str, table: str, now: str, to: str) -> None:
    """Renames the target of a table from `now` to `to`; nothing happens when it is not there, or has that
    name already. Needs a transaction.

    Raises:
        NameTakenError: something else has that name, or others feed the target, too.
        OtherTableError: the table `now` is not the target.
    """
    before, after = place.target(now), place.target(to)
    if before == after or not _there(session, place, task, table, now):
        return
    one_at_a_time(session)
    progress, mine = place.own(TABLE), f'task = {literal(task)} AND "table" = {literal(table)}'
    others = f"SELECT 1 FROM {progress} WHERE target = {literal(before)} AND NOT ({mine})"
    if session.execute(others.encode()).fetchone():
        raise NameTakenError(
            f"others feed {before}, too: it keeps its name when {table} gets another one",
            where=place.label,
            hint=f"name it in the mapping: `tables: {{{table}: {{target: {now}}}}}`",
        )
    if exists(session, after):
        raise NameTakenError(
            f"the target of {table} is to be renamed, and there are both {before} and {after}",
            where=place.label,
            hint=f"drop or rename {after}, then `tailrace resume`",
        )
    (old, name), (schema, wanted) = place.split(now), place.split(to)
    make_schema(session, schema)
    # By way of a name that nobody has in either schema.
    between = f"tailrace_rename_{number_of('rename', task, table) & (1 << 64) - 1:016x}"
    steps = [f"{quoted(old)}.{quoted(name)} RENAME TO {quoted(between)}"]
    if old != schema:
        steps.append(f"{quoted(old)}.{quoted(between)} SET SCHEMA {quoted(schema)}")
    steps.append(f"{quoted(schema)}.{quoted(between)} RENAME TO {quoted(wanted)}")
    for step in steps:
        session.execute(f"ALTER TABLE {step}".encode())
    words = f"target = {literal(after)}"
    session.execute(f"DELETE FROM {progress} WHERE {words}".encode())  # of one that is gone
    session.execute(f"UPDATE {progress} SET {words} WHERE {mine}".encode())


def _there(session: Session, place: Place, task: str, table: str, name: str) -> bool:
    """Whether the task's table has its target under a name."""
    progress = Progress(place, task, lambda _: TargetPlace(name))
    return exists(session, place.own(TABLE)) and progress.read(session, table, lock=True) is not None
