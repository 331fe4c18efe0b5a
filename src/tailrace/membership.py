"""Which tables a task captures: what the task file names, what orders added, without what they removed; and
what becomes of the targets of those."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from . import lake
from .control import ledger, tables
from .control.ledger import Baseline
from .control.tables import TableControl
from .control.task import Task
from .landing import landings
from .sources.base import LogSource


class Known:
    """What orders and baselines say of a task's tables; read again only when there is something new."""

    def __init__(self, task: Task) -> None:
        self._paths = task.orders_path, task.control_path("baselines")
        self._versions: tuple[int, ...] = ()
        self.baselines: dict[str, Baseline] = {}
        self.states: dict[str, TableControl] = {}

    def look(self) -> bool:
        """Takes in what is new; whether there was something."""
        versions = tuple(map(lake.version, self._paths))
        if versions == self._versions:
            return False
        orders, baselines = self._paths
        self.baselines = ledger.read_baselines(baselines)
        self.states = tables.of_task(orders, self.baselines)
        self._versions = versions
        return True


@dataclass(frozen=True)
class Moved:
    """What became of tables that the task knows: names that are `gone`; names to be `left` out: new ones of
    renamed tables, whose changes go on under the first one, and those made again that are to be ignored."""

    gone: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()


def members(
    source: LogSource, task: Task, states: Mapping[str, TableControl], moved: Moved = Moved()
) -> list[str]:
    """The tables that are there and are to be captured, sorted.

    ConfigError for a table that the task file names and that never was there; one that is gone, or was added
    by an order, is left out.
    """
    # A table that was removed, or is gone, may be named in the file all the same.
    patterns = [p for p in task.source.tables if not _removed(states.get(p)) and p not in moved.gone]
    named = [t for t in source.tables(patterns, task.source.exclude) if t not in moved.left]
    added = [t for t, one in states.items() if one.member == "added" and t not in named]
    there = source.tables([_if_there(t) for t in added]) if added else []
    return sorted(t for t in {*named, *there} if not _removed(states.get(t)))


def _removed(state: TableControl | None) -> bool:
    return state is not None and state.member == "removed"


def _if_there(table: str) -> str:
    """A pattern that fits this name alone: patterns need not fit anything, names do."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in table[:-1]) + f"[{table[-1]}]"


def drop_targets(task: Task, states: Mapping[str, TableControl], busy: Collection[str] = ()) -> list[str]:
    """Takes away the targets of removed tables that are to go, once apply has heard of it and no baseline is
    at work on them (`busy`); gives which. For the process that captures, or while none does."""
    gone = [
        t for t, one in states.items()
        if one.dropped and one.member == "removed" and t not in busy
        and tables.heard(task.run_path, one.dropped)
    ]  # fmt: skip
    for table in gone:
        landings(task)(table).drop(table)
        tables.give(task.orders_path, tables.DROPPED, [table], why="", who="capture")
    return gone
