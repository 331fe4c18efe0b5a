"""Selects the tables of a task: those in the task file, plus added and minus removed ones; and drops the
targets of removed tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..apply.checks.target import refuse_to_drop
from ..config.task import Task
from ..errors import ApplyError
from ..lake import delta as lake
from ..lake import log
from ..lake.failpoints import reach
from ..sources.base import LeftOut, LogSource, Renamed
from ..state import commands, lifecycle
from ..state.baselines import Baseline
from ..state.lifecycle import TableStates
from .snapshot_sink import landings

TAKE_BACK = "`tailrace add TASK {}` cancels the removal"
History: TypeAlias = Mapping[str, Sequence[log.Layout]]
"""The relation history by table."""


class KnownTables:
    """The lifecycles of a task's tables; they are read again only if they have changed."""

    def __init__(self, task: Task) -> None:
        self._task, self._paths = task, (task.commands_path, task.control_path("baselines"))
        self._versions: tuple[int | None, ...] = ()
        self.baselines: dict[str, Baseline] = {}
        self.states = TableStates()

    def refresh(self) -> bool:
        """Reads the state if it has changed; returns whether it has."""
        versions = tuple(map(lake.version, self._paths))
        if versions == self._versions:
            return False
        self.states = lifecycle.read(self._task)
        self.baselines, self._versions = self.states.baselines, versions
        return True


@dataclass(frozen=True)
class MovedTables:
    """Known tables that were dropped or renamed.

    Attributes:
        gone: names of known tables that no table has now.
        left: names to leave out: current names of tables known by another one, and of recreated tables that
            are to be ignored.
        renamed: known tables that have another name now; their changes continue under the first one.
        old: tables whose known name belongs to another table now; they are no longer followed.
    """

    gone: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    renamed: tuple[Renamed, ...] = ()
    old: tuple[Renamed, ...] = ()


def current_names(source: LogSource, relids: Sequence[int]) -> tuple[dict[int, str], set[str]] | None:
    """Returns the current names of relations, and all names in use, as of one moment; None if unknown."""
    now = source.names(relids) if relids else None
    while now is not None:
        there = set(source.tables(["*.*"]))
        before, now = now, source.names(relids)
        if now == before:
            return now, there
    return None


def newest_relations(history: History, baselines: Mapping[str, Baseline]) -> dict[str, int]:
    """Returns the newest relation of each known table: its baseline's, if it has one."""
    found = {table: layouts[-1].relation.relid for table, layouts in history.items()}
    return found | {t: one.relation.relid for t, one in baselines.items() if t in found}


def find_moved(
    source: LogSource, history: History, baselines: Mapping[str, Baseline], ignored: Callable[[str], bool]
) -> MovedTables:
    """Returns which known tables were dropped or renamed; from then on the source uses their known names.

    Args:
        ignored: returns whether a recreated table is to be left out.
    """
    last = newest_relations(history, baselines)
    relids = {one.relation.relid: t for t, layouts in history.items() for one in layouts}
    relids |= {relid: t for t, relid in last.items()}
    found = current_names(source, list(relids))
    if found is None:
        return MovedTables()
    now, there = found
    for (
        table,
        layouts,
    ) in history.items():  # recreated, and its first changes have been read, but not its baseline
        again = layouts[-1].relation.relid
        if now.get(again) == table and now.get(last[table]) != table and not ignored(table):
            last[table] = again
    taken = there - set(now.values())  # under names that the task does not know
    away = {t for t, relid in last.items() if now.get(relid) != t}
    renamed = [
        Renamed(last[t], t, now[last[t]])
        for t in sorted(away)
        if last[t] in now and (t not in taken or ignored(t))
    ]
    own = {one.relid for one in renamed} | {last[t] for t in last.keys() - away}
    old = [Renamed(r, f"{relids[r]}, relation {r}", name) for r, name in now.items() if r not in own]
    left = {one.now for one in (*renamed, *old)} | {t for t in away & taken if ignored(t)}
    # The stream may have used another name for a moment, and reports it with the table's first change.
    seen = {one.relation.relid for layouts in history.values() for one in layouts}
    unseen = [Renamed(r, t, t) for t, r in last.items() if r not in seen and now.get(r) == t]
    source.called([*renamed, *old, *unseen])
    return MovedTables(frozenset(away - there), frozenset(left), tuple(renamed), tuple(old))


