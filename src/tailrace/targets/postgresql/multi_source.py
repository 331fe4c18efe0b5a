"""Shared PostgreSQL targets: one table with rows of several sources, each of which has a progress row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import BaselineNeededError
from ...model.change import Relation
from ...sources.postgresql.connect import Session
from ..multi_source import refuse_columns
from .progress import OtherSource, ProgressTable


def columns(layout: Relation | None, others: Sequence[OtherSource]) -> dict[str, str]:
    """Returns the names and Spark SQL types of a target's columns, by the layouts of all its sources.

    >>> from tailrace.model.change import Column
    >>> a, b = (Column(n, k, "text", "text", "string") for k, n in enumerate("ab"))
    >>> one = Relation(1, "eu", "t", "f", (a,))
    >>> columns(one, [OtherSource("us.t of the task x", {"site": "us"}, one.with_columns([a, b]))])
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
    """Raises BaselineNeededError if a new source of a shared target has other columns than the others, or no
    constants that distinguish its rows; `rule_columns`: columns that rules may have added."""
    partition, target = progress.partition(wanted.table), progress.target(wanted.table)
    for other in others:
        if other.partition == partition or set(other.partition) != set(partition):
            raise BaselineNeededError(
                f"{other.name} writes to {target}, too, and its rows ({dict(other.partition)}) cannot be "
                f"distinguished from those of {wanted.table} ({dict(partition)})",
                where=wanted.table,
                hint="give each source different constants in the same columns of the key (`tables`), or "
                "another target",
            )
    if not others:
        return
    want = {c.name: c.type for c in wanted.columns}
    refuse_columns(wanted.table, target, columns(None, others), want, rule_columns)


def with_target_types(have: Relation, want: Relation, others: Sequence[OtherSource]) -> Relation:
    """Returns the layout `have` with those new columns of `want` that other sources have added already."""
    known = {c.attnum for c in have.columns}
    existing = columns(None, others)
    added = [c for c in want.columns if c.attnum not in known and existing.get(c.name) == c.type]
    return have.with_columns([*have.columns, *added])


def delete_partition(session: Session, progress: ProgressTable, table: str) -> None:
    """Deletes a source's rows."""
    where = progress.partition_condition(table)
    session.execute(f"DELETE FROM {progress.target(table)} WHERE {where}".encode())


def empty_statement(progress: ProgressTable, table: str) -> str:
    """Returns the statement that removes all rows of a source, as a truncate at the source does."""
    if progress.partition(table):
        return f"DELETE FROM {progress.target(table)} WHERE {progress.partition_condition(table)}"
    # As at the source, TRUNCATE blocks readers, and older snapshots then see an empty table. A DELETE of all
    # rows would respect these snapshots, but leave all rows for vacuum.
    return f"TRUNCATE {progress.target(table)}"


def count_partition(session: Session, progress: ProgressTable, table: str) -> int:
    """Returns the number of a source's rows in its target."""
    where = progress.partition_condition(table)
    row = session.execute(f"SELECT count(*) FROM {progress.target(table)} WHERE {where}".encode()).fetchone()
    return int(row[0]) if row else 0


def empty_partition(session: Session, progress: ProgressTable, table: str) -> int:
    """Removes all rows of a source from its target; returns their number."""
    found = count_partition(session, progress, table)
    session.execute(empty_statement(progress, table).encode())
    return found
