"""Whether the table that has a target's name is the target: a table is told by its number (`pg_class.oid`).

A rename, TRUNCATE, VACUUM FULL, new partitions and pg_upgrade leave the number as it is. Only a table that
was made anew has another one; so has every table of a database that was restored from a dump.
"""

from __future__ import annotations

from ....errors import ApplyError, OtherTableError
from ....sources.postgresql.connect import literal, oid_of


def noted(row: str) -> str:
    """SQL of the number that a row of progress has noted, as bigint; NULL: none yet, or no column."""
    return f"(to_jsonb({row}) ->> 'relid')::bigint"


def number_now(target: str) -> str:
    """SQL of the number that a target (as quoted SQL) has now, as bigint; NULL: there is none. As of the
    statement's snapshot, as the row of progress is."""
    return f"{oid_of(literal(target))}::bigint"


def other_table(progress: str, target: str, noted: int, now: int, where: str) -> OtherTableError:
    """The error for a target whose name another table has; `progress`, `target`: as quoted SQL."""
    return OtherTableError(
        f"{target} is another table than the target: somebody made it, or put it there (its OID is {now}, "
        f"that of the target {noted}); it is left alone",
        where=where,
        hint="drop or rename it yourself, then `tailrace resync` the table. If it is the target (restored "
        f"from a dump, say): UPDATE {progress} SET relid = NULL WHERE target = {literal(target)}",
    )


def two_places(progress: str, task: str, table: str, targets: tuple[str, str], where: str) -> ApplyError:
    """The error for a table that has a target under the task's name already; `targets`: that one and the one
    that is asked for, as quoted SQL."""
    there, wanted = targets
    mine = f'task = {literal(task)} AND "table" = {literal(table)}'
    return ApplyError(
        f"the target of {table} under the name {task} is {there}, and not {wanted}: two targets cannot share "
        "a row of progress",
        where=where,
        hint="give each task of this database a name of its own (`name`, `--name`). If the table has moved, "
        f"give up {there}, which stays as it is: DELETE FROM {progress} WHERE {mine}",
    )
