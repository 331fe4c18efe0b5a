"""PostgreSQL targets that several sources feed: one table, in which each has rows, and a row of progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import BaselineNeededError
from ...model.change import Relation
from ...sources.postgresql.connect import Session
from ..multi_source import refuse_columns
from .progress import OtherSource, ProgressTable


def columns(layout: Relation | None, others: Sequence[OtherSource]) -> dict[str, str]:
    """Names and Spark SQL types of the columns that a target has by what its sources have made of it.

    >>> from tailrace.model.change import Column
    >>> a, b = (Column(n, k, "text", "text", "string") for k, n in enumerate("ab"))
    >>> one = Relation(1, "eu", "t", "f", (a,))
    >>> columns(one, [Other("us.t of the task x", {"site": "us"}, one.with_columns([a, b]))])
    {'a': 'string', 'b': 'string'}
    """
    layouts = ([layout] if layout else []) + [o.layout for o in others]
    return {c.name: c.type for one in layouts for c in one.columns}


def refuse(
    progress: ProgressTable,
    wanted: Relation,
    others: Sequence[OtherSource],
    rule_columns: Mapping[str, str] = {},
) -> None:
    """Raises BaselineNeededError when a source that comes to others makes other columns than they, or has no
    constants that tell its rows; `rule_columns`: columns that rules may have added."""
    own, target = progress.partition(wanted.table), progress.target(wanted.table)
    for other in others:
        if other.partition == own or set(other.partition) != set(own):
            raise BaselineNeededError(
                f"{other.name} feeds {target}, too, and its rows ({dict(other.partition)}) cannot be told "
                f"from those of {wanted.table} ({dict(own)})",
                where=wanted.table,
                hint="give each source constants of its own in the same columns of the key (`tables`), or "
                "another target",
            )
    if not others:
        return
    want = {c.name: c.type for c in wanted.columns}
    refuse_columns(wanted.table, target, columns(None, others), want, rule_columns)


def with_target_types(have: Relation, want: Relation, others: Sequence[OtherSource]) -> Relation:
    """The layout `have` with those columns of `want` that other sources have brought to the target."""
    known = {c.attnum for c in have.columns}
    brought = columns(None, others)
    more = [c for c in want.columns if c.attnum not in known and brought.get(c.name) == c.type]
    return have.with_columns([*have.columns, *more])


def delete_partition(session: Session, progress: ProgressTable, table: str) -> None:
    """Deletes a source's rows."""
    where = progress.partition_condition(table)
    session.execute(f"DELETE FROM {progress.target(table)} WHERE {where}".encode())


def empty_statement(progress: ProgressTable, table: str) -> str:
    """The statement that empties a target of a source's rows, as a truncate at the source did."""
    if progress.partition(table):
        return f"DELETE FROM {progress.target(table)} WHERE {progress.partition_condition(table)}"
    # As at the source, TRUNCATE locks readers out, and an older snapshot then sees an empty table. A DELETE
    # of every row would honour that snapshot, and leave all rows for vacuum.
    return f"TRUNCATE {progress.target(table)}"


def count_partition(session: Session, progress: ProgressTable, table: str) -> int:
    """The number of a source's rows in its target."""
    where = progress.partition_condition(table)
    row = session.execute(f"SELECT count(*) FROM {progress.target(table)} WHERE {where}".encode()).fetchone()
    return int(row[0]) if row else 0


def empty_partition(session: Session, progress: ProgressTable, table: str) -> int:
    """Empties a target of a source's rows; returns their number."""
    found = count_partition(session, progress, table)
    session.execute(empty_statement(progress, table).encode())
    return found