def wanted_tables(
    source: LogSource,
    task: Task,
    states: TableStates,
    moved: MovedTables = MovedTables(),
    left: Mapping[str, LeftOut] | None = None,
) -> list[str]:
    """Returns the tables that exist and should be captured, sorted.

    A table that is missing, or was added by a command, is left out if it does not exist.

    Args:
        left: the source's `left_out`, if it is known already.

    Raises:
        ConfigError: the task file names a table that never existed.
    """
    # A table that was removed, or dropped, may still be in the task file.
    patterns = [p for p in task.source.tables if not states[p].removed and p not in moved.gone]
    named = [
        t for t in select_tables(source, task, patterns, task.source.exclude, left) if t not in moved.left
    ]
    # Selected by the name under which they are known, or by their current name.
    named += [
        one.known for one in moved.renamed if any(is_selected(task, states, t) for t in (one.known, one.now))
    ]
    out = {*named, *moved.left}  # each relation is selected under one name only
    added = [t for t, one in states.items() if one.member == "added" and t not in out]
    found = source.tables([_exact_pattern(t) for t in added]) if added else []
    return sorted(t for t in {*named, *found} if not states[t].removed)


def select_tables(
    source: LogSource,
    task: Task,
    patterns: Sequence[str],
    exclude: Sequence[str] = (),
    left: Mapping[str, LeftOut] | None = None,
) -> list[str]:
    """Returns the tables that patterns select, sorted; wildcards do not select tables that are left out.

    Raises:
        ConfigError: a table that is named does not exist.
    """
    found = source.tables(patterns, exclude)
    if set(found) <= set(patterns):
        return found
    left = source.left_out() if left is None else left
    return [t for t in found if t in patterns or t not in left or gets_identity(task, t, left[t])]


def gets_identity(task: Task, table: str, one: LeftOut) -> bool:
    """Returns whether a table that no wildcard selects is selected, because it is to get a
    replica identity."""
    return one.identity and task.table(table).identity == "full"


def is_selected(task: Task, states: TableStates, table: str) -> bool:
    """Returns whether a command adds a table, or the task file selects it by the name under which it is
    known."""
    if states[table].member == "added":
        return True
    return task.source.selects(table)


def _exact_pattern(table: str) -> str:
    """Returns a pattern for exactly this name: unlike a name, a pattern need not match anything."""
    return "".join(f"[{c}]" if c in "*?[." else c for c in table)  # its dot alone makes it one


def drop_targets(
    task: Task,
    states: TableStates,
    busy: Collection[str] = (),
    waits: dict[str, str] | None = None,
) -> list[str]:
    """Removes the targets of removed tables if a command says so and apply has acknowledged it; returns these
    tables.

    It is called by the capture process, or by another one while no capture runs.

    Args:
        busy: tables with a running baseline, whose targets stay.
        waits: receives why targets cannot be removed now, by table.

    Raises:
        ApplyError: a target cannot be removed, and `waits` is not given.
    """
    gone = [
        t for t, one in states.items()
        if one.dropped and one.removed and t not in busy and not one.moving
        and commands.heard(task.run_path, one.dropped)
    ]  # fmt: skip
    dropped = []
    if waits is not None:
        waits.clear()
    for table in gone:
        try:
            refuse_to_drop(task, [table])
            landings(task)(table).drop(table)
        except ApplyError as error:
            if waits is None:
                raise
            waits[table] = f"its target is not removed yet: {error}"
            continue
        reach("membership.dropped")
        commands.give(task.commands_path, commands.DROPPED, [table], why="", who="capture")
        dropped.append(table)
    return dropped
