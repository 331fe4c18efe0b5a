"""Which tables a task captures: what the task file names, what orders added, without what they removed; and
what becomes of the targets of those."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .control import tables
from .control.tables import TableControl
from .control.task import Task
from .landing import landings
from .sources.base import LogSource


def members(source: LogSource, task: Task, states: Mapping[str, TableControl]) -> list[str]:
    """The tables that are there and are to be captured, sorted.

    ConfigError for a table that the task file names and that is not there; one that was added by an order and
    is gone is left out.
    """
    named = source.tables(task.source.tables, task.source.exclude)
    added = [t for t, one in states.items() if one.member == "added" and t not in named]
    there = source.tables([_if_there(t) for t in added]) if added else []
    return sorted(t for t in {*named, *there} if not _removed(states.get(t)))


def _removed(state: TableControl | None) -> bool:
    return state is not None and state.member == "removed"


def _if_there(table: str) -> str:
    """A pattern that fits this name alone: patterns need not fit anything, names do."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in table[:-1]) + f"[{table[-1]}]"


def drop_targets(
    task: Task, states: Mapping[str, TableControl], at_work: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """Takes away the targets of removed tables that are to go, once apply has heard of it and no baseline is
    at work on them; gives which. For the process that captures, or while none does."""
    gone = [
        t for t, one in states.items()
        if one.dropped and one.member == "removed" and not at_work(t)
        and tables.heard(task.run_path, one.dropped)
    ]  # fmt: skip
    for table in gone:
        landings(task)(table).drop(table)
        tables.give(task.orders_path, tables.DROPPED, [table], why="", who="capture")
    return gone
