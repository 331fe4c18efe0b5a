"""`tailrace_tasks`: the source of each task name that writes to a database.

Progress is kept by task name, so two tasks of one name would change each other's tables.
"""

from __future__ import annotations

import psycopg

from ...errors import ApplyError
from ...sources.postgresql.connect import Session, literal
from .connection import Database, exists

TABLE = "tailrace_tasks"


def claim(session: Session, database: Database, task: str, source: str) -> None:
    """Records the source of a task name that has none; within a transaction. A role that may not create the
    table works without it.

    Raises:
        ApplyError: the name belongs to a task with another source.
    """
    if source and _source(session, database, task) is None:
        try:
            with session.transaction():
                columns = "task text PRIMARY KEY, source text NOT NULL"
                session.execute(
                    f"CREATE TABLE IF NOT EXISTS {database.control_table(TABLE)} ({columns})".encode()
                )
                into = f"INSERT INTO {database.control_table(TABLE)} VALUES (%s, %s) ON CONFLICT DO NOTHING"
                session.execute(into.encode(), (task, source))
        except psycopg.errors.InsufficientPrivilege:
            return
    if (error := refused(session, database, task, source)) is not None:
        raise error


def refused(session: Session, database: Database, task: str, source: str) -> ApplyError | None:
    """The error for a task name that belongs to a task with another source; None: it does not."""
    recorded = _source(session, database, task)
    if recorded is None or not source or recorded == source:
        return None
    return ApplyError(
        f"the targets of the name {task} belong to a task of that name with the source {recorded}",
        where=database.label,
        hint="give this task another `name`. To take its targets over: "
        f"DELETE FROM {database.control_table(TABLE)} WHERE task = {literal(task)}",
    )


def _source(session: Session, database: Database, task: str) -> str | None:
    if not exists(session, database.control_table(TABLE)):
        return None
    row = session.execute(
        f"SELECT source FROM {database.control_table(TABLE)} WHERE task = %s".encode(), (task,)
    ).fetchone()
    return None if row is None else str(row[0])
