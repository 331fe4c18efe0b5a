"""`tailrace_tasks`: the source of each task name that writes to a database.

Progress is kept by task name, so two tasks of one name would change each other's tables.
"""

from __future__ import annotations

import psycopg

from ...errors import ApplyError
from ...sources.postgresql.connect import Session, literal
from .place import Place

TABLE = "tailrace_tasks"


def claim(on: Session, place: Place, task: str, source: str) -> None:
    """Records the source of a task name that has none; within a transaction. A role that may not create the
    table works without it.

    Raises:
        ApplyError: the name belongs to a task with another source.
    """
    if source and _source(on, place, task) is None:
        try:
            with on.transaction():
                columns = "task text PRIMARY KEY, source text NOT NULL"
                on.execute(f"CREATE TABLE IF NOT EXISTS {place.own(TABLE)} ({columns})".encode())
                into = f"INSERT INTO {place.own(TABLE)} VALUES (%s, %s) ON CONFLICT DO NOTHING"
                on.execute(into.encode(), (task, source))
        except psycopg.errors.InsufficientPrivilege:
            return
    if (error := refused(on, place, task, source)) is not None:
        raise error


def refused(on: Session, place: Place, task: str, source: str) -> ApplyError | None:
    """The error for a task name that belongs to a task with another source; None: it does not."""
    there = _source(on, place, task)
    if there is None or not source or there == source:
        return None
    return ApplyError(
        f"the targets of the name {task} belong to a task of that name with the source {there}",
        where=place.label,
        hint="give this task another `name`. To take its targets over: "
        f"DELETE FROM {place.own(TABLE)} WHERE task = {literal(task)}",
    )


def _source(on: Session, place: Place, task: str) -> str | None:
    there = on.execute("SELECT to_regclass(%s) IS NOT NULL", (place.own(TABLE),)).fetchone()
    if there != (True,):
        return None
    row = on.execute(f"SELECT source FROM {place.own(TABLE)} WHERE task = %s".encode(), (task,)).fetchone()
    return None if row is None else str(row[0])
